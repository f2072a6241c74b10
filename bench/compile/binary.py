"""Compiles a launch for a GPU that need not be there, and reads from the binary what it will cost.

What is compiled is what a launcher launched under ``launch.recording``. No argument of our kernels is specialised on
its value or alignment, so the signature follows from dtypes alone, as it does at run time.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from rest_triton.kernels.gpu.launch import Settings

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Launch:
    """One recorded launch."""

    kernel: object
    arguments: dict
    settings: Settings

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__.removesuffix("_kernel")


@dataclass(frozen=True)
class Cost:
    """What a binary needs: registers per thread, spilled and shared bytes, resident warps over the most possible."""

    registers: int
    spills: int
    shared: int
    occupancy: float
    binary: int  # bytes
    load_bits: int  # the widest load of elements (indices are not counted)
    in_flight: int  # 16-byte loads that an innermost loop issues before it uses the first; 0 if unknown
    atomics: int


def signature(launch: Launch) -> tuple[dict[str, str], dict[str, object]]:
    """Types of the arguments and values of the compile-time ones: what a binary depends on besides the target."""
    types, constants = {}, {}
    for parameter in launch.kernel.params:
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            types[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, Tensor):
            assert parameter.do_not_specialize_on_alignment, f"{launch.name}: {parameter.name} is specialised"
            types[parameter.name] = _POINTERS[value.dtype]
        else:
            assert parameter.do_not_specialize, f"{launch.name}: {parameter.name} is specialised"
            types[parameter.name] = parameter.annotation_type
    return types, constants


def compile_launch(launch: Launch, target: str) -> CompiledKernel:
    """The binary of ``launch`` for ``target``."""
    types, constants = signature(launch)
    options = launch.settings.options(amd=TARGETS[target].backend == "hip")
    return triton.compile(ASTSource(launch.kernel, types, constexprs=constants), TARGETS[target], options)


def cost(compiled: CompiledKernel, target: str) -> Cost:
    """What ``compiled`` needs, by the assembler's own account."""
    return (_nvidia_cost if TARGETS[target].backend == "cuda" else _amd_cost)(compiled, target)


def _nvidia_cost(compiled: CompiledKernel, target: str) -> Cost:
    ptx, shared = compiled.asm["ptx"], compiled.metadata.shared
    registers, spills = _ptxas(ptx, TARGETS[target].arch)
    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)", ptx)
    load_bits = max((int(count or 1) * int(bits) for count, bits in loads if bits != "64"), default=0)
    return Cost(
        registers=registers,
        spills=spills,
        shared=shared,
        occupancy=_nvidia_occupancy(registers, compiled.metadata.num_warps, shared, target),
        binary=len(compiled.asm["cubin"]),
        load_bits=load_bits,
        # Most of a report's time is disassembly: not of binaries that have no such loads.
        in_flight=in_flight(sass(compiled)) if load_bits == 128 else 0,
        atomics=len(re.findall(r"^\s*(?:@\S+\s+)?(?:atom|red)\.", ptx, re.MULTILINE)),
    )


def _amd_cost(compiled: CompiledKernel, target: str) -> Cost:
    asm, shared = compiled.asm["amdgcn"], compiled.metadata.shared
    registers, *spills = (
        int(re.search(rf"\.{name}:\s+(\d+)", asm).group(1))
        for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
    )
    loads = re.findall(r"(?:global|buffer)_load_(?:dword(x\d)?\b|[us]\w+)", asm)
    return Cost(
        registers=registers,
        spills=sum(spills),
        shared=shared,
        occupancy=_amd_occupancy(registers, compiled.metadata.num_warps, shared),
        binary=len(compiled.asm["hsaco"]),
        load_bits=max((32 * int(count[1:] or 1) if count else 32 for count in loads), default=0),
        in_flight=0,
        atomics=len(re.findall(r"(?:global|buffer|flat)_atomic", asm)),
    )


