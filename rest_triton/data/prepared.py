"""Prepared graphs on disk: a folder of .npy files that are memory-mapped, and a manifest.

The folder is written under a temporary name and renamed when all of its files are on disk. So it is complete or absent.
It holds no absolute paths and can be copied to another machine.
"""

import glob
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..utils.errors import UserError
from ..utils.files import is_alive, sync_folder, write_whole
from .features import SparseRows
from .graph import MASKS, Graph

FORMAT = 1  # raise it when the layout of the folder or the meaning of an array changes
MANIFEST = "graph.json"


class Workspace:
    """Arrays on disk for graphs that do not fit into memory: they are written directly into the prepared folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.created: dict[str, np.memmap] = {}
        self.referred: dict[str, str] = {}

    def new_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
        """A zero-filled array on disk for one field of the graph. It is not copied when the graph is stored."""
        self.created[name] = np.lib.format.open_memmap(self.folder / f"{name}.npy", "w+", np.dtype(dtype), shape)
        return self.created[name]

    def refer(self, name: str, path: Path) -> np.memmap:
        """Use an existing .npy below the root as one field of the graph. The file stays where it is."""
        self.referred[name] = str(path.relative_to(self.root))
        return np.load(path, mmap_mode="c")


def write(folder: Path, root: Path, about: dict[str, Any], build: Callable[[Workspace], Graph]) -> Graph:
    """Build a graph, store it in ``folder`` together with its source ``about``, and read it back."""
    absent = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        workspace = Workspace(partial, root)
        graph = build(workspace)
        arrays: dict[str, dict[str, Any]] = {}
        for name, tensor in _arrays(graph).items():
            if name in workspace.referred:
                arrays[name] = {"file": workspace.referred[name], "below": "root"}
                path = root / workspace.referred[name]
            else:
                arrays[name] = {"file": f"{name}.npy", "below": "folder"}
                path = partial / f"{name}.npy"
                _store(path, tensor, workspace.created.get(name))
            arrays[name] |= {"bytes": path.stat().st_size, "shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]}
        manifest = {
            "format": FORMAT,
            "about": about,
            "name": graph.name,
            "directed": graph.directed,
            "num_classes": graph.num_classes,
            "fingerprint": graph.fingerprint,
            "width": graph.num_features,
            "arrays": arrays,
        }
        write_whole(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        del graph, workspace
        if folder.exists():  # it could not be read; rename replaces only empty folders
            old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
            folder.rename(old)
            shutil.rmtree(old)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in absent:  # after a failure, no empty folders are left
            if not any(parent.iterdir()):
                parent.rmdir()
    return read(folder, root, about)


def read(folder: Path, root: Path, about: dict[str, Any]) -> Graph:
    """Map the graph in ``folder``. UserError if it is damaged, of another format, or not made from ``about``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST} cannot be read ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise UserError(f"{folder} has format {found}, this version of rest_triton writes {FORMAT}")
    if manifest.get("about") != about:
        raise UserError(f"{folder} was made from {manifest.get('about')}; needed is {about}")
    try:
        arrays = {name: _map(entry, folder, root) for name, entry in manifest["arrays"].items()}
        x: Tensor | SparseRows | None = arrays.pop("x", None)
        if "x_index" in arrays:
            rowptr, index, value = (arrays.pop(f"x_{part}") for part in ("rowptr", "index", "value"))
            x = SparseRows(rowptr, index, value, manifest["width"], _checked=True)
        graph = Graph(
            x=x, num_classes=manifest["num_classes"], directed=manifest["directed"], name=manifest["name"],
            _checked=True, **arrays,
        )  # fmt: skip
        graph.__dict__["_digest"] = (manifest["fingerprint"], not manifest["directed"], True)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / MANIFEST} is not complete ({type(error).__name__}: {error})") from None
    return graph


def _arrays(graph: Graph) -> dict[str, Tensor]:
    arrays = {"rowptr": graph.rowptr, "col": graph.col, "y": graph.y} | {name: getattr(graph, name) for name in MASKS}
    if isinstance(graph.x, SparseRows):
        arrays |= {"x_rowptr": graph.x.rowptr, "x_index": graph.x.index, "x_value": graph.x.value}
    else:
        arrays["x"] = graph.x
    return {name: tensor for name, tensor in arrays.items() if tensor is not None}


def _store(path: Path, tensor: Tensor, created: np.memmap | None) -> None:
    if created is None:
        # NumPy has no bfloat16. Its bits are stored as int16; the manifest has the dtype.
        np.save(path, (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy())
    else:
        created.flush()
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _map(entry: dict[str, Any], folder: Path, root: Path) -> Tensor:
    path = (root if entry["below"] == "root" else folder) / entry["file"]
    size = path.stat().st_size if path.is_file() else 0
    if size != entry["bytes"]:
        raise UserError(f"{path} has {size} bytes instead of {entry['bytes']}")
    try:
        array = np.load(path, mmap_mode="c") if 0 not in entry["shape"] else np.load(path)  # an empty file cannot be mapped
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    dtype = getattr(torch, entry["dtype"])
    tensor = torch.from_numpy(array)
    if dtype == torch.bfloat16:
        tensor = tensor.view(dtype)
    if tensor.dtype != dtype or list(tensor.shape) != entry["shape"]:
        raise UserError(f"{path} is {tensor.dtype} {list(tensor.shape)} instead of {dtype} {entry['shape']}")
    return tensor


def _remove_leftovers(folder: Path) -> None:
    """Delete what killed processes have left of this graph. Folders of running processes stay."""
    for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.*-*"):
        pid = leftover.name.rpartition("-")[2]
        if pid.isdigit() and not is_alive(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)
