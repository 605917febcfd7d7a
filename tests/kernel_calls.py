"""Kernels of the ordered family called through ctypes, as the C++ drivers call them, and what they should give."""

from __future__ import annotations

import ctypes
import functools
import mmap
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxprims.ir import program as P
from jaxprims.ir.evaluate import evaluate
from jaxprims.specs.histogram import ArraySpec
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.ordered import kernel as llvm_scan
from jaxprims.targets.cpu.ordered.rows import RANGE
from jaxprims.tracing.lower import to_program

STARTED, RESTARTED = 1, 2
VECTOR_BYTES = llvm_engine.target().vector_bytes
WIDTH = VECTOR_BYTES // 4


@functools.cache
def compiled(spec: OrderedSpec) -> dict[str, Callable[..., Any]]:
    names = llvm_scan.function_names(spec, llvm_scan.PLAIN)
    code = llvm_engine.compile_ir(llvm_scan.generate(spec, llvm_scan.PLAIN, VECTOR_BYTES), names)
    keep.append(code)
    return {name: KERNELS[name](code.address[name]) for name in names}


_P, _I = ctypes.c_void_p, ctypes.c_int64
KERNELS = {
    "scan": ctypes.CFUNCTYPE(_I, *[_P] * 7, _I),
    "reduce": ctypes.CFUNCTYPE(_I, *[_P] * 5, _I),
    "combine": ctypes.CFUNCTYPE(None, *[_P] * 4, _I),
    "finish": ctypes.CFUNCTYPE(None, *[_P] * 3, _I),
    "runs": ctypes.CFUNCTYPE(None, *[_P] * 4, _I, _I, _I),
}
keep: list[Any] = []  # machine code that is in use


def range_of(lo: int, hi: int, n: int, **others: int) -> np.ndarray:
    """Memory of a range."""
    members = {"lo": lo, "hi": hi, "n": n, "lanes": 1, "lane_hi": 1, "inner": 1, **others}
    assert set(members) <= set(RANGE)
    return np.array([members.get(name, 0) for name in RANGE], np.int64)


def table(arrays: Sequence[np.ndarray | None]) -> Any:
    """Pointers to arrays; who calls keeps the arrays."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(None if a is None else a.ctypes.data for a in arrays))


class Fenced:
    """Memory that ends (or starts) where a page begins (ends) that may not be touched."""

    libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self) -> None:
        self.maps: list[mmap.mmap] = []

    def like(self, a: np.ndarray, at_end: bool = True) -> np.ndarray:
        """A copy of ``a`` in such memory."""
        page = mmap.PAGESIZE
        size = -(-max(1, a.nbytes) // page) * page
        self.maps.append(mmap.mmap(-1, size + 2 * page))
        whole = np.frombuffer(self.maps[-1], np.uint8)
        for fence in (0, size + page):
            assert self.libc.mprotect(ctypes.c_void_p(whole.ctypes.data + fence), page, 0) == 0
        start = page + (size - a.nbytes if at_end else 0)
        out = whole[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        out[...] = a
        return out


class States:
    """States in memory as kernels hold them (cpu/ordered_kernel.h)."""

    def __init__(self, spec: OrderedSpec, lanes: int, values: Sequence[np.ndarray] = ()):
        size = 8 * len(spec.state) * lanes
        self.memory = Fenced().like(np.zeros(-(-size // 64) * 64, np.uint8))
        if self.memory.size != size:  # 64 bytes aligned, and yet at the end
            self.memory = np.zeros(size + 64, np.uint8)
            self.memory = self.memory[-self.memory.ctypes.data % 64 :][:size]
        rows = [self.memory[8 * s * lanes :] for s in range(len(spec.state))]
        self.slots = [row[: P.itemsize(t) * lanes].view(P.numpy_dtype(t)) for t, row in zip(spec.state, rows, strict=True)]
        for slot, value in zip(self.slots, values, strict=False):
            slot[:] = value


def apply(p: P.Program, *args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(v) for v in evaluate(p, [x for group in args for x in group])]


def elements(spec: OrderedSpec, arrays: Sequence[np.ndarray | None], n: int, lanes: int) -> list[list[np.ndarray]]:
    """f of every step, in scan order: a vector of lanes for each slot."""
    out = []
    for t in range(n - 1, -1, -1) if spec.reverse else range(n):
        args = []
        for a, array in zip(spec.arrays, arrays, strict=True):
            at = [np.full(lanes, t, P.numpy_dtype(a.dtype))] if array is None else [array[t, :, s] for s in range(a.params)]
            args += at
        out.append(apply(spec.f, args))
    return out


def expected(
    spec: OrderedSpec, xs: Sequence[Sequence[np.ndarray]], flags: Any, prefix: Any, acc: Any
) -> tuple[list[list[np.ndarray]], Any, int]:
    """Results in scan order, the aggregate, and the progress."""
    outs, progress = [], STARTED if acc is not None or len(xs) else 0
    lanes = len(xs[0][0]) if xs else 0
    neutral = spec.identity and [np.full(lanes, P.from_bits(w, t)) for w, t in zip(spec.identity, spec.state, strict=True)]
    for x, flag in zip(xs, flags, strict=True):
        if flag:
            acc, prefix, progress = None, None, progress | RESTARTED
        before, acc = acc, x if acc is None else apply(spec.op, acc, x)
        shown = before if spec.exclusive else acc
        if shown is None:
            y = neutral if prefix is None else prefix
        else:
            y = shown if prefix is None else apply(spec.op, prefix, shown)
        outs.append(apply(spec.finish, y))
    return outs, acc, progress


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Small numbers: sums and products of a few are exact."""
    low = 0 if dtype[0] in "ub" else -2
    return rng.integers(low, 2 if dtype == "b1" else 3, shape).astype(P.numpy_dtype(dtype))


