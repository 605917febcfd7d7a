"""``python -m bench.sass [--targets sm_90,sm_100] [--only PATTERN]``: the machine code of the main kernels' hot loops.

Instructions an element, width and number of the loads in flight, resident warps: read from what NVRTC made and nvdisasm
prints (the extras ``nvrtc`` and ``bench``), without a GPU. A kernel's hot loop is the one that reads most of its input in a
turn; its elements are what the widest of its loads bring. Everything between its ends counts once, ways around included: it
says what grew, not how long it takes.
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

from . import ptxas

TARGETS = ("sm_90",)
QUICK = ("sum by index", "cumsum", "sum", "segments by ids")
"""What the tests look at."""

OF_RESULTS = "Fill|Combine|Parts|Borders|Identity|Sample|Stencil"
"""Kernels that do not read the input, or a few of its elements, or each several times."""

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


_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
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
            instructions.append(_instruction(found[1], found[2]))
    return instructions, labels


def _instruction(operation: str, operands: str) -> Instruction:
    to = re.search(r"`\((\.L_x_\d+)\)", operands)
    first, _, others = operands.partition(",")
    written = {int(r) for r in _REGISTER.findall(first)}
    if "128" in operation.replace("LTC128B", ""):
        written |= {r + k for r in written for k in range(4)}
    elif ".64" in operation or "WIDE" in operation:
        written |= {r + 1 for r in written}
    read = {int(r) for r in _REGISTER.findall(others)}
    return Instruction(operation, to[1] if to else "", frozenset(written), frozenset(read))


def loops(instructions: Sequence[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """First and last instruction of each: from where a branch goes back to, to the last that goes there."""
    ends: dict[int, int] = {}
    for k, instruction in enumerate(instructions):
        start = labels.get(instruction.target, k + 1) if instruction.name == "BRA" else k + 1
        if start < k:
            ends[start] = k
    return sorted(ends.items())


def hot(instructions: Sequence[Instruction], labels: dict[str, int]) -> Sequence[Instruction]:
    """The loop that reads most of the input in a turn, the shortest of those that do; else the whole kernel."""
    found = [instructions[start : end + 1] for start, end in loops(instructions, labels)]
    found = [loop for loop in found if streamed(loop)]
    return max(found, key=lambda loop: (streamed(loop), -len(loop)), default=instructions)


def streamed(loop: Sequence[Instruction]) -> int:
    """Bytes that the widest loads of a loop's turn bring: the others are the way around for what is not aligned."""
    sizes, most = [i.load_bytes for i in loop], widest(loop)
    return sum(size for size in sizes if size == most)


def widest(loop: Sequence[Instruction]) -> int:
    """Bytes of its widest load."""
    return max((i.load_bytes for i in loop), default=0)


def in_flight(loop: Sequence[Instruction]) -> int:
    """The most of a loop's widest loads whose results nobody has asked for."""
    waiting: list[frozenset[int]] = []
    most, wide = 0, widest(loop)
    for instruction in loop:
        loads = instruction.load_bytes > 0
        wanted = instruction.others if loads else instruction.others | instruction.first
        waiting = [to for to in waiting if not to & wanted]
        if loads and instruction.load_bytes == wide:
            waiting.append(frozenset() if instruction.name == "LDGSTS" else instruction.first)
            most = max(most, len(waiting))
        elif instruction.name == "DEPBAR":
            waiting = [to for to in waiting if to]  # copies past the registers are waited for by groups
    return most


def threads_of(text: str) -> int:
    """The largest block that a kernel allows."""
    found = re.search(r"EIATTR_MAX_THREADS\b.*?\.word\s+(0x[0-9a-f]+)", text, re.S)
    return int(found[1], 16) if found else 1024


