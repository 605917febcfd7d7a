"""Scan kernels whose vectors run along the row, called through ctypes, and scans element by element."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from kernel_calls import affine, last_nonzero, matmul, range_of, table
from llvmlite import ir

from jaxprims.ir import program as P
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.ordered import scan_abreast as llvm_scan_abreast
from jaxprims.targets.cpu.ordered import scan_along as llvm_scan_along
from jaxprims.targets.cpu.ordered.rows import reduce_by_scan
from jaxprims.targets.cpu.ordered.scan_log_steps import LogSteps
from jaxprims.targets.cpu.ordered.scan_sequential import Sequential
from jaxprims.targets.cpu.ordered.scan_short_rows import ShortRows
from jaxprims.targets.cpu.ordered.scan_tiles import Tile

STEP = 1024  # kScanStep
FORMS = {"steps": LogSteps, "tile": Tile, "sequential": Sequential}
OF_ROWS = ("short", "sequential", "abreast")
"""Those of short rows that lie end to end."""
OF_FORM = FORMS | {"short": ShortRows}
Arrays = Sequence[np.ndarray]


class Kernel:
    """A spec's compiled functions: as a scan's, its results' and reductions' aggregates must agree in every bit."""

    def __init__(self, spec: OrderedSpec, form: str = "", vector_bytes: int = 0, periodic: bool = False, streams: bool = False):
        self.spec = spec
        module = ir.Module(name="scan")
        vector_bytes = vector_bytes or llvm_engine.target().vector_bytes
        forced = mock.patch.object(llvm_scan_along, "_form", lambda *_: OF_FORM[form]) if form in OF_FORM else mock.MagicMock()
        with forced:
            if form == "abreast":
                llvm_scan_abreast.scan(module, spec, vector_bytes)
            else:
                llvm_scan_along.scan(module, spec, vector_bytes, periodic=periodic, streams=streams)
            if not periodic:
                reduce_by_scan(module, module.globals[llvm_scan_along.ALONG])
        self.compiled = llvm_engine.compile_ir(module, ["scan"] if periodic else ["scan", "reduce"])
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7, ctypes.c_int64)
        self.code = kind(self.compiled.address["scan"])
        if not periodic:
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5, ctypes.c_int64)
            self.reduction = kind(self.compiled.address["reduce"])

    def scan(
        self,
        arrays: Sequence[np.ndarray | None],
        outs: Arrays,
        n: int,
        *,
        cuts: Sequence[int] = (),
        flags: np.ndarray | None = None,
        prefix: Sequence[Any] | None = None,
        period: int = 0,
    ) -> tuple[np.ndarray, int]:
        """Calls scan on the ranges between ``cuts``; returns the aggregate's bytes and the progress."""
        aggregate, progress = self.state(), 0
        before = None if prefix is None else self.state(prefix)
        for lo, hi in itertools.pairwise([0, *cuts, n]):
            range_ = range_of(lo, hi, n, period=period)
            rest = (address(flags), range_.ctypes.data, address(before), aggregate.ctypes.data)
            progress = self.code(table(arrays), None, table(outs), *rest, progress)
        return aggregate, progress

    def reduce(
        self, arrays: Sequence[np.ndarray | None], n: int, cuts: Sequence[int] = (), flags: np.ndarray | None = None
    ) -> tuple[np.ndarray, int]:
        aggregate, progress = self.state(), 0
        for lo, hi in itertools.pairwise([0, *cuts, n]):
            range_ = range_of(lo, hi, n)
            progress = self.reduction(table(arrays), None, address(flags), range_.ctypes.data, aggregate.ctypes.data, progress)
        return aggregate, progress

    def state(self, slots: Sequence[Any] = ()) -> np.ndarray:
        """A state in memory: 8 bytes for each slot."""
        memory = np.zeros(8 * len(self.spec.state) + 64, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :][: 8 * len(self.spec.state)]
        for s, value in enumerate(slots):
            self.slot(memory, s)[0] = value
        return memory

    def slot(self, memory: np.ndarray, s: int) -> np.ndarray:
        t = self.spec.state[s]
        return memory[8 * s :][: P.itemsize(t)].view(P.numpy_dtype(t))


def address(a: np.ndarray | None) -> int | None:
    return None if a is None else a.ctypes.data


kernel = functools.cache(Kernel)


# --- scans element by element ---------------------------------------------------------------------------------


def fold(op: Callable[..., Any], rows: Arrays, flags: np.ndarray, init: Sequence[Any] | None) -> list[np.ndarray]:
    """The inclusive scan in the rows' dtypes."""
    out, now = [np.empty_like(r) for r in rows], init
    with np.errstate(all="ignore"):
        for i in range(len(rows[0])):
            x = [r[i] for r in rows]
            joined = x if now is None or flags[i] else op(*now, *x)
            now = [r.dtype.type(v) for r, v in zip(rows, joined, strict=True)]
            for o, v in zip(out, now, strict=True):
                o[i] = v
    return out


def shifted(inclusive: Arrays, first: Sequence[Any], identity: Sequence[Any], flags: np.ndarray) -> list[np.ndarray]:
    """The exclusive scan."""
    out = []
    for w, x, e in zip(inclusive, first, identity, strict=True):
        out.append(np.concatenate([[w.dtype.type(x)], w[:-1]]))
        out[-1][flags] = e
    return out


IDENTITIES = {1: [0], 2: [1, 0], 4: [1, 0, 0, 1], 9: [1, 0, 0, 0, 1, 0, 0, 0, 1]}
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[str]]] = {
    "affine s32": (affine, affine, ["s32"] * 2),
    "last non-zero": (last_nonzero, lambda a, b: [b if b else a], ["s8"]),
    "2x2 u16": (matmul(2), matmul(2), ["u16"] * 4),
    "3x3 s64": (matmul(3), matmul(3), ["s64"] * 9),
    "mixed": (lambda a, b, c, d: (a ^ c, b * d), lambda a, b, c, d: (a ^ c, b * d), ["b1", "s64"]),
}
