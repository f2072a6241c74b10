"""Downloads: complete or absent."""

import io
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from rest_triton.data.datasets import download
from rest_triton.data.datasets.download import download_folder
from rest_triton.utils.errors import UserError


class Response(io.BytesIO):
    """What a server sends, and the length it announces."""

    def __init__(self, data: bytes, announced: int | None) -> None:
        super().__init__(data)
        self.headers = {} if announced is None else {"Content-Length": str(announced)}


@pytest.fixture
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "arxiv.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("arxiv/raw/edge.csv.gz", b"edges")
        file.writestr("arxiv/processed/", b"")
    return path


def serve(monkeypatch: pytest.MonkeyPatch, data: bytes, announced: int | None) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Response(data, announced))


def test_through_urllib(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "new" / "root"
    download_folder("arxiv", archive.as_uri(), root / "ogbn_arxiv", "arxiv")
    assert [p.name for p in root.iterdir()] == ["ogbn_arxiv"]
    assert (root / "ogbn_arxiv" / "raw" / "edge.csv.gz").read_bytes() == b"edges"
    assert (root / "ogbn_arxiv" / "processed").is_dir() and capsys.readouterr().err == ""
    monkeypatch.setattr(download, "LARGE", 1)
    download_folder("arxiv", archive.as_uri(), root / "large", "arxiv")
    assert capsys.readouterr().err == f"downloading arxiv: 0.0 GB from {archive.as_uri()} to {root / 'large'}\n"


@pytest.mark.parametrize(
    ("fault", "announced", "reason"),
    [
        ("cut", True, "the connection ended after"),
        ("cut", False, "BadZipFile"),
        ("page", True, "BadZipFile"),
        ("other", True, "has no folder products"),
    ],
)
def test_a_bad_download_leaves_nothing(
    fault: str, announced: bool, reason: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archive.read_bytes()
    data = {"cut": whole[:-20], "page": b"<html>Not Found</html>", "other": whole}[fault]
    serve(monkeypatch, data, (len(whole) if fault == "cut" else len(data)) if announced else None)
    with pytest.raises(UserError, match=reason) as caught:
        download_folder("products", "http://there/products.zip", tmp_path / "ogbn_products", "products")
    text = str(caught.value)
    assert "http://there/products.zip" in text and "rename the folder products to ogbn_products" in text
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_not_a_failed_download(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: namedtuple("usage", "free")(5 * 10**9))
    download.need_room("products", 5 * 10**9, tmp_path)
    serve(monkeypatch, archive.read_bytes(), 6 * 10**9)
    with pytest.raises(UserError, match=r"^products needs 6.0 GB in .*, which has 5.0 GB free"):
        download_folder("products", "http://there/products.zip", tmp_path / "ogbn_products", "products")
    assert not any(tmp_path.iterdir())
