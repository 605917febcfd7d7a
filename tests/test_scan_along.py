"""Scan kernels whose vectors run along the row, called through ctypes as the C++ drivers call them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir

from jaxprims.codegen import llvm_engine, llvm_scan_along
from jaxprims.codegen.scan_spec import ScanSpec
from jaxprims.codegen.spec import ArraySpec
from jaxprims.frontend import program as P
from jaxprims.frontend.lower import to_program

STEP = 1024  # kScanStep
Arrays = Sequence[np.ndarray]


def program(f: Callable[..., Any], dtypes: Sequence[str]) -> P.Program:
    with jax.enable_x64(True):
        return to_program(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((), P.numpy_dtype(t)) for t in dtypes)).jaxpr)


def same(dtypes: Sequence[str]) -> P.Program:
    b = P.Builder(dtypes)
    return b.finish([b.arg(k) for k in range(len(dtypes))])


def spec_of(op: Callable[..., Any], state: Sequence[str], leaves: Any = None, arrays: Any = None, f: Any = None, **kw: Any) -> ScanSpec:
    """Arrays and leaves: a scalar a slot, unless given as (dtype, slots); an array (dtype, 0) is the positions."""
    arrays = [(t, 1) for t in state] if arrays is None else arrays
    params = [t for t, slots in arrays for _ in range(max(1, slots))]
    return ScanSpec(
        kind=kw.pop("kind", "scan"),
        arrays=tuple(ArraySpec(t, slots, max(1, slots)) for t, slots in arrays),
        uniforms=(),
        state=tuple(state),
        leaves=tuple(leaves or [(t, 1) for t in state]),
        identity=kw.pop("identity", None),
        f=program(f, params) if f else same(params),
        op=program(op, [*state, *state]),
        finish=kw.pop("finish", None) or same(state),
        **kw,
    )


@functools.cache
def compiled(spec: ScanSpec, periodic: bool = False) -> llvm_engine.Compiled:
    module = ir.Module(name="scan")
    bytes_ = llvm_engine.target().vector_bytes
    if spec.kind != "reduce":
        llvm_scan_along.build_scan(module, spec, bytes_, periodic=periodic)
    if not periodic:
        llvm_scan_along.build_reduce(module, spec, bytes_)
    return llvm_engine.compile_ir(module, [name for name in ("scan", "reduce") if name in module.globals])


@dataclasses.dataclass
class State:
    """A state in memory, 8 bytes a slot; ``progress`` goes with an aggregate."""

    dtypes: Sequence[str]
    progress: int = 0

    def __post_init__(self) -> None:
        self.memory = np.zeros(8 * len(self.dtypes) + 64, np.uint8)
        skip = -self.memory.ctypes.data % 64
        self.memory = self.memory[skip : skip + 8 * len(self.dtypes)]

    @property
    def slots(self) -> list[Any]:
        return [self.memory[8 * s :][: P.itemsize(t)].view(P.numpy_dtype(t))[0] for s, t in enumerate(self.dtypes)]

    @slots.setter
    def slots(self, values: Sequence[Any]) -> None:
        for s, (t, v) in enumerate(zip(self.dtypes, values, strict=True)):
            self.memory[8 * s :][: P.itemsize(t)].view(P.numpy_dtype(t))[0] = v


def table(arrays: Sequence[np.ndarray | None]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(None if a is None else a.ctypes.data for a in arrays))


_SCAN = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7, ctypes.c_int64)
_REDUCE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5, ctypes.c_int64)


def call(
    spec: ScanSpec,
    arrays: Sequence[np.ndarray | None],
    outs: Arrays | None,
    n: int,
    aggregate: State,
    *,
    lo: int = 0,
    hi: int | None = None,
    flags: np.ndarray | None = None,
    prefix: State | None = None,
    period: int = 0,
) -> None:
    """One call of ``scan``, or, without ``outs``, of ``reduce``."""
    code = compiled(spec, bool(period)).address
    range_ = np.array([lo, n if hi is None else hi, n, period, 1, 0, 1], np.int64)
    mine = None if flags is None else flags.ctypes.data
    last = (aggregate.memory.ctypes.data, aggregate.progress)
    if outs is None:
        aggregate.progress = _REDUCE(code["reduce"])(table(arrays), None, mine, range_.ctypes.data, *last)
    else:
        before = None if prefix is None else prefix.memory.ctypes.data
        args = (table(arrays), None, table(outs), mine, range_.ctypes.data, before, *last)
        aggregate.progress = _SCAN(code["scan"])(*args)


# --- operators and what they give -------------------------------------------------------------------------------------------------


def affine(a: Any, b: Any, c: Any, d: Any) -> Any:
    return c * a, c * b + d


def last_nonzero(a: Any, b: Any) -> Any:
    return jnp.where(b != 0, b, a)


def matmul(*v: Any) -> Any:
    a, b, c, d, e, f, g, h = v
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def fold(op: Callable[..., Any], rows: Arrays, flags: np.ndarray, init: Sequence[Any] | None) -> list[np.ndarray]:
    """The inclusive scan, element by element, in the arrays' dtypes."""
    out = [np.empty_like(r) for r in rows]
    now = None if init is None else [r.dtype.type(v) for r, v in zip(rows, init, strict=True)]
    with np.errstate(all="ignore"):
        for i in range(len(rows[0])):
            x = [r[i] for r in rows]
            joined = x if now is None or flags[i] else op(*now, *x)
            now = [r.dtype.type(v) for r, v in zip(rows, joined if isinstance(joined, (tuple, list)) else [joined], strict=True)]
            for o, v in zip(out, now, strict=True):
                o[i] = v
    return out
