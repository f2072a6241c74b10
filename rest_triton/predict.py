"""Predict the classes of all nodes with a trained model, by exact inference.

    python -m rest_triton.predict --run runs/products-gcn-gas+rest-1 --out predictions.npz --embeddings

The file has, in the order of the data set's nodes:

    prediction      int32[N], or bool [N, C] if nodes can have several labels
    probabilities   float32 [N, C], with --probabilities: of each class, or of each label if nodes can have several
    embeddings      float32 [N, D], with --embeddings: the input of the last layer

Results come in pieces, and memory holds only the arrays of the file.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .config import MODELS, Config
from .data.clusters import load_data
from .nn import HistoryGNN, model_named
from .sampling.batch import Batch
from .training.checkpoint import read
from .training.metrics import Scores
from .training.trainer import Trainer
from .utils.errors import UserError, reported
from .utils.files import replacing
from .utils.machine import device_of
from .utils.malloc import keep_freed_memory
from .utils.progress import progress


def predict(
    checkpoint: Path, config: Config, *, probabilities: bool = False, embeddings: bool = False,
    model: type[HistoryGNN] | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:  # fmt: skip
    """({name: tensor} for all nodes in the data set's order, scores by split).

    Args:
        checkpoint: of the model. config: of its run, with the device to use. model: see :class:`Trainer`.
        probabilities, embeddings: whether the result has them.
    """
    if model is None and config.model not in MODELS:
        raise UserError(
            f"model is {config.model!r}, a custom model; predict with its class: rest_triton.predict.main(model=…)"
        )
    if config.base != "sgc":  # which aggregates features and has a model of its own
        config = config.by_method("full")  # without tables: inference uses scratch tables
    loaded = load_data(config, (model_named(config.model) if model is None else model).normalise)
    state, _ = read(checkpoint, None, loaded.fingerprint)
    trainer = Trainer(config, loaded, model)
    trainer.model.load_state_dict(state["trainer"]["model"])
    several, scores = loaded.graph.multilabel, Scores(loaded.graph)
    result: dict[str, Tensor] = {}

    def keep(name: str, batch: Batch, rows: Tensor) -> None:
        if name not in result:
            result[name] = rows.new_empty((loaded.graph.num_nodes, *rows.shape[1:]), device="cpu")
        result[name][batch.take(loaded.order)] = rows.cpu()

    def use(piece: Batch, logits: Tensor) -> None:
        scores.add(piece, logits)
        keep("prediction", piece, logits > 0 if several else logits.argmax(1).int())
        if probabilities:
            keep("probabilities", piece, logits.sigmoid() if several else logits.softmax(1))

    with trainer.engine.inference() as inference:
        inference.run(use)
        for piece in inference.pieces() if embeddings else ():
            hidden = inference.embeddings(piece)
            if hidden is None:
                raise UserError("a model of one layer has no embeddings: its layer reads the features; omit --embeddings")
            keep("embeddings", piece, hidden)
    return result, scores.by_split()


def write_npz(path: Path, arrays: dict[str, Tensor]) -> None:
    """Write arrays as numpy.savez does, atomically and under exactly this name."""
    plain: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
    with replacing(path) as file:
        np.savez(file, **plain)


def _check(folder: Path, checkpoint: Path, out: Path) -> None:
    """Check the paths before data is loaded."""
    if not (folder / "config.yaml").is_file():
        raise UserError(
            f"{folder} is not the folder of a run: it has no config.yaml; name one, such as --run runs/products-gcn-gas-1"
        )
    if not checkpoint.is_file():
        seeds = sorted(folder.glob("seed-*"))
        raise UserError(
            f"{folder} has runs of several seeds; name one, such as --run {seeds[0]}"
            if seeds
            else f"{checkpoint} does not exist; train until an epoch has been evaluated, or name another one"
        )
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file in it with --out, such as {out / 'predictions.npz'}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent} is not a folder; make it, or name a file in another one with --out")


def main(arguments: Sequence[str] | None = None, model: type[HistoryGNN] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rest_triton.predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", type=Path, required=True, metavar="FOLDER",
        help="folder of a run, for its best checkpoint; or one of its checkpoints",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .npz to write")
    parser.add_argument("--probabilities", action="store_true", help="also write the probability of each class")
    parser.add_argument("--embeddings", action="store_true", help="also write the input of the last layer")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument("--root", metavar="FOLDER", help="folder of prepared graphs; default: the run's")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    try:
        with reported():
            checkpoint: Path = options.run if options.run.suffix == ".pt" else options.run / "checkpoints" / "best.pt"
            folder = checkpoint.parent.parent
            _check(folder, checkpoint, options.out)
            changes: dict[str, Any] = dict(device=device_of(options.device)) | (
                {} if options.root is None else dict(root=options.root)
            )
            config = Config.of(str(folder / "config.yaml")).changed(**changes)
            with progress("predicting"):
                wanted = dict(probabilities=options.probabilities, embeddings=options.embeddings)
                result, metrics = predict(checkpoint, config, **wanted, model=model)
                write_npz(options.out, result)
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; nothing was written\n")
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in result.items())
    print(f"{options.out}: {shapes}")
    print(", ".join(f"{split} {100 * value:.2f} %" for split, value in metrics.items()) + f", by {checkpoint}")


if __name__ == "__main__":
    main()
