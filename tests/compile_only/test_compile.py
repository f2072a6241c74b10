"""Every Triton kernel as compiled for GPUs that need not be there: no binary breaks a rule of ``bench.compile.report``.

By default each kernel is compiled for each target once, and the branches and hot loops a few times more. ``-m slow``
compiles all cases, as ``make report`` does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.compile.binary import TARGETS, in_flight, loops
from bench.compile.cases import cases
from bench.compile.report import faults, jobs, quick

ROOT = Path(__file__).parents[2]
KERNELS = {name for case in cases() for target in TARGETS for name in case.launches(target)}


def report(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The report in a process of its own, because tests share theirs with Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    command = [sys.executable, "-m", "bench.compile.report", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def compiled(*arguments: str) -> list[dict]:
    """The rows of a report without a fault."""
    made = report("--json", *arguments)
    assert made.returncode in (0, 1), made.stderr
    rows: list[dict] = json.loads(made.stdout)
    wrong = [f"{row['kernel']}, {row['variant']}, {row['width']}, {row['target']}: {faults(row)}" for row in rows]
    assert not [line for line, row in zip(wrong, rows, strict=True) if faults(row)]
    assert made.returncode == 0
    return rows


def test_every_kernel_for_every_target() -> None:
    rows = compiled("--quick")
    assert {(row["kernel"], row["target"]) for row in rows} == {(name, target) for name in KERNELS for target in TARGETS}
    assert all(row["binary"] > 0 and row["registers"] > 0 for row in rows)
    # The rules about loops are of no use if no row falls under them.
    assert any(row["in_flight"] == 8 for row in rows if row["kernel"] == "spmm")
    assert any(row["width"] == 100 and row["variant"] == "fp32" and row["load_bits"] == 128 for row in rows)


@pytest.mark.slow
def test_every_case_for_every_target() -> None:
    assert len(compiled()) == len(jobs(TARGETS))


def test_quick_compiles_each_branch_for_one_target() -> None:
    every = [(name, case.variant) for case in cases() for name in case.launches("gfx942")]
    branches = [(name, list(cases())[i].variant) for i, name, target in quick(jobs(TARGETS)) if target == "gfx942"]
    assert set(branches) == set(every)


def test_cases_have_different_names() -> None:
    names = [(case.op, case.variant, case.width) for case in cases()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, None),
        (dict(spills=8), "spills"),
        (dict(registers=89), "budget"),
        (dict(atomics=1), "atomics"),
        (dict(load_bits=64), "less than 16 bytes"),
        (dict(load_bits=64, target="gfx942"), None),
        (dict(load_bits=64, kernel="activate"), None),
        (dict(load_bits=64, width=47, in_flight=0), None),
        (dict(load_bits=64, width=100, in_flight=0), "less than 16 bytes"),
        (dict(in_flight=2), "all 8 loads"),
        (dict(in_flight=6, variant="x fp32, history bf16"), None),
        (dict(error="CompilationError: no"), "CompilationError"),
    ],
)
def test_rules(change: dict, rule: str | None) -> None:
    row = dict(
        kernel="spmm", variant="fp32", width=128, target="sm_90", budget=88, registers=80, spills=0, atomics=0,
        load_bits=128, in_flight=8,
    )  # fmt: skip
    found = faults(row | change)
    assert found == [] if rule is None else len(found) == 1 and rule in found[0]


def test_the_report_refuses_to_run_interpreted() -> None:
    made = report("--kernel", "column_sum", TRITON_INTERPRET="1")
    assert made.returncode == 2 and "unset TRITON_INTERPRET" in made.stderr


def test_the_report_refuses_a_filter_that_leaves_nothing() -> None:
    made = report("--kernel", "spmm", "--width", "5")
    assert made.returncode == 2 and "no kernel fits" in made.stderr


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