def resident_warps(registers: int, static_shared: int, threads: int, target: str) -> int:
    """Of a multiprocessor, by registers and static shared memory: what is shared besides depends on sizes."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_memory = SHARED.get(target, 228 << 10) // (static_shared + 1024)
    return warps * min(REGISTERS // of_warp // warps, WARPS // warps, by_memory, BLOCKS)


def element_bytes(args: Sequence[Any]) -> int:
    """Of one element, all arrays as long as the longest: others are not read by elements."""
    arrays = list(jax.tree.leaves(args))
    longest = max(a.size for a in arrays)
    return sum(a.dtype.itemsize for a in arrays if a.size == longest)


def rows(name: str, targets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of one of ``ptxas.calls()``: a row for each of its kernels that reads the input in a loop, and each target."""
    fn, args = ptxas.calls()[name]
    size = element_bytes(args)
    for target in targets:
        with jax.enable_x64(any(a.dtype.itemsize == 8 for a in jax.tree.leaves(args))):
            kernels = jp.compile_check(fn, *args, target=target, allow_spills=True)
        for kernel in kernels:
            if re.search(OF_RESULTS, kernel.name):
                continue
            text = disassembled(kernel.cubin)
            instructions, labels = code(text, kernel.name)
            loop = hot(instructions, labels)
            brings = streamed(loop)
            if not brings or len(loop) == len(instructions):
                continue
            loads = in_flight(loop)
            flight = loads * widest(loop)
            threads = threads_of(text)
            warps = resident_warps(kernel.registers, kernel.shared_bytes, threads, target)
            yield {
                "call": name, "target": target, "kernel": kernel.name, "instructions": len(instructions), "loop": len(loop),
                "elements": brings / size, "per_element": round(len(loop) * size / brings, 2),
                "load_bytes": widest(loop), "loads_in_flight": loads,
                "threads": threads, "registers": kernel.registers, "occupancy": warps / WARPS,
                "kilobytes_in_flight": round(warps * WARP * flight / 1024, 1),
            }  # fmt: skip


def grown(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], by: float = 0.1) -> list[str]:
    """What is worse than it was, by more than a part: in words."""
    before = {(r["call"], r["target"], r["kernel"]): r for r in old}
    found = []
    for r in new:
        was = before.get((r["call"], r["target"], r["kernel"]))
        if was is None:
            continue
        more = [key for key in ("per_element", "instructions") if r[key] > was[key] * (1 + by)]
        less = [key for key in ("load_bytes", "kilobytes_in_flight", "occupancy") if r[key] < was[key] * (1 - by)]
        found += [f"{r['call']}, {r['target']}, {r['kernel']}: {key} {was[key]} -> {r[key]}" for key in [*more, *less]]
    return found


def markdown(result: dict[str, Any]) -> str:
    """A table of all rows."""
    lines = [
        "# Hot loops of the main kernels, in machine code\n",
        f"{result['date']}; NVRTC {result['nvrtc']}, jax {result['jax']}. Of the loop that reads most of the input in a turn, and"
        " of one thread: instructions, all ways through it counted, for each element; the widest loads; those under way at once."
        " Resident: warps of a multiprocessor's 64, by registers and static shared memory alone; in flight: KB that they all"
        " wait for.\n",
        "| call | kernel | target | instructions | of an element | widest | in flight | registers | resident | KB in flight |",
        "|" + "---|" * 10,
    ]
    for r in result["kernels"]:
        lines.append(
            f"| {r['call']} | {r['kernel']} | {r['target']} | {r['loop']} | {r['per_element']} | {r['load_bytes']} B |"
            f" {r['loads_in_flight']} | {r['registers']} | {r['occupancy']:.0%} |"
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

    targets = args.targets.split(",")
    found = []
    for name in ptxas.calls():
        if re.search(args.only, name):
            found += list(rows(name, targets))
            print(f"{name}: {sum(r['call'] == name for r in found)} hot loops")
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "nvrtc": nvrtc.version(), "jax": jax.__version__,
        "targets": targets, "kernels": found,
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
