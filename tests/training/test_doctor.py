"""The command that says what is here, and whether it works."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rest_triton import doctor, ops
from rest_triton.ops.selftest import CHECKS, Verdict, compare, selftest
from rest_triton.utils import bandwidth

CPU = torch.device("cpu")


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rest_triton.doctor", "--no-tests"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = result.stdout
    assert result.returncode == 0 and result.stderr == "", result.stderr
    for name, version in (("python", sys.version.split()[0]), ("torch", importlib.metadata.version("torch"))):
        assert re.search(rf"^  {name} +{re.escape(version)}$", said, re.M)
    assert re.search(r"^  processor +\S.* cores, \d+ threads", said, re.M) and re.search(
        r"^  memory +\S+ GiB av", said, re.M
    )
    assert re.search(r"^CPU: Numba kernels on .* \(\d+ threads\), compiled into /", said, re.M)
    for op in CHECKS:
        assert re.search(rf"^  {op} +ok  largest difference \d\.\de[-+]\d\d$", said, re.M), op
    for what in ("copy", "gather_rows", "history_spmm"):
        rates = re.findall(rf"^  {what} +(\S+) GB/s", said, re.M)
        assert len(rates) == 1 + torch.cuda.device_count() and all(0.01 < float(rate) < 1e5 for rate in rates)
    assert "WRONG" not in said and said.endswith("All is well.\n")
    assert ("no GPU" in said.splitlines()) != torch.cuda.is_available()


def test_every_op_is_checked() -> None:
    defined = {name.removesuffix("_definition") for name in ops.__all__ if name.endswith("_definition")}
    assert len(defined) >= 6 and defined <= CHECKS.keys()


def spoilt(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """Right but for one element of what it writes, or for the last of what it returns."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = launcher(*args, **kwargs)
        if result is not None:
            return result[:-1]
        next(a for a in args if a is not None).view(-1)[0] += 0.01
        return None

    return run


