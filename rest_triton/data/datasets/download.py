"""Downloads that are complete or absent, and errors that say how to get the files by hand."""

import errno
import importlib
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...utils.errors import UserError, is_users
from ...utils.progress import notice, progress

TIMEOUT = 60  # seconds without a byte
LARGE = 10**9  # bytes; a larger download is announced
CHUNK_BYTES = 1 << 20


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def need_room(dataset: str, size: int, folder: Path) -> None:
    """UserError if ``size`` bytes do not fit. (A full disk behind a memory map kills the process.)"""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            f"{dataset} needs {gigabytes(size)} in {folder}, which has {gigabytes(free)} free; make room or move the root"
        )


def missing_package(dataset: str, error: ImportError) -> UserError:
    return UserError(
        f'{dataset} needs a package that cannot be imported ({error}); install it with pip install "rest_triton[datasets]"'
    )


def require(dataset: str, module: str) -> Any:
    """Import a module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(dataset, error) from error


def of_the_machine(error: BaseException) -> bool:
    """Whether the machine caused an error (a full disk, no permission), so that the data's files are not to blame."""
    return is_users(error) and getattr(error, "errno", None) != errno.ENOENT


@contextmanager
def scratch_folder(dataset: str, root: Path, links: Sequence[str], destination: str) -> Iterator[Path]:
    """A temporary folder below ``root`` to download into. A failure is a UserError that lists the links."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch:
        try:
            yield Path(scratch)
        except Exception as error:
            if of_the_machine(error):
                raise
            raise UserError(
                f"{dataset} is not on this machine and could not be downloaded ({type(error).__name__}: {error}). "
                "On a machine with a network, download\n" + "".join(f"    {link}\n" for link in links) + destination
            ) from error


def download_folder(dataset: str, url: str, folder: Path, inside: str) -> None:
    """Download a zip file and unpack its folder ``inside`` as ``folder``, which appears when it is complete.

    Example::

        download_folder("arxiv", "http://.../arxiv.zip", root / "ogbn_arxiv", "arxiv")
    """
    rename = "" if inside == folder.name else f", rename the folder {inside} to {folder.name}"
    with scratch_folder(dataset, folder.parent, [url], f"and unpack it in {folder.parent}{rename}.") as scratch:
        archive = scratch / "archive.zip"
        _download(dataset, url, archive, folder)
        with progress(f"unpacking {dataset}"), zipfile.ZipFile(archive) as file:
            file.extractall(scratch)
        if not (scratch / inside).is_dir():
            raise zipfile.BadZipFile(f"the zip file has no folder {inside}")
        (scratch / inside).rename(folder)


def _download(dataset: str, url: str, path: Path, folder: Path) -> None:
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT) as response,
        open(path, "wb") as file,
        progress(f"downloading {dataset}") as shown,
    ):
        size = int(response.headers.get("Content-Length") or 0)
        need_room(dataset, size, path.parent)
        if size > LARGE:
            notice(f"downloading {dataset}: {gigabytes(size)} from {url} to {folder}")
        received = 0
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            received += len(chunk)
            shown.say(f"{gigabytes(received)} of {gigabytes(size)}" if size else gigabytes(received))
    if size and received != size:
        raise ConnectionError(f"the connection ended after {received} of {size} bytes")
