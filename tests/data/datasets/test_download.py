"""Downloads: whole or not at all."""

import io
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from rest_triton.data.datasets import download
from rest_triton.data.datasets.download import download_folder, need_room, nothing_new_on_failure, scratch_folder


class Response(io.BytesIO):
    """What a server sends, and how much it said it would."""

    def __init__(self, data: bytes, announced: int | None) -> None:
        super().__init__(data)
        self.headers = {} if announced is None else {"Content-Length": str(announced)}


@pytest.fixture
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "arxiv.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("arxiv/raw/edge.csv.gz", b"edges")
        file.writestr("arxiv/processed/", b"")
        file.writestr("arxiv/RELEASE_v1.txt", b"")
    return path


def serve(monkeypatch: pytest.MonkeyPatch, data: bytes, announced: int | None) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Response(data, announced))


def test_through_urllib(archive: Path, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    download_folder("arxiv", archive.as_uri(), root / "ogbn_arxiv", "arxiv")
    assert [p.name for p in root.iterdir()] == ["ogbn_arxiv"]
    assert (root / "ogbn_arxiv" / "raw" / "edge.csv.gz").read_bytes() == b"edges"
    assert (root / "ogbn_arxiv" / "processed").is_dir() and (root / "ogbn_arxiv" / "RELEASE_v1.txt").exists()


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(
    "fault, reason",
    [("cut", "the connection ended after"), ("page", "BadZipFile"), ("other", "has no folder products")],
)
def test_nothing_is_left_of_a_bad_download(
    fault: str, reason: str, announced: bool, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archive.read_bytes()
    data = {"cut": whole[:-20], "page": b"<html>Not Found</html>", "other": whole}[fault]
    size = len(whole) if fault == "cut" else len(data)
    serve(monkeypatch, data, size if announced else None)
    if fault == "cut" and not announced:
        reason = "BadZipFile"
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ConnectionError, match=reason) as caught:
        download_folder("products", "http://there/products.zip", tmp_path / "ogbn_products", "products")
    text = str(caught.value)
    assert "http://there/products.zip" in text and "rename the folder products to ogbn_products" in text
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("stop", [ConnectionResetError("reset"), KeyboardInterrupt()])
def test_nothing_is_left_when_it_stops(stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(Response):
        def read(self, *_: Any) -> bytes:
            if self.tell() > 0:
                raise stop
            return super().read(3)

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Stopping(b"PK and more", 11))
    with pytest.raises((ConnectionError, KeyboardInterrupt)):
        download_folder("products", "http://there/products.zip", tmp_path / "root" / "ogbn_products", "products")
    assert list(tmp_path.iterdir()) == []


def test_large_downloads_are_announced(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = archive.read_bytes()
    serve(monkeypatch, whole, len(whole))
    download_folder("arxiv", "http://there/arxiv.zip", tmp_path / "small", "arxiv")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(download, "LARGE", len(whole) - 1)
    download_folder("arxiv", "http://there/arxiv.zip", tmp_path / "large", "arxiv")
    assert capsys.readouterr().err == f"downloading arxiv: 0.0 GB from http://there/arxiv.zip to {tmp_path / 'large'}\n"


def test_no_room(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: namedtuple("usage", "free")(5 * 10**9))
    need_room("products", 5 * 10**9, tmp_path)
    serve(monkeypatch, archive.read_bytes(), 6 * 10**9)
    with pytest.raises(OSError, match=r"products needs 6.0 GB in .*, which has 5.0 GB free"):
        download_folder("products", "http://there/products.zip", tmp_path / "ogbn_products", "products")
    assert list(tmp_path.iterdir()) == []


def test_scratch_is_gone_and_what_was_put_beside_it_stays(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    with scratch_folder(root) as scratch:
        (scratch / "file").write_text("x")
        assert scratch.parent == root
    assert not (tmp_path / "a").exists()
    with scratch_folder(root) as scratch:
        (root / "result").write_text("x")
    assert [p.name for p in root.iterdir()] == ["result"]


@pytest.mark.parametrize("stop", [KeyError, KeyboardInterrupt])
def test_nothing_new_on_failure(stop: type[BaseException], tmp_path: Path) -> None:
    old = tmp_path / "folder" / "old"
    old.mkdir(parents=True)
    (old / "file").write_text("x")
    with pytest.raises(stop), nothing_new_on_failure(tmp_path / "folder"):
        (old / "new").write_text("x")
        (tmp_path / "folder" / "deep" / "er").mkdir(parents=True)
        (tmp_path / "folder" / "deep" / "er" / "file").write_text("x")
        raise stop
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "folder", old, old / "file"]
    with pytest.raises(stop), nothing_new_on_failure(tmp_path / "x" / "y"):
        (tmp_path / "x" / "y" / "z").mkdir(parents=True)
        raise stop
    assert not (tmp_path / "x").exists()
    with nothing_new_on_failure(tmp_path / "kept"):
        (tmp_path / "kept").mkdir()
    assert (tmp_path / "kept").exists()
