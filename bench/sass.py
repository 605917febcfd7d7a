"""``python -m bench.sass [--targets sm_90,sm_100] [--only PATTERN]``: the machine code of the main kernels' hot loops.

Instructions an element, width and number of the loads in flight, resident warps: read from what NVRTC made and nvdisasm
prints (the extras ``nvrtc`` and ``bench``), without a GPU; and the same of CUB's kernels where there is an nvcc. A kernel's hot
loop is the one with the widest loads; its elements are what these bring on the main way. It says what grew and what is more than
CUB's, not how long it takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

from . import ptxas

TARGETS = ("sm_90",)
QUICK = ("sum by index", "histogram", "cumsum", "cumsum of a million", "sum", "segments by ids")
"""What the tests look at."""

OF_RESULTS = "Fill|Combine|Parts|Borders|Identity|Sample|Stencil"
"""Kernels that do not read the input, or a few of its elements, or each several times."""

OF_EDGES = {"histogram": "ScanRows"}
"""A kernel that reads the edges of a call's bins."""

REGISTERS, REGISTER_UNIT, WARPS, WARP, BLOCKS = 64 << 10, 256, 64, 32, 32
"""Of a multiprocessor: registers, which warps get by so many; warps, of so many threads; blocks."""
SHARED = {"sm_80": 164 << 10}
"""Shared memory of a multiprocessor; else 228 KB."""


class Unavailable(RuntimeError):
    """There is no disassembler."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a disassembly: the operation with its modifiers, and the numbers of the registers that it names, the first
    operand's apart."""

    operation: str
    target: str
    first: frozenset[int]
    others: frozenset[int]
    conditional: bool = False
    barrier: str = ""

    @property
    def name(self) -> str:
        return self.operation.split(".")[0]

    @functools.cached_property
    def load_bytes(self) -> int:
        """Of a load of input from global memory; 0: it is none. What blocks tell each other is no input."""
        if self.name not in ("LDG", "LD", "LDGSTS") or "STRONG" in self.operation:
            return 0
        bits = re.search(r"\.(?:U|S)?(8|16|64|128)\b", self.operation.replace(".LTC128B", ""))
        return int(bits[1]) // 8 if bits else 4


def disassembler() -> str:
    """Where nvdisasm is. Raises :class:`Unavailable`."""
    try:
        from cuda import pathfinder
    except ImportError as e:
        raise Unavailable("nvdisasm is wanted: pip install 'jaxprims[nvrtc,bench]'") from e
    found = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise Unavailable("nvdisasm is wanted: pip install 'jaxprims[nvrtc,bench]'")
    return found


def disassembled(cubin: bytes) -> str:
    """A cubin in words: its code, and what it says of itself."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([disassembler(), file.name], capture_output=True, text=True, check=True).stdout


_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_REGISTER = re.compile(r"\bR(\d+)\b")


def code(text: str, kernel: str) -> tuple[list[Instruction], dict[str, int]]:
    """A kernel's instructions, and the index of the one behind each label."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith(".text."):
            inside = line == f".text.{kernel}:"
        elif inside and (label := _LABEL.match(line)):
            labels[label[1]] = len(instructions)
        elif inside and (found := _LINE.match(line)):
            instructions.append(_instruction(found[2], found[3], found[1] is not None))
    return instructions, labels


def _instruction(operation: str, operands: str, conditional: bool) -> Instruction:
    to, barrier = re.search(r"`\((\.L_x_\d+)\)", operands), re.search(r"\bB\d+\b", operands)
    first, _, others = operands.partition(",")
    written = {int(r) for r in _REGISTER.findall(first)}
    if "128" in operation.replace("LTC128B", ""):
        written |= {r + k for r in written for k in range(4)}
    elif ".64" in operation or "WIDE" in operation:
        written |= {r + 1 for r in written}
    read = {int(r) for r in _REGISTER.findall(others)}
    conditional |= operation.startswith("BRA") and re.search(r"\bU?P\d|\bUR", operands + operation) is not None
    names = to[1] if to else "", barrier[0] if barrier else ""
    return Instruction(operation, names[0], frozenset(written), frozenset(read), conditional, names[1])