@pytest.mark.parametrize(
    ("launcher", "wrong"),
    [
        ("spmm", {"history_spmm", "history_spmm backward", "history_spmm weights"}),
        ("edge_grad", {"history_spmm weights"}),
        ("attention", {"history_attention"}),
        ("attention_row_grad", {"history_attention"}),
        ("attention_source_grad", {"history_attention"}),
        ("activate", {"activate", "activate backward"}),  # whose mask is where the result is positive
        ("activate_backward", {"activate backward"}),
        ("column_moments", {"column_moments"}),
        ("gather_rows", {"gather_rows"}),
        ("scatter_rows", {"scatter_rows"}),
        ("halo", {"halo"}),
    ],
)
def test_one_wrong_element_is_noticed(launcher: str, wrong: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("rest_triton.kernels.cpu")
    monkeypatch.setattr(module, launcher, spoilt(getattr(module, launcher)))
    assert {verdict.op for verdict in selftest(CPU) if verdict.problem} == wrong


def test_what_is_written_on_the_side_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("rest_triton.kernels.cpu")
    activate, scatter = module.activate, module.scatter_rows
    monkeypatch.setattr(
        module, "activate", lambda y, h, a, b, rows, *_, **more: activate(y, h, a, b, rows, None, None, **more)
    )
    monkeypatch.setattr(module, "scatter_rows", lambda *args, **more: scatter(*args, **more | {"stamp": None}))
    assert {verdict.op for verdict in selftest(CPU) if verdict.problem} == {"activate", "scatter_rows"}


def test_a_broken_kernel_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module("rest_triton.kernels.cpu")
    monkeypatch.setattr(module, "gather_rows", lambda out, table, index: out.fill_(1))

    def refused(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such instruction\nand more")

    monkeypatch.setattr(module, "spmm", refused)
    monkeypatch.setattr(doctor, "devices", lambda: [CPU])
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^  gather_rows +WRONG  largest difference \d\.\de\+00, allowed ", said, re.M)
    assert re.search(r"^  history_spmm +WRONG  RuntimeError: no such instruction$", said, re.M)
    assert re.search(r"^  halo +ok", said, re.M) and "GB/s" not in said and said.endswith("Something is WRONG, see above.\n")


def test_comparing() -> None:
    ones = torch.ones(3)
    assert compare(ones, ones + 1e-6) == (pytest.approx(9.5e-7, rel=0.01), "")
    assert compare(ones[:0], ones[:0]) == (0.0, "")
    for got, expected in (
        (ones, ones + 1e-3),
        (ones.bfloat16(), ones.bfloat16() + 2.0**-7),
        (ones * float("nan"), ones),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (ones[:2], ones),
        (ones.double(), ones),
    ):
        assert compare(got, expected)[1], (got, expected)
    assert str(Verdict("halo", 1.23e-6)) == f"{'halo':<22}  ok  largest difference 1.2e-06"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("ogb", "pymetis"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = doctor.versions()
    assert found["ogb"] == found["pymetis"] == "not installed" and found["numpy"] == real("numpy")
    assert list(found) == ["python", "rest_triton", *doctor.PACKAGES]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("torch", "WRONG: torch cannot be imported"),
        ("numba", "CPU: no kernels: Numba cannot be imported"),
    ],
)
def test_without_a_package(missing: str, message: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from rest_triton.doctor import main; sys.exit(main(['--no-tests']))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1 and message in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_the_tests_that_need_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    said, fine = doctor.gpu_tests(folder)
    assert fine and "are not here" in said and str(folder) in said
    (folder / "conftest.py").write_text(
        "def pytest_configure(config):\n    config.addinivalue_line('markers', 'gpu: needs a GPU')\n"
    )
    test = "import pytest\n@pytest.mark.gpu\ndef test_one():\n    assert {}\ndef test_other():\n    assert False\n"
    (folder / "test_it.py").write_text(test.format(True))
    assert doctor.gpu_tests(folder) == ("the tests that need a GPU: ok", True)
    assert "1 passed, 1 deselected" in capfd.readouterr().out
    (folder / "test_it.py").write_text(test.format("1 + 1 == 3"))
    assert doctor.gpu_tests(folder) == ("the tests that need a GPU: WRONG, pytest gave 1", False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said, fine = doctor.gpu_tests(folder)
    assert fine and "pytest is not installed" in said


@pytest.mark.parametrize(("fine", "skip", "status"), [(True, False, 0), (False, False, 1), (False, True, 0)])
def test_with_a_gpu(
    fine: bool, skip: bool, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which tests are run, and what they count, with a GPU that is made up."""
    gpu = torch.device("cuda", 0)
    properties = type("Properties", (), dict(name="A GPU", total_memory=80 << 30, major=9, minor=0))()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    examined: list[torch.device] = []

    def examine(device: torch.device) -> bool:
        examined.append(device)
        return True

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr(doctor, "gpu_tests", lambda tests: (f"ran {tests.name}", fine))
    assert doctor.main(["--no-tests"] if skip else []) == status
    said = capsys.readouterr().out
    assert "CUDA:0: A GPU, 80.0 GiB, sm_90: Triton kernels" in said and examined == [CPU, gpu]
    assert ("ran tests" in said) != skip and "no GPU" not in said


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    gpu = torch.device("cuda", 0)
    assert [verdict.problem for verdict in selftest(gpu)] == [""] * len(CHECKS)
    assert [line.split()[0] for line in bandwidth.bandwidths(gpu)] == ["copy", "gather_rows", "history_spmm", "pinned"]


def test_the_best_of_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 5.0, 5.0, 7.0, 7.0, 10.0, 10.0])  # the begin; then three rounds of 5, 2 and 3 seconds
    monkeypatch.setattr("rest_triton.utils.bandwidth.time.perf_counter", lambda: next(clock))
    runs: list[int] = []
    assert bandwidth.best_seconds(lambda: runs.append(1), CPU, seconds=1) == 2.0 and len(runs) == 4
