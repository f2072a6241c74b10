"""Reading files that others wrote: pickled arrays without running what is in them, zipped arrays larger than memory, and
which file it was if one cannot be read."""

import codecs
import errno
import gzip
import json
import math
import pickle
import pickletools
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .download import missing_package

PIECE = 1 << 22  # elements that are copied at a time
# A full disk, a folder that is not the user's, a failing device: nobody should delete a good download for it.
_NOT_THE_FILE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENOMEM}

# NumPy 2 calls its insides _core, NumPy 1 core; files name the one they were written with.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
_HARMLESS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("_codecs", "encode"): codecs.encode,  # how pickle's protocol 2 writes bytes
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _HARMLESS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only arrays and tensors are expected") from None


def _load(file: Any, **arguments: Any) -> Any:
    return _ArraysOnly(file, **arguments).load()


_PICKLE = types.SimpleNamespace(__name__="arrays_only", Unpickler=_ArraysOnly, load=_load)


def load_arrays(path: Path) -> Any:
    """What ``torch.save`` wrote of dicts, NumPy arrays, numbers and tensors; anything else is refused, not run.

    ``torch.load(weights_only=True)`` cannot do this: its unpickler does not know pickle's protocol 4, in which ogb writes,
    whatever is declared safe.
    """
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_PICKLE)


def unzip_array(
    archive: Path,
    name: str,
    allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray],
    *,
    check: Callable[[np.ndarray], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """Copy one array of an .npz, piece by piece, into what ``allocate(shape, dtype)`` returns; its dtype may be another.

    ``check`` sees every piece, as it is stored, before it is copied. The archive's checksum is compared with the last one.
    """
    with zipfile.ZipFile(archive) as file, file.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = header(stream)
        if dtype.hasobject:
            raise ValueError(f"{name} in {archive} holds Python objects; only numbers are expected in it")
        out = allocate(shape, dtype)
        elements = out.T.flat if fortran_order else out.reshape(-1)  # both are views, in the order of the file
        count = math.prod(shape)
        for begin in range(0, count, PIECE):
            end = min(begin + PIECE, count)
            piece = np.frombuffer(stream.read((end - begin) * dtype.itemsize), dtype)
            if piece.size != end - begin:
                raise ValueError(f"{name} in {archive} ends after {begin + piece.size} of {count} elements")
            if check is not None:
                check(piece)
            elements[begin:end] = piece
            say(f"{name} {100 * end // count} %")
    return out


@contextmanager
def blaming_files(dataset: str, paths: Sequence[Path], remedy: str) -> Iterator[None]:
    """Turn what goes wrong while ``paths`` are read into an error that names the file and what to do about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{dataset}: {error.filename or error} is missing; {remedy}") from error
    except ImportError as error:
        raise missing_package(dataset, error) from error
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILE:
            raise
        for path in paths:
            try:
                _read_through(path)
            except Exception as reason:
                raise ValueError(f"{dataset}: {path} cannot be read ({_name(reason)}); delete it: {remedy}") from error
        where = paths[0] if len(paths) == 1 else f"a file in {paths[0].parent}"
        raise ValueError(f"{dataset}: {where} does not hold what it should ({_name(error)}); delete it: {remedy}") from error


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no more is known'}"


def _read_through(path: Path) -> None:
    """Read a file of a known format to its end."""
    if path.suffix == ".gz":
        with gzip.open(path) as zipped:
            while zipped.read(1 << 20):
                pass
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
            if bad is not None:
                raise zipfile.BadZipFile(f"{bad} is damaged")
    elif path.suffix == ".npy":
        np.load(path, mmap_mode="r")
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.name.startswith("ind.") and not path.name.endswith(".index"):
        for _ in pickletools.genops(path.read_bytes()):
            pass