def loops(instructions: Sequence[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last instruction of each: from where a branch goes back to, to the last that goes there."""
    ends: dict[int, int] = {}
    for k, instruction in enumerate(instructions):
        start = labels.get(instruction.target, k + 1) if instruction.name == "BRA" else k + 1
        if start < k:
            ends[start] = k
    return sorted(ends.items())


def hot(instructions: Sequence[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last instruction of the loops with the widest loads that are around no other such loop; of them those whose turn
    brings most, the longest first. Else of the whole kernel."""
    ways = {loop: main_way(instructions, labels, *loop) for loop in loops(instructions, labels)}
    wide = max(map(widest, ways.values()), default=0)
    loads = [loop for loop, way in ways.items() if 0 < wide == widest(way)]
    inner = [(s, e) for s, e in loads if not any((s, e) != (t, f) and s <= t and f <= e for t, f in loads)]
    most = max((streamed(ways[loop]) for loop in inner), default=0)
    best = [loop for loop in inner if streamed(ways[loop]) == most]
    return sorted(best, key=lambda loop: loop[0] - loop[1]) or [(0, len(instructions) - 1)]


def main_way(instructions: Sequence[Instruction], labels: dict[str, int], start: int, end: int) -> list[Instruction]:
    """Of a turn of a loop, or of a kernel up to an exit, the way with most bytes by the loop's widest loads, and of those the
    shortest. Loops inside are turned once."""
    most = widest(instructions[start : end + 1])
    whole = (start, end) == (0, len(instructions) - 1)
    ends: dict[str, int] = {}  # where threads that a barrier brings together go on
    best: dict[int, tuple[int, int, Any]] = {start: (0, 0, None)}  # loads, less instructions, and which
    done: tuple[int, int, Any] = (-1, 0, None)
    for k in range(start, end + 1):
        i = instructions[k]
        if i.name == "BSSY":
            ends[i.barrier] = labels[i.target]
        if k not in best:
            continue
        loads, count, before = best.pop(k)
        here = loads + (i.load_bytes == most), count - 1, (i, before)
        jumps = {"BRA": labels.get(i.target, -1), "BSYNC": ends.get(i.barrier, k + 1), "EXIT": -1, "RET": -1}
        goes = [jumps.get(i.name, k + 1)] + ([k + 1] if i.name in jumps and i.conditional else [])
        for to in goes:
            if k < to <= end:
                best[to] = max(best.get(to, here), here, key=lambda way: way[:2])
            elif i.name == "EXIT" if whole else to == start:
                done = max(done, here, key=lambda way: way[:2])
    way, left = [], done[2]
    while left is not None:
        i, left = left
        way.append(i)
    return way[::-1]


def streamed(way: Sequence[Instruction]) -> int:
    """Bytes that the widest loads bring."""
    sizes, most = [i.load_bytes for i in way], widest(way)
    return sum(size for size in sizes if size == most)


def widest(way: Sequence[Instruction]) -> int:
    """Bytes of its widest load."""
    return max((i.load_bytes for i in way), default=0)


def in_flight(way: Sequence[Instruction]) -> int:
    """The most of the widest loads whose results nobody has asked for."""
    waiting: list[frozenset[int]] = []
    most, wide = 0, widest(way)
    for instruction in way:
        loads = instruction.load_bytes > 0
        wanted = instruction.others if loads else instruction.others | instruction.first
        waiting = [to for to in waiting if not to & wanted]
        if loads and instruction.load_bytes == wide:
            waiting.append(frozenset() if instruction.name == "LDGSTS" else instruction.first)
            most = max(most, len(waiting))
        elif instruction.name == "DEPBAR":
            waiting = [to for to in waiting if to]  # copies past the registers are waited for by groups
    return most


def threads_of(text: str, kernel: str) -> int:
    """The largest block that a kernel allows."""
    _, _, info = text.partition(f".nv.info.{kernel},")
    found = re.search(r"EIATTR_MAX_THREADS\b.*?\.word\s+(0x[0-9a-f]+)", info.partition("\t.section\t")[0], re.S)
    return int(found[1], 16) if found else 1024


def resident_warps(registers: int, static_shared: int, threads: int, target: str) -> int:
    """Of a multiprocessor, by registers and static shared memory: what is shared besides depends on sizes."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_memory = SHARED.get(target, 228 << 10) // (static_shared + 1024)
    return warps * min(REGISTERS // of_warp // warps, WARPS // warps, by_memory, BLOCKS)


def element_bytes(args: Sequence[Any]) -> int:
    """Of one element, in the arrays that are read by the widest loads: those of the widest scalars, as long as the longest."""
    arrays = list(jax.tree.leaves(args))
    longest = max(a.size for a in arrays)
    widths = [a.dtype.itemsize for a in arrays if a.size == longest]
    return sum(width for width in widths if width == max(widths))


KNOWN = {
    "segments by offsets": {"p.ids": "0", "walk.wide": "0"},
    "segments by ids": {"p.ids": "1", "walk.wide": "0"},
}
"""What a kernel asks when it runs, and the answer: it is compiled as if that were known, or the main way would be another."""


def found_in(
    call: str, target: str, name: str, symbol: str, cubin: bytes, size: int, registers: int, static_shared: int
) -> Iterator[dict[str, Any]]:
    """What is said of a kernel's hot loops, if it reads input."""
    text = disassembled(cubin)
    instructions, labels = code(text, symbol)
    for number, (start, end) in enumerate(hot(instructions, labels)):
        way = main_way(instructions, labels, start, end)
        elements = streamed(way) / size
        if not elements:
            return
        loads, threads = in_flight(way), threads_of(text, symbol)
        warps = resident_warps(registers, static_shared, threads, target)
        yield {
            "call": call, "target": target, "kernel": name + f", loop {number + 1}" * (number > 0),
            "instructions": len(instructions), "loop": end + 1 - start, "main_way": len(way), "elements": elements,
            "per_element": round((end + 1 - start) / elements, 2), "main_way_per_element": round(len(way) / elements, 2),
            "load_bytes": widest(way), "loads_in_flight": loads,
            "threads": threads, "registers": registers, "occupancy": warps / WARPS,
            "kilobytes_in_flight": round(warps * WARP * loads * widest(way) / 1024, 1),
        }  # fmt: skip


def rows(name: str, targets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of one of ``ptxas.calls()``: a row for each hot loop of its kernels that read the input, and each target."""
    from jaxprims.targets.cuda import nvrtc
    from jaxprims.targets.cuda.source import only

    fn, args = ptxas.calls()[name]
    for target in targets:
        with jax.enable_x64(any(a.dtype.itemsize == 8 for a in jax.tree.leaves(args))), forced(AnyKernel()):
            kernels = jp.compile_check(fn, *args, target=target, allow_spills=True)
        for k in kernels:
            if re.search(OF_RESULTS, k.name) or k.name == OF_EDGES.get(name) or k.registers is None or k.shared_bytes is None:
                continue
            image, registers = k.cubin, k.registers
            if name in KNOWN:
                text = only(k.source, k.name)
                for question, answer in KNOWN[name].items():
                    text = text.replace(question, answer)
                compiled = nvrtc.compile_cubin(text, target)
                image, registers = compiled.image, compiled.resources[0].registers
            yield from found_in(name, target, k.name, k.name, image, element_bytes(args), registers, k.shared_bytes)


CUB = {
    "sum": ("DeviceReduceKernel", 4),
    "cumsum": ("DeviceScanKernel.*4plus", 4),
    "affine maps": ("DeviceScanKernel.*Compose", 8),
    "segments by offsets": ("DeviceSegmentedReduceKernel", 4),
    "segments by ids": ("DeviceReduceByKeyKernel", 8),
    "histogram": ("DeviceHistogramSweepKernel.*Li256", 4),
}
"""Those for which CUB has a kernel: its name in ``bench/native/cub_loops.cu``, mangled, and the bytes of an element."""


def cub_rows(targets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same of CUB's kernels, as nvcc makes them. Without an nvcc there are none."""
    from jaxprims.targets.cuda import nvrtc

    from .gpu_contestants import nvcc

    source = Path(__file__).parent / "native" / "cub_loops.cu"
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "cub.cubin"
            options = ["-std=c++17", "-O3", f"-arch={target}", "-cubin", "-Xptxas", "-v", "-o", str(cubin)]
            done = subprocess.run([nvcc(), *options, str(source)], capture_output=True, text=True, check=True)
            image = cubin.read_bytes()
        for used in nvrtc.Compiled(image, done.stderr).resources:
            for call, (pattern, size) in CUB.items():
                if re.search(pattern, used.kernel):
                    kernel = f"CUB: {pattern.split('.')[0]}"
                    yield from found_in(call, target, kernel, used.kernel, image, size, used.registers, used.shared_bytes)


def nvcc_version() -> str:
    """Of nvcc, as it says."""
    from .gpu_contestants import nvcc

    said = subprocess.run([nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("release ")[2].partition(",")[0]


def grown(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], by: float = 0.1) -> list[str]:
    """What is worse than it was, by more than a part: in words."""
    before = {(r["call"], r["target"], r["kernel"]): r for r in old}
    found = []
    for r in new:
        was = before.get((r["call"], r["target"], r["kernel"]))
        if was is None:
            continue
        more = [key for key in ("main_way_per_element", "per_element", "instructions") if r[key] > was[key] * (1 + by)]
        less = [key for key in ("load_bytes", "kilobytes_in_flight", "occupancy") if r[key] < was[key] * (1 - by)]
        found += [f"{r['call']}, {r['target']}, {r['kernel']}: {key} {was[key]} -> {r[key]}" for key in [*more, *less]]
    return found


MEANING = """
Of the loop with the widest loads (CUB's kernels without one: of the whole kernel), and of one thread: all its instructions;
those of the main way, the shortest on which a turn makes all these loads, alone and for each element, so that what is not always
done (an update of a bin, a wait) is left out; the widest loads; those under way at once. Resident: warps of a multiprocessor's
64, by registers and static shared memory alone; in flight: KB that they all wait for.
"""


def markdown(result: dict[str, Any]) -> str:
    """A table of all rows."""
    by = f"NVRTC {result['nvrtc']}, jax {result['jax']}" + (f", CUB by nvcc {result['nvcc']}" if result["nvcc"] else "")
    lines = [
        "# Hot loops of the main kernels, in machine code\n",
        f"{result['date']}; {by}. {' '.join(MEANING.split())}\n",
        "| call | kernel | target | instructions | main way | of an element | widest | in flight | registers | resident | KB in"
        " flight |",
        "|" + "---|" * 11,
    ]
    calls = list(dict.fromkeys(r["call"] for r in result["kernels"]))
    for r in sorted(result["kernels"], key=lambda r: calls.index(r["call"])):
        lines.append(
            f"| {r['call']} | {r['kernel']} | {r['target']} | {r['loop']} | {r['main_way']} | {r['main_way_per_element']} |"
            f" {r['load_bytes']} B | {r['loads_in_flight']} | {r['registers']} | {r['occupancy']:.0%} |"
            f" {r['kilobytes_in_flight']} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what is worse than in the report that it replaces."""
    p = argparse.ArgumentParser(prog="python -m bench.sass", description=__doc__)
    p.add_argument("--targets", default=",".join(TARGETS))
    p.add_argument("--only", default="", metavar="PATTERN", help="calls whose name matches")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = p.parse_args(argv)
    from jaxprims.targets.cuda import nvrtc

    from .contestant import Missing

    targets = args.targets.split(",")
    found = []
    for name in ptxas.calls():
        if re.search(args.only, name):
            found += list(rows(name, targets))
            print(f"{name}: {sum(r['call'] == name for r in found)} hot loops")
    compiler, others = "", list[dict[str, Any]]()
    try:
        others = [r for r in cub_rows(targets) if re.search(args.only, r["call"])]
        compiler = nvcc_version()
    except Missing as error:
        print(error)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "nvrtc": nvrtc.version(), "jax": jax.__version__,
        "nvcc": compiler, "targets": targets, "kernels": found + others,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    report = args.out / "sass.json"
    if report.exists():
        print(*grown(json.loads(report.read_text())["kernels"], found), sep="\n")
    report.write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "sass.md").write_text(markdown(result))
    print(args.out / "sass.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
