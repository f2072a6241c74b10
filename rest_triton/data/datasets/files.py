"""Read files of other projects: pickled arrays without running code, zipped arrays larger than memory."""

import codecs
import math
import pickle
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...utils.errors import UserError
from .download import missing_package, of_the_machine

CHUNK_BYTES = 1 << 24

# NumPy 2 calls its private package _core, NumPy 1 core; files have the name of the version that wrote them.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
_SAFE: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("_codecs", "encode"): codecs.encode,  # pickle's protocol 2 writes bytes with it
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _SAFE[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it contains {module}.{name}; only arrays and tensors are read") from None


def _load(file: Any, **arguments: Any) -> Any:
    return _ArraysOnly(file, **arguments).load()


_PICKLE = types.SimpleNamespace(__name__="arrays_only", Unpickler=_ArraysOnly, load=_load)


def load_arrays(path: Path) -> Any:
    """Load a file of ``torch.save`` with dicts, NumPy arrays, numbers and tensors. Anything else is refused, not run.

    ``torch.load(weights_only=True)`` cannot read pickle's protocol 4, in which ogb writes.
    """
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_PICKLE)


def unzip_array(
    archive: Path,
    name: str,
    allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray],
    *,
    check: Callable[[np.ndarray], None] = lambda chunk: None,
    say: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """Copy one array of an .npz in chunks into what ``allocate(shape, dtype)`` returns, which may have another dtype.

    ``check`` is called with every chunk before it is copied. The archive's checksum is verified with the last chunk.
    """
    with zipfile.ZipFile(archive) as file, file.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = header(stream)
        if dtype.hasobject:
            raise ValueError(f"{name} contains Python objects; only numbers are read")
        out = allocate(shape, dtype)
        elements = out.T.flat if fortran_order else out.reshape(-1)  # views in the order of the file
        count, step = math.prod(shape), max(1, CHUNK_BYTES // dtype.itemsize)
        for begin in range(0, count, step):
            end = min(begin + step, count)
            chunk = np.frombuffer(stream.read((end - begin) * dtype.itemsize), dtype)
            if chunk.size != end - begin:
                raise ValueError(f"{name} ends after {begin + chunk.size} of {count} elements")
            check(chunk)
            elements[begin:end] = chunk
            say(f"{name} {100 * end // count} %")
        stream.read()  # at the end, the checksum is verified
    return out


@contextmanager
def reading(dataset: str, path: Path, remedy: str) -> Iterator[None]:
    """Turn an error while ``path`` (a file or folder) is read into a UserError that names it and the remedy."""
    try:
        yield
    except ImportError as error:
        raise missing_package(dataset, error) from error
    except MemoryError:
        raise
    except Exception as error:
        if of_the_machine(error):
            raise
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{dataset}: {error.filename or path} is missing; {remedy}") from error
        first = (str(error).strip() or "no details").splitlines()[0]
        raise UserError(
            f"{dataset}: {path} cannot be read ({type(error).__name__}: {first}); delete it: {remedy}"
        ) from error
