"""Finished graphs on disk: a folder of plain .npy files that are mapped, not read, and a manifest that is written last.

The folder is filled under another name and renamed when everything in it has reached the disk: it is there as a whole or not
at all. It holds no paths of this machine, so it can be copied to another one.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .features import SparseRows
from .graph import MASKS, Graph

FORMAT = 1  # raise it when the layout of the folder or the meaning of an array changes
MANIFEST = "graph.json"


class Unusable(Exception):
    """Why a folder cannot be read as the graph that is asked for."""


class Workspace:
    """Room for arrays that do not fit into memory while a graph is made: they are written straight into its folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.made: dict[str, np.memmap] = {}
        self.referred: dict[str, str] = {}

    def new_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
        """A zero-filled array on disk; a tensor over it is that field of the graph, and is not written again."""
        self.made[name] = np.lib.format.open_memmap(self.folder / f"{name}.npy", "w+", np.dtype(dtype), shape)
        return self.made[name]

    def refer(self, name: str, path: Path) -> np.memmap:
        """Take an existing .npy below the root as that field of the graph, where it lies."""
        self.referred[name] = str(path.relative_to(self.root))
        return np.load(path, mmap_mode="c")


def write(folder: Path, root: Path, about: dict[str, Any], build: Callable[[Workspace], Graph]) -> Graph:
    """Build a graph, store it as ``folder`` with ``about`` saying what it was made from, and read it back."""
    absent = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_remains(folder)
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
                _store(path, tensor, workspace.made.get(name))
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
        with open(partial / MANIFEST, "w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(partial)
        del graph, workspace
        if folder.exists():  # an unusable one: rename replaces only empty folders
            old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
            folder.rename(old)
            shutil.rmtree(old)
        partial.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in absent:  # where nothing came of it, nothing is left
            if not any(parent.iterdir()):
                parent.rmdir()
    return read(folder, root, about)


def read(folder: Path, root: Path, about: dict[str, Any]) -> Graph:
    """Map the graph in ``folder``. Raises :class:`Unusable` where it is not exactly the one described by ``about``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise Unusable(f"{folder} has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise Unusable(f"{folder / MANIFEST} cannot be read ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise Unusable(f"{folder} has format {found}, this version of rest_triton writes {FORMAT}")
    if manifest.get("about") != about:
        raise Unusable(f"{folder} was made from {manifest.get('about')}, asked for is {about}")
    try:
        arrays = {name: _map(entry, folder, root) for name, entry in manifest["arrays"].items()}
        x: Tensor | SparseRows | None = arrays.pop("x", None)
        if "x_index" in arrays:
            rowptr, index, value = (arrays.pop(f"x_{piece}") for piece in ("rowptr", "index", "value"))
            x = SparseRows(rowptr, index, value, manifest["width"], _checked=True)
        graph = Graph(
            x=x, num_classes=manifest["num_classes"], directed=manifest["directed"], name=manifest["name"],
            _checked=True, **arrays,
        )  # fmt: skip
        graph.__dict__["_digest"] = (manifest["fingerprint"], not manifest["directed"], True)
    except (KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"{folder / MANIFEST} is not whole ({type(error).__name__}: {error})") from None
    return graph


def _arrays(graph: Graph) -> dict[str, Tensor]:
    arrays = {"rowptr": graph.rowptr, "col": graph.col, "y": graph.y} | {name: getattr(graph, name) for name in MASKS}
    if isinstance(graph.x, SparseRows):
        arrays |= {"x_rowptr": graph.x.rowptr, "x_index": graph.x.index, "x_value": graph.x.value}
    else:
        arrays["x"] = graph.x
    return {name: tensor for name, tensor in arrays.items() if tensor is not None}


def _store(path: Path, tensor: Tensor, made: np.memmap | None) -> None:
    if made is None:
        # NumPy has no bfloat16: its bits are stored, and the manifest says what they are.
        np.save(path, (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy())
    else:
        made.flush()
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _map(entry: dict[str, Any], folder: Path, root: Path) -> Tensor:
    path = (root if entry["below"] == "root" else folder) / entry["file"]
    size = path.stat().st_size if path.is_file() else 0
    if size != entry["bytes"]:
        raise Unusable(f"{path} has {size} bytes instead of {entry['bytes']}")
    try:
        array = np.load(path, mmap_mode="c") if 0 not in entry["shape"] else np.load(path)  # an empty file has no map
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} cannot be read ({error})") from None
    dtype = getattr(torch, entry["dtype"])
    tensor = torch.from_numpy(array)
    if dtype == torch.bfloat16:
        tensor = tensor.view(dtype)
    if tensor.dtype != dtype or list(tensor.shape) != entry["shape"]:
        raise Unusable(f"{path} is {tensor.dtype} {list(tensor.shape)} instead of {dtype} {entry['shape']}")
    return tensor


def _remove_remains(folder: Path) -> None:
    """Delete what runs that were killed had written of this graph; those of a running process are its own."""
    for remains in folder.parent.glob(f".{folder.name}.*-*"):
        pid = remains.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(remains, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
