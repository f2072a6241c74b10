"""What comes from elsewhere, packages and files: all of it or nothing, and errors that say how to get it by hand."""

import errno
import http.client
import importlib
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...utils.progress import notice, progress

TIMEOUT = 60  # seconds without a byte
LARGE = 10**9  # bytes; a person is told before a download of more than that


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def need_room(dataset: str, size: int, folder: Path) -> None:
    """Refuse to write ``size`` bytes where they do not fit. (Behind a map, a full disk would end the process.)"""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(
            errno.ENOSPC,
            f"{dataset} needs {gigabytes(size)} in {folder}, which has {gigabytes(free)} free; make room or move the root",
        )


def require(dataset: str, module: str) -> Any:
    """Import a module of a package that not every user has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(dataset, error) from error


def missing_package(dataset: str, error: ImportError) -> ImportError:
    return ImportError(
        f'{dataset} needs a package that cannot be imported ({error}); install it with pip install "rest_triton[datasets]"'
    )


def by_hand(dataset: str, why: object, links: Sequence[str], what_then: str) -> ConnectionError:
    """The error for a download that failed: what to get where, and where to put it."""
    reason = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return ConnectionError(
        f"{dataset} is not on this machine and could not be downloaded ({reason}). Where there is a network, download\n"
        + "".join(f"    {link}\n" for link in links)
        + what_then
    )


def _remove_if_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A new folder inside ``root``, gone afterwards; so is ``root``, if it was not there and nothing was put into it."""
    absent = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _remove_if_empty(absent)


@contextmanager
def nothing_new_on_failure(folder: Path) -> Iterator[None]:
    """If the block fails, delete what it added to ``folder``, and the folders it made for it. Nothing older is touched."""
    absent = [f for f in (folder, *folder.parents) if not f.exists()]
    before = set(folder.rglob("*"))
    try:
        yield
    except BaseException:  # also when the user stops it
        added = sorted(set(folder.rglob("*")) - before, reverse=True)  # a folder after what is in it
        for path in added:
            if path.is_dir() and not path.is_symlink():
                _remove_if_empty([path])
            else:
                path.unlink()
        _remove_if_empty(absent)
        raise


def download_folder(dataset: str, url: str, folder: Path, inside: str) -> None:
    """Download a zip file and unpack it as ``folder``, which appears when everything is there.

    Args:
        inside: what the folder is called in the zip file.

    Example::

        download_folder("arxiv", "http://.../arxiv.zip", root / "ogbn_arxiv", "arxiv")
    """
    renamed = "" if inside == folder.name else f", rename the folder {inside} to {folder.name}"
    then = f"and unpack it in {folder.parent}{renamed}: {folder} is what is looked for."
    with scratch_folder(folder.parent) as scratch:
        archive = scratch / "archive.zip"
        _download(dataset, url, archive, folder, then)
        with progress(f"unpacking {dataset}"):
            try:
                with zipfile.ZipFile(archive) as file:
                    file.extractall(scratch)
            except zipfile.BadZipFile as error:
                raise by_hand(dataset, error, [url], then) from error
        if not (scratch / inside).is_dir():
            raise by_hand(dataset, f"the zip file has no folder {inside}", [url], then)
        (scratch / inside).rename(folder)


def _download(dataset: str, url: str, path: Path, folder: Path, then: str) -> None:
    failures = (OSError, http.client.HTTPException)
    try:
        response = urllib.request.urlopen(url, timeout=TIMEOUT)
    except failures as error:
        raise by_hand(dataset, error, [url], then) from error
    with response, open(path, "wb") as file, progress(f"downloading {dataset}") as shown:
        size = int(response.headers.get("Content-Length") or 0)
        need_room(dataset, size, path.parent)
        if size > LARGE:
            notice(f"downloading {dataset}: {gigabytes(size)} from {url} to {folder}")
        received = 0
        while True:
            try:
                piece = response.read(1 << 20)
            except failures as error:
                raise by_hand(dataset, error, [url], then) from error
            if not piece:
                break
            file.write(piece)
            received += len(piece)
            shown.say(f"{gigabytes(received)} of {gigabytes(size)}" if size else gigabytes(received))
    if size and received != size:
        raise by_hand(dataset, f"the connection ended after {received} of {size} bytes", [url], then)