def _ptxas(ptx: str, arch: int) -> tuple[int, int]:
    """Registers per thread and bytes spilled, by the assembler and with the options that Triton itself uses."""
    tool = _TOOLS / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    name = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [tool, "-v", "--regAllocOptLevel=2", f"--gpu-name={name}", file.name, "-o", os.devnull]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = int(re.search(r"Used (\d+) registers", log).group(1))
    stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log).groups()
    return registers, int(stores) + int(loads)


def _nvidia_occupancy(registers: int, warps: int, shared: int, target: str) -> float:
    """Resident warps over the 64 that a multiprocessor can hold: 64 Ki registers, 32 programs, its shared memory."""
    per_warp = -(-registers // 8) * 8 * 32
    programs = min(32, 64 // warps, 65536 // (per_warp * warps))
    if shared:
        # Each program takes 1 KiB for the system besides its own, in steps of 128 bytes.
        programs = min(programs, (164 if target == "sm_80" else 228) * 1024 // (-(-shared // 128) * 128 + 1024))
    return programs * warps / 64


def _amd_occupancy(registers: int, warps: int, shared: int) -> float:
    """Resident waves over the 32 of a compute unit (8 on each SIMD): 512 registers per lane, 64 KiB shared."""
    waves = 4 * min(8, 512 // max(-(-registers // 8) * 8, 8))
    if shared:
        waves = min(waves, 65536 // shared * warps)
    return waves / 32


def sass(compiled: CompiledKernel) -> str:
    """The machine code of an NVIDIA binary, one instruction per line."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([_TOOLS / "nvdisasm", "-c", file.name], check=True, capture_output=True, text=True).stdout
    lines = (re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line.endswith(";") or re.match(r"\.L_x_\d+:", line))


def loops(code: str) -> list[list[str]]:
    """The instructions of every loop in ``code`` (as ``sass`` gives it), without those of the loops inside it."""
    lines = code.splitlines()
    labels = {line.split(":")[0]: number for number, line in enumerate(lines) if line.startswith(".L_x_")}
    taken: set[int] = set()
    found = []
    for number, line in enumerate(lines):
        jump = re.search(r"\bBRA\b.*?(\.L_x_\d+)", line)
        # A jump to itself ends every binary: it is no loop.
        if jump and labels[jump.group(1)] < number - 1:
            span = range(labels[jump.group(1)], number + 1)
            found.append([lines[i] for i in span if i not in taken and lines[i].endswith(";")])
            taken.update(span)
    return found


_ROW_LOAD = re.compile(r"LDG\.E(\.\w+)*\.128")
_CLASSES = {
    "row loads": _ROW_LOAD,
    "index loads": re.compile(r"LDG"),
    "multiply and add": re.compile(r"F(FMA|MUL|ADD)"),
    "shuffles": re.compile(r"SHFL"),
    "shared memory": re.compile(r"(LDS|STS|BAR)"),
    # bfloat16 to float32 is a shift by 16 bits for one half of a word and a mask for the other.
    "conversions": re.compile(r"(PRMT|F2F|HADD2\.F32|SHF\.L\.U32|IMAD\.U32 .*0x10000|LOP3\.LUT .*0xffff0000)"),
}


def _opcode(instruction: str) -> str:
    return re.sub(r"^@!?U?P\w+\s+", "", instruction)


def in_flight(code: str) -> int:
    """16-byte loads that every loop with such loads issues before the first float operation: the least over loops."""
    counts = []
    for body in loops(code):
        loads = [bool(_ROW_LOAD.match(_opcode(instruction))) for instruction in body]
        first = next((i for i, instruction in enumerate(body) if re.match(r"F(FMA|MUL|ADD)", _opcode(instruction))), None)
        if any(loads) and first is not None:
            counts.append(sum(loads[:first]))
    return min(counts, default=0)


def mix(instructions: list[str]) -> Counter:
    """How many instructions of each kind; what is in no class is addresses, predicates and control."""
    counts: Counter = Counter()
    for instruction in map(_opcode, instructions):
        kind = next((name for name, pattern in _CLASSES.items() if pattern.match(instruction)), "addresses, control")
        counts[kind] += 1
    return counts
