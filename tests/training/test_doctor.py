"""The doctor command: it checks the installation and its kernels."""

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
from rest_triton.ops.selftest import CHECKS, compare, selftest

CPU = torch.device("cpu")
CPU_KERNELS = importlib.import_module("rest_triton.kernels.cpu")


def wrong() -> set[str]:
    return {op for op, problem in selftest(CPU) if problem}


def test_the_command(tmp_path: Path) -> None:
    """The flag of version 0.1 is accepted."""
    command = [sys.executable, "-m", "rest_triton.doctor", "--no-tests"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    printed = result.stdout
    assert result.returncode == 0 and result.stderr == "", result.stderr
    for name, version in (("python", sys.version.split()[0]), ("torch", importlib.metadata.version("torch"))):
        assert re.search(rf"^{name} +{re.escape(version)}$", printed, re.M)
    assert re.search(r"^CPU: .+, \d+ cores, \d+\.\d [KMG]iB available, \d+ threads$", printed, re.M)
    rates = re.findall(r"^  copies (\S+) GB/s", printed, re.M)
    assert len(rates) == 1 + torch.cuda.device_count() and all(0.1 < float(rate) < 1e5 for rate in rates)
    for op in CHECKS:
        assert len(re.findall(rf"^  {op} +ok$", printed, re.M)) == len(rates), op
    assert "WRONG" not in printed and printed.endswith("All kernels are right.\n")


def test_every_op_is_checked() -> None:
    defined = {name.removesuffix("_definition") for name in ops.__all__ if name.endswith("_definition")}
    assert len(defined) >= 6 and defined == CHECKS.keys()


def spoilt(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with one wrong element in the tensor that it writes, or in the last one that it returns."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = launcher(*args, **kwargs)
        if result is not None:
            return result[:-1]
        next(a for a in args if a is not None).view(-1)[0] += 0.01
        return None

    return run


@pytest.mark.parametrize(
    ("launcher", "op"),
    [
        ("spmm", "history_spmm"),
        ("edge_grad", "history_spmm"),
        ("attention", "history_attention"),
        ("attention_row_grad", "history_attention"),
        ("attention_source_grad", "history_attention"),
        ("activate", "activate"),
        ("activate_backward", "activate"),
        ("column_moments", "column_moments"),
        ("gather_rows", "gather_rows"),
        ("scatter_rows", "scatter_rows"),
        ("halo", "halo"),
        ("sample_neighbours", "sample_neighbours"),
        ("place_nodes", "place_nodes"),
        ("transpose", "transpose"),
    ],
)
def test_one_wrong_element_is_noticed(launcher: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """sparse_linear runs on kernels of other ops."""
    monkeypatch.setattr(CPU_KERNELS, launcher, spoilt(getattr(CPU_KERNELS, launcher)))
    assert wrong() == {op} | ({"sparse_linear"} if launcher in ("spmm", "transpose") else set())


def test_tables_and_stamps_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    activate, scatter = CPU_KERNELS.activate, CPU_KERNELS.scatter_rows

    def writes_no_history(y: Any, h: Any, a: Any, b: Any, rows: Any, *_: Any, **more: Any) -> None:
        activate(y, h, a, b, rows, None, None, **more)

    monkeypatch.setattr(CPU_KERNELS, "activate", writes_no_history)
    monkeypatch.setattr(CPU_KERNELS, "scatter_rows", lambda *args, **more: scatter(*args, **more | {"stamp": None}))
    assert wrong() == {"activate", "scatter_rows"}


def test_a_wrong_kernel_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(CPU_KERNELS, "gather_rows", lambda out, table, index: out.fill_(1))
    monkeypatch.setattr(CPU_KERNELS, "spmm", refused)
    monkeypatch.setattr(doctor, "devices", lambda: [CPU])
    monkeypatch.setattr(doctor, "bandwidth", lambda device: 1e9)
    assert doctor.main([]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"^  gather_rows +WRONG  AssertionError: Tensor-likes are not close! Mismatched elements", printed, re.M
    )
    assert re.search(r"^  history_spmm +WRONG  RuntimeError: no such instruction$", printed, re.M)
    assert re.search(r"^  halo +ok$", printed, re.M)
    assert printed.endswith("WRONG: history_spmm on cpu, gather_rows on cpu, sparse_linear on cpu\n")


def test_comparing() -> None:
    ones = torch.ones(3)
    compare(ones, ones + 1e-6)
    compare(ones[:0], ones[:0])
    for got, expected in (
        (ones, ones + 1e-3),
        (ones.bfloat16(), ones.bfloat16() + 2.0**-7),
        (ones * float("nan"), ones),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (ones[:2], ones),
        (ones.double(), ones),
    ):
        with pytest.raises(AssertionError):
            compare(got, expected)


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
        ("numba", "history_spmm       WRONG  ModuleNotFoundError: import of numba"),
    ],
)
def test_without_a_package(missing: str, message: str, tmp_path: Path) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from rest_triton.doctor import main; sys.exit(main([]))"
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1 and message in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = type("Properties", (), dict(name="A GPU", total_memory=80 << 30, major=9, minor=0))()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert doctor.devices() == [CPU, torch.device("cuda", 0)]
    assert doctor.describe(torch.device("cuda", 0)) == "A GPU, sm_90, 80.0 GiB"


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    gpu = torch.device("cuda", 0)
    assert [problem for _, problem in selftest(gpu)] == [""] * len(CHECKS)
    assert doctor.bandwidth(gpu) > 1e9
