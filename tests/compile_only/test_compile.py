"""Every Triton kernel as compiled for real GPUs, none of which has to be there: the binaries are held to their budgets.

conftest.py starts it: it takes minutes.
"""

import re

import pytest

from rest_triton.kernels.gpu.binary import TARGETS, in_flight, loops
from rest_triton.kernels.gpu.cases import cases

from .conftest import start_report

KEYS = [(name, case.variant, case.width, target) for target in TARGETS for case in cases() for name in case.launches(target)]
NVIDIA = [key for key in KEYS if key[3].startswith("sm_")]


def named(keys: list[tuple]) -> list:
    return [pytest.param(key, id="-".join(str(part).replace(", ", "-").replace(" ", "_") for part in key)) for key in keys]


def report(*arguments: str, interpret: bool = False) -> tuple[int, str]:
    """Exit code, and what it says to the person."""
    process = start_report(*arguments, interpret=interpret)
    _, said = process.communicate()
    return process.returncode, said


def test_report_covers_every_case(binaries: dict) -> None:
    assert binaries.keys() == set(KEYS)
    assert len(KEYS) == len(set(KEYS)), "two cases have the same name"


@pytest.mark.parametrize("key", named(KEYS))
def test_binary(binaries: dict, key: tuple) -> None:
    row = binaries[key]
    assert "error" not in row, row.get("error")
    assert row["binary"] > 0
    assert row["spills"] == 0, "registers are spilled to memory"
    assert row["registers"] <= row["budget"]
    # A sum whose order depends on who comes first is not the same twice.
    assert row["atomics"] == 0


def reads_full_rows(key: tuple) -> bool:
    """Whether the kernel walks edges, to rows as wide as 16-byte loads want them."""
    kernel, _, width, _ = key
    return kernel in ("spmm", "spmm_hub_segment", "edge_grad") and width in (128, 256)


def of_two_dtypes(key: tuple) -> bool:
    """Whether x and history differ, so that the tile is two smaller ones."""
    sources = re.match(r"x (\w+), history (\w+)", key[1])
    return sources is not None and sources[1] != sources[2] and "None" not in sources.groups()


@pytest.mark.parametrize("key", named([key for key in NVIDIA if reads_full_rows(key)]))
def test_rows_are_loaded_16_bytes_at_a_time(binaries: dict, key: tuple) -> None:
    assert binaries[key]["load_bits"] == 128


@pytest.mark.parametrize("key", named([key for key in NVIDIA if reads_full_rows(key) and not of_two_dtypes(key)]))
def test_a_tile_of_rows_is_in_flight_before_the_first_is_used(binaries: dict, key: tuple) -> None:
    """One memory latency per tile. What breaks it is the assembler saving registers: see Settings.registers."""
    assert binaries[key]["in_flight"] == 8


def test_width_100_in_float32_is_vectorised(binaries: dict) -> None:
    """Its rows are a multiple of 16 bytes, although not of 16 elements."""
    for target in ("sm_80", "sm_90", "sm_100"):
        assert binaries["spmm", "fp32", 100, target]["load_bits"] == 128


def test_report_refuses_to_run_interpreted() -> None:
    code, said = report("--kernel", "column_sum", interpret=True)
    assert code != 0
    assert "unset TRITON_INTERPRET" in said


def test_report_refuses_a_filter_that_leaves_nothing() -> None:
    code, said = report("--kernel", "spmm", "--width", "5")
    assert code == 2
    assert "no kernel fits" in said


SASS = """\
IADD3 R1, R1, 0x1, RZ ;
.L_x_1:
LDG.E R4, desc[UR4][R2.64] ;
.L_x_0:
LDG.E.128 R8, desc[UR4][R2.64] ;
@!P0 LDG.E.EF.128 R12, desc[UR4][R6.64] ;
FFMA R0, R8, R9, R0 ;
LDG.E.128 R16, desc[UR4][R2.64] ;
@P0 BRA `(.L_x_0) ;
@P1 BRA `(.L_x_1) ;
EXIT ;
.L_x_2:
BRA `(.L_x_2);"""


def test_loops_are_told_from_their_inner_loops() -> None:
    inner, outer = loops(SASS)
    assert len(inner) == 5
    assert [line.split()[0] for line in outer] == ["LDG.E", "@P1"]


def test_in_flight_counts_row_loads_before_the_first_sum() -> None:
    assert in_flight(SASS) == 2