# --- specs ---------------------------------------------------------------------------------------------------------------------


def program(f: Callable[..., Any], dtypes: Sequence[str]) -> P.Program:
    with jax.enable_x64(True):
        return to_program(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((), P.numpy_dtype(t)) for t in dtypes)).jaxpr)


def same(dtypes: Sequence[str]) -> P.Program:
    b = P.Builder(dtypes)
    return b.finish([b.arg(k) for k in range(len(dtypes))])


def spec_of(
    op: Callable[..., Any],
    state: Sequence[str],
    arrays: Sequence[tuple[str, int]] = (),
    leaves: Sequence[tuple[str, int]] = (),
    f: Callable[..., Any] | None = None,
    kind: str = "scan",
    identity: tuple[int, ...] | None = None,
    finish: P.Program | None = None,
    **more: Any,
) -> OrderedSpec:
    """Arrays and leaves hold a slot each, unless given as (dtype, slots); an array of no slots is the positions."""
    arrays = arrays or [(t, 1) for t in state]
    params = [t for t, slots in arrays for _ in range(max(1, slots))]
    return OrderedSpec(
        kind=kind,
        arrays=tuple(ArraySpec(t, slots, max(1, slots)) for t, slots in arrays),
        uniforms=(),
        state=tuple(state),
        leaves=tuple(leaves or [(t, 1) for t in state]),
        identity=identity,
        f=program(f, params) if f else same(params),
        op=program(op, [*state, *state]),
        finish=finish or same(state),
        **more,
    )


# --- operators -----------------------------------------------------------------------------------------------------------------


def affine(a: Any, b: Any, c: Any, d: Any) -> Any:
    return c * a, c * b + d


def last_nonzero(a: Any, b: Any) -> Any:
    return jnp.where(b != 0, b, a)


def sums(*v: Any) -> Any:
    return tuple(a + b for a, b in zip(v[: len(v) // 2], v[len(v) // 2 :], strict=True))


def matmul(k: int) -> Callable[..., Any]:
    """Of k x k matrices."""

    def op(*v: Any) -> Any:
        terms = ([v[k * i + m] * v[k * k + k * m + j] for m in range(k)] for i in range(k) for j in range(k))
        return tuple(functools.reduce(operator.add, term) for term in terms)

    return op


def odd_part(a: Any) -> Any:
    """Never ends on 0."""
    return lax.while_loop(lambda x: x % 2 == 0, lambda x: x // 2, a)


def odd_product(a: Any, b: Any) -> Any:
    return odd_part(a) * odd_part(b)


def odd_above(x: Any) -> Any:
    return odd_part(x + 3)
