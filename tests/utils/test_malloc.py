"""Kept memory: the page faults of a training loop go away, in a process of its own."""

import subprocess
import sys

import pytest

LOOP = """
import resource, sys, torch
from rest_triton.utils.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for n in range(60):
    if n == 30:  # the heap has grown to what the loop needs
        before = faults()
    torch.ones(10_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's switches")
def test_kept_memory_is_not_faulted_in_again() -> None:
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", LOOP, mode], check=True, capture_output=True, text=True).stdout)
        for mode in ("default", "keep")
    }
    assert faults["keep"] < faults["default"] / 20, faults


BACK = """
from pathlib import Path
import torch
from rest_triton.utils.malloc import give_back, keep_freed_memory
keep_freed_memory()
def held():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS")).split()[1]) >> 10
kept = torch.ones(50_000_000), torch.ones(10)  # the second keeps the heap from shrinking by itself
big = held()
kept = kept[1]
freed = held()
give_back()
print(big, freed, held())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's switches")
def test_kept_memory_can_be_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", BACK], check=True, capture_output=True, text=True)
    big, freed, after = map(int, run.stdout.split())  # MiB
    assert freed > big - 20 and after < big - 150, run.stdout
