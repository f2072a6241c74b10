"""Memory kept by malloc avoids page faults and can be returned. Each test runs in a separate process."""

import subprocess
import sys

import pytest

LOOP = """
import resource, sys, torch
from pathlib import Path
from rest_triton.utils.malloc import give_back, keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def held():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS")).split()[1]) >> 10
for n in range(20):
    if n == 10:  # the heap has grown to what the loop needs
        before = faults()
    torch.ones(10_000_000)
taken = faults() - before
kept = torch.ones(50_000_000), torch.ones(10)  # the second keeps the heap from shrinking by itself
big = held()
kept = kept[1]
freed = held()
give_back()
print(taken, big, freed, held())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's switches")
def test_kept_memory_is_not_faulted_in_again_and_can_be_given_back() -> None:
    said = {
        mode: subprocess.run([sys.executable, "-c", LOOP, mode], check=True, capture_output=True, text=True).stdout
        for mode in ("default", "keep")
    }
    faults, big, freed, after = map(int, said["keep"].split())  # MiB
    assert faults < int(said["default"].split()[0]) / 20, said
    assert freed > big - 20 and after < big - 150, said
