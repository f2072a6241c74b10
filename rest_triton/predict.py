"""Predict the classes of all nodes with a model that was trained: exact inference, layer by layer.

    python -m rest_triton.predict --run runs/products-gcn-gas+rest-1 --out predictions.npz --embeddings

The file has, in the order of the data set's nodes: ``probabilities`` float32 [N, C] (of each class; of each label by itself where
a node can have several), ``prediction`` int64[N] (or bool [N, C]), and with --embeddings ``embeddings`` float32 [N, D], what the
last layer reads.
"""

import argparse
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from .checkpoint import read
from .config import Config
from .loading import load_for
from .machine import device_of
from .malloc import keep_freed_memory
from .progress import progress
from .scores import scores
from .trainer import Trainer


def predict(
    checkpoint: Path, config: Config, *, embeddings: bool = False, model: type[Module] | None = None
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """({name: tensor} for all nodes in the data set's order, scores by part of the split).

    Args:
        checkpoint: of the model. config: of its run, with its device settled. model: see :class:`Trainer`.
    """
    config = config.changed(history="device", method="full")  # no tables of a run: inference has its own
    loaded = load_for(config, getattr(model, "normalise", "gcn"))
    state, _ = read(checkpoint, None, loaded.fingerprint)
    trainer = Trainer(config, loaded, model)
    trainer.model.load_state_dict(state["trainer"]["model"])
    with trainer.engine.inference() as inference:
        logits = inference.run().cpu()
        hidden = inference.embeddings() if embeddings else None
    if embeddings and hidden is None:
        raise ValueError("a model of one layer has no embeddings: its layer reads the features; leave --embeddings out")
    found = scores(logits, loaded.graph)
    several = loaded.graph.multilabel
    result = {
        "probabilities": logits.sigmoid() if several else logits.softmax(1),
        "prediction": logits > 0 if several else logits.argmax(1),
    }
    if hidden is not None:
        result["embeddings"] = hidden
    inverse = torch.empty_like(loaded.order)
    inverse[loaded.order] = torch.arange(len(inverse))
    return {name: value[inverse] for name, value in result.items()}, found


def write_npz(path: Path, arrays: dict[str, Tensor]) -> None:
    """As numpy.savez does, but all of the file or none of it, and without compression, so that numpy can map it."""
    scratch = path.with_name(f"{path.name}.partial")
    try:
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED, allowZip64=True) as file:
            for name, tensor in arrays.items():
                header = io.BytesIO()
                array = np.ascontiguousarray(tensor.numpy())
                np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    member.write(header.getvalue())
                    for begin in range(0, len(array), 1 << 16):
                        member.write(memoryview(array[begin : begin + (1 << 16)]).cast("B"))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None, model: type[Module] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="the folder of a run, or one of its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")
    parser.add_argument("--embeddings", action="store_true", help="also what the last layer reads")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument("--root", help="folder of prepared graphs; default: the run's")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        checkpoint: Path = options.run if options.run.suffix == ".pt" else options.run / "checkpoints" / "best.pt"
        folder = checkpoint.parent.parent
        if not (folder / "config.yaml").is_file():
            raise ValueError(f"{folder} is not the folder of a run: it has no config.yaml")
        if not options.out.absolute().parent.is_dir():
            raise ValueError(f"{options.out.absolute().parent} is not a folder; make it before --out writes into it")
        changes: dict[str, Any] = dict(device=device_of(options.device)) | (
            {} if options.root is None else dict(root=options.root)
        )
        config = Config.of(str(folder / "config.yaml")).changed(**changes)
        with progress("predicting"):
            result, found = predict(checkpoint, config, embeddings=options.embeddings, model=model)
            write_npz(options.out, result)
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; nothing was written\n")
    except (ValueError, OSError, ImportError, MemoryError) as error:
        parser.exit(1, f"{error}\n")
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in result.items())
    print(f"{options.out}: {shapes}")
    print(", ".join(f"{part} {100 * value:.2f} %" for part, value in found.items()) + f", by {checkpoint}")


if __name__ == "__main__":
    main()
