"""Random calls of every family on the emulated GPU: few kernels, many sizes, batches, layouts and plans.

``python -m tests.emulation.random_calls 20 hist --device "multiprocessors=1 shared=4096"`` runs 20 calls of each operator and
prints how many kernels and cases it has seen. A case is one run: a call is run on several arrays and, on the same arrays, with
threads in another order, after which all bits must be the same (histograms: of integers).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import plugin  # noqa: F401  isort: skip  must come before jaxprims

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp
from bench.paper2 import contestant
from jaxprims.targets import ffi, plans
from jaxprims.targets.cuda import nvrtc
from tests.odd_operators import matrix
from tests.stencil_reference import BOUNDARIES
from tests.stencil_reference import stencil as stencil_reference

from . import emulator

Leaves = tuple[Any, ...]
Op = Callable[[Any, Leaves, Leaves], Leaves]  # of jax.numpy or NumPy, and two states
Rng = np.random.Generator


# --- operators on tuples, associative to the bit -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Subject:
    """An operator with values for it; ``shape``: of an element's leaves."""

    name: str
    op: Op
    dtypes: tuple[str, ...]
    identity: tuple[Any, ...] | None
    commutes: bool = True
    shape: tuple[int, ...] = ()
    exact: bool = True

    def sample(self, rng: Rng, *shape: int) -> Leaves:
        if not self.exact:
            return tuple(rng.standard_normal((*shape, *self.shape)).astype(t) for t in self.dtypes)
        return tuple(sample(rng, t, (*shape, *self.shape)) for t in self.dtypes)

    def start(self) -> Leaves | None:
        if self.identity is None:
            return None
        return tuple(np.full(self.shape, e, t) for e, t in zip(self.identity, self.numpy, strict=True))

    @property
    def numpy(self) -> list[Any]:
        return [jnp.dtype(t) for t in self.dtypes]


def sample(rng: Rng, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """All integers; floats among few small ones, of which sums are exact in any order."""
    t = jnp.dtype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.3
    if jnp.issubdtype(t, jnp.integer):
        info = np.iinfo(t)
        drawn = rng.integers(int(info.min), int(info.max), shape, t, endpoint=True)
        return np.where(rng.random(shape) < 0.3, np.zeros((), t), drawn)
    drawn = rng.integers(-8, 9, shape).astype(t)
    return np.where(rng.random(shape) < 0.05, np.array(-np.inf, t), drawn) if dtype == "float16" else drawn


def _affines(xp: Any, a: Leaves, b: Leaves) -> Leaves:
    return a[0] * b[0], *(x * b[0] + y for x, y in zip(a[1:], b[1:], strict=True))


def _best(xp: Any, a: Leaves, b: Leaves) -> Leaves:
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return xp.where(first, a[0], b[0]), xp.where(first, a[1], b[1])


def _mixed(xp: Any, a: Leaves, b: Leaves) -> Leaves:
    return a[0] + b[0], xp.maximum(a[1], b[1]), a[2] ^ b[2], a[3] | b[3]


SUBJECTS = {
    s.name: s
    for s in (
        Subject("add i32", lambda xp, a, b: (a[0] + b[0],), ("int32",), (0,)),
        Subject("add u8", lambda xp, a, b: (a[0] + b[0],), ("uint8",), (0,)),
        Subject("add f32", lambda xp, a, b: (a[0] + b[0],), ("float32",), (0,)),
        Subject("add reals", lambda xp, a, b: (a[0] + b[0],), ("float32",), (0,), exact=False),
        Subject("add i64", lambda xp, a, b: (a[0] + b[0],), ("int64",), (0,)),
        Subject("max f16", lambda xp, a, b: (xp.maximum(a[0], b[0]),), ("float16",), (-np.inf,)),
        Subject("min bf16", lambda xp, a, b: (xp.minimum(a[0], b[0]),), ("bfloat16",), (np.inf,)),
        Subject("mul u32", lambda xp, a, b: (a[0] * b[0],), ("uint32",), (1,)),
        Subject("or bool", lambda xp, a, b: (a[0] | b[0],), ("bool",), (False,)),
        Subject("best", _best, ("float32", "int32"), (-np.inf, 2**31 - 1)),
        Subject("mixed", _mixed, ("uint16", "float32", "int64", "bool"), (0, -np.inf, 0, False)),
        Subject("add i32 x 3", lambda xp, a, b: (a[0] + b[0],), ("int32",), (0,), shape=(3,)),
        Subject("last", lambda xp, a, b: (xp.where(b[0] != 0, b[0], a[0]),), ("int16",), (0,), commutes=False),
        Subject("affine", lambda xp, a, b: (a[0] * b[0], a[1] * b[0] + b[1]), ("int32", "int32"), (1, 0), commutes=False),
        Subject("affines", _affines, ("int32",) * 16, (1, *(0,) * 15), commutes=False),
        Subject("matrix", lambda xp, a, b: matrix(a, b), ("uint32",) * 4, (1, 0, 0, 1), commutes=False),
        Subject("first of two", lambda xp, a, b: (a[0], b[1]), ("int8", "float64"), None, commutes=False),
    )
}  # fmt: skip


# --- references ----------------------------------------------------------------------------------------------------------------


def prefixes(op: Op, xs: Leaves, cut: np.ndarray) -> Leaves:
    """Inclusive along the first axis by doubling, anew wherever ``cut`` (any shape that broadcasts) is set."""
    n = len(cut)
    xs, cut = tuple(x.copy() for x in xs), cut.copy()
    by = 1
    while by < n:
        before, here = tuple(x[:-by] for x in xs), tuple(x[by:] for x in xs)
        both = op(np, before, here)
        flags = [cut[by:].reshape(-1, *[1] * (x.ndim - 1)) for x in xs]
        fresh = [np.where(f, h, b).astype(h.dtype) for f, h, b in zip(flags, here, both, strict=True)]
        grown = cut[by:] | cut[:-by]
        for x, f in zip(xs, fresh, strict=True):
            x[by:] = f
        cut[by:] = grown
        by *= 2
    return xs


def scanned(s: Subject, xs: Leaves, *, init: Leaves | None, exclusive: bool, reverse: bool, cut: np.ndarray | None) -> Leaves:
    """Of elements [n, ...]."""
    n = len(xs[0])
    flags = np.zeros(n, bool) if cut is None else cut
    flip = slice(None, None, -1) if reverse else slice(None)
    xs, flags = tuple(x[flip] for x in xs), flags[flip].copy()
    flags[:1] = True
    out = prefixes(s.op, xs, flags)
    start = init if init is not None else s.start()
    if init is not None:
        out = s.op(np, tuple(np.broadcast_to(i, x.shape) for i, x in zip(init, out, strict=True)), out)
    if exclusive:
        assert start is not None
        shifted = []
        for x, e in zip(out, start, strict=True):
            y = np.roll(x, 1, 0)
            y[flags] = np.broadcast_to(e, y.shape)[flags]
            shifted.append(y)
        out = tuple(shifted)
    return tuple(x[flip] for x in out)


def by_key(s: Subject, xs: Leaves, key: np.ndarray, count: int) -> tuple[Leaves, np.ndarray]:
    """Elements of one key combined in their order; and which keys there were."""
    inside = np.flatnonzero((key >= 0) & (key < count))
    order = inside[np.argsort(key[inside], kind="stable")]
    sorted_key = key[order]
    starts = np.ones(len(order), bool)
    starts[1:] = sorted_key[1:] != sorted_key[:-1]
    out = prefixes(s.op, tuple(x[order] for x in xs), starts)
    last = np.ones(len(order), bool)
    last[:-1] = starts[1:]
    seen = np.zeros(count, bool)
    seen[sorted_key[last]] = True
    results = []
    for x in out:
        y = np.zeros((count, *x.shape[1:]), x.dtype)
        y[sorted_key[last]] = x[last]
        results.append(y)
    return tuple(results), seen


# --- running -------------------------------------------------------------------------------------------------------------------


class Wrong(AssertionError):
    """A result is not what it should be."""


@dataclasses.dataclass
class Counts:
    kernels: int = 0
    calls: int = 0
    cases: int = 0


counts = Counts()
_plan: list[int] = []


@contextlib.contextmanager
def forced(plan: Sequence[int]) -> Iterator[None]:
    """What is lowered inside runs this plan."""
    _plan[:] = plan
    try:
        yield
    finally:
        _plan.clear()


def _watch() -> None:
    lower, compile_cubin = ffi.lower_call, nvrtc.compile_cubin

    def lower_call(
        ctx: Any, name: Any, operands: Any, spec: Any, masks: Any, rank: Any, plan: Any, *rest: Any, **more: Any
    ) -> Any:
        return lower(ctx, name, operands, spec, masks, rank, _plan or plan, *rest, **more)

    def counted(source: str, arch: str) -> Any:
        counts.kernels += 1
        return compile_cubin(source, arch)

    ffi.lower_call, nvrtc.compile_cubin = lower_call, counted


def check(what: str, got: Any, wanted: Any, exact: bool = True) -> None:
    for k, (g, w) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)):
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            raise Wrong(f"{what}: leaf {k} is {g.dtype}{g.shape}, should be {w.dtype}{w.shape}")
        bad = ~((g == w) | ((g != g) & (w != w))) if exact else ~(abs(g - w) <= 1e-4 * (1 + abs(w)) + 1e-3)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            raise Wrong(f"{what}: leaf {k} is wrong in {bad.sum()} of {bad.size} places; at {at} it is {g[at]}, not {w[at]}")


def run(
    what: str,
    s: Subject,
    f: Callable[..., Any],
    samples: Sequence[tuple[Any, ...]],
    reference: Callable[..., Any],
    plan: Sequence[int],
    repeatable: bool = True,
) -> None:
    """``f`` compiled once for all ``samples`` (arguments), each run twice. ``repeatable``: is it promised that all bits agree?"""
    try:
        with forced(plan), plans.forced(plans.AnyKernel()):
            compiled = jax.jit(f).lower(*samples[0]).compile()
        counts.calls += 1
        for args in samples:
            wanted, first = reference(*args), None
            for _ in range(2):
                got = jax.device_get(compiled(*args))
                counts.cases += 1
                check(what, got, wanted, s.exact)
                if first is not None and repeatable:
                    check(f"{what}, the second time", got, first)
                first = got
    except Wrong:
        raise
    except Exception as e:
        raise Wrong(f"{what}: {e}") from e


def length(rng: Rng, most: int = 20_000) -> int:
    kind = rng.integers(6)
    if kind == 0:
        return int(rng.integers(0, 4))
    if kind < 3:
        return int(rng.integers(1, 70))
    if kind == 3:
        return int(rng.integers(1, 1500))
    if kind == 4:  # around multiples of tiles
        tile = rng.choice([32, 128, 256, 1024, 2048, 4096])
        return int(np.clip(rng.choice([1, 2, 3, 5]) * tile + rng.integers(-2, 3), 1, most))
    return int(np.exp(rng.uniform(np.log(100), np.log(most))))


def is_forced(rng: Rng, which: int) -> bool:
    """Plans have kernels of their own, which take time to compile: most operators are left to what is chosen for them."""
    return bool(rng.random() < (0.7 if which % 3 == 0 else 0.1))


def few(rng: Rng, most: int = 40) -> int:
    return int(rng.choice([1, 2, 3, rng.integers(1, most)]))


# --- the families --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the axis lies: rows of a batch, then lanes beside each other; of ``vmap``, or of an array's own axes."""

    rows: int
    lanes: int
    mapped: bool
    n: int

    @staticmethod
    def draw(rng: Rng, most: int = 20_000) -> Layout:
        n = length(rng, most)
        room = max(1, 4 * most // max(n, 1))
        rows = min(room, few(rng, 300)) if rng.random() < 0.6 else 1
        lanes = min(max(1, room // rows), few(rng, 200)) if rng.random() < 0.4 else 1
        return Layout(rows, lanes, bool(rng.random() < 0.5), n)

    @staticmethod
    def of_chains(rng: Rng, most: int = 50_000) -> Layout:
        """Rows of some tiles, or that are no multiple of one in all."""
        tile = int(rng.choice([256, 1024, 1536, 2048, 3584, 4096, 8192]))
        around = min(int(rng.choice([1, 2, 3, 6, 33, 65])) * tile, most) + int(rng.integers(-2, 3))
        n = around if rng.random() < 0.5 else int(np.exp(rng.uniform(np.log(500), np.log(most))))
        rows = min(max(1, 2 * most // n), few(rng)) if rng.random() < 0.5 else 1
        return Layout(rows, 1, bool(rng.random() < 0.5), n)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*((self.rows,) if self.rows > 1 else ()), self.n, *((self.lanes,) if self.lanes > 1 else ()))

    @property
    def axis(self) -> int:
        return int(self.rows > 1)

    def over_batch(self, f: Callable[..., Any], *in_axes: Any) -> Callable[..., Any]:
        """``f(x, axis)``, by vmap where rows are mapped."""
        if self.rows > 1 and self.mapped:
            return jax.vmap(lambda *args: f(*args, 0), in_axes=in_axes)
        return lambda *args: f(*args, self.axis)


def forward(leaves: Leaves, axis: int) -> Leaves:
    return tuple(np.moveaxis(x, axis, 0) for x in leaves)


def back(leaves: Leaves, axis: int) -> Leaves:
    return tuple(np.moveaxis(x, 0, axis) for x in leaves)


def op_of(s: Subject) -> Callable[[Any, Any], Any]:
    return lambda a, b: s.op(jnp, a, b)


def identity_of(s: Subject) -> Any:
    return None if s.identity is None else tuple(jnp.asarray(e, t) for e, t in zip(s.identity, s.numpy, strict=True))


SCANS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("add i32", {}),
    ("add i32", {"exclusive": True, "reverse": True}),
    ("add f32", {"cut": True}),
    ("add u8", {"init": True}),
    ("add i64", {"reverse": True, "cut": True, "init": True, "exclusive": True}),
    ("max f16", {"exclusive": True}),
    ("or bool", {"reverse": True}),
    ("best", {"cut": True, "exclusive": True}),
    ("mixed", {}),
    ("last", {"init": True, "cut": True}),
    ("affine", {}),
    ("matrix", {"reverse": True}),
    ("first of two", {}),
    ("add reals", {}),
    ("add i32 x 3", {"init": True}),
    ("affines", {"exclusive": True}),
)


def scan(rng: Rng, which: int, waits: bool = False) -> None:
    name, flags = SCANS[which]
    s = SUBJECTS[name]
    layout = Layout.of_chains(rng) if waits else Layout.draw(rng)
    exclusive, reverse = flags.get("exclusive", False), flags.get("reverse", False)
    slices = (*layout.shape[: layout.axis], *layout.shape[layout.axis + 1 :])
    plan: list[int] = []
    if waits:
        plan = [int(rng.integers(-1, 2)), int(rng.integers(-1, 1)), 1]
    elif is_forced(rng, which):
        along, across = [int(rng.integers(0, 3)), int(rng.integers(-1, 2))], [few(rng, 64), int(rng.integers(0, 2))]
        plan = along if layout.lanes == 1 else across

    def arguments() -> tuple[Any, ...]:
        init = s.sample(rng, *slices) if flags.get("init") else None
        cut = rng.random(layout.n) < rng.choice([0, 0.003, 0.1, 0.7]) if flags.get("cut") else None
        return s.sample(rng, *layout.shape), init, cut

    def f(x: Any, init: Any, cut: Any, axis: int) -> Any:
        identity = None if init is not None else identity_of(s)
        return jp.scan(
            x, op_of(s), axis=axis, identity=identity, init=init, exclusive=exclusive, reverse=reverse, segment_starts=cut
        )

    def reference(x: Leaves, init: Leaves | None, cut: np.ndarray | None) -> Leaves:
        out = scanned(s, forward(x, layout.axis), init=init, exclusive=exclusive, reverse=reverse, cut=cut)
        return back(out, layout.axis)

    what = f"scan {name} {flags} {layout} plan {plan}"
    run(what, s, layout.over_batch(f, 0, 0, None), [arguments() for _ in range(2)], reference, plan)


def chains(rng: Rng, which: int) -> None:
    """Scans of several tiles, which wait in shared memory."""
    scan(rng, which, waits=True)


REDUCTIONS: tuple[tuple[str, bool], ...] = (
    ("add i32", False), ("add u8", True), ("add f32", False), ("max f16", True), ("min bf16", False), ("or bool", False),
    ("best", False), ("mixed", True), ("last", False), ("affine", True), ("matrix", False), ("first of two", False),
    ("add i32 x 3", False), ("add reals", False),
)  # fmt: skip


def reduce(rng: Rng, which: int) -> None:
    name, with_init = REDUCTIONS[which]
    s = SUBJECTS[name]
    layout = Layout.draw(rng, 60_000)
    if s.identity is None and not with_init and layout.n == 0:
        layout = dataclasses.replace(layout, n=1)
    slices = (*layout.shape[: layout.axis], *layout.shape[layout.axis + 1 :])
    plan = [int(rng.integers(0, 3)), few(rng, 33) if rng.random() < 0.5 else 0] if is_forced(rng, which) else []

    def arguments() -> tuple[Any, ...]:
        return s.sample(rng, *layout.shape), s.sample(rng, *slices) if with_init else None

    def f(x: Any, init: Any, axis: int) -> Any:
        return jp.reduce(x, op_of(s), axis=axis, identity=identity_of(s), init=init)

    def reference(x: Leaves, init: Leaves | None) -> Leaves:
        first = forward(x, layout.axis)
        if layout.n == 0:
            start = init if init is not None else s.start()
            assert start is not None
            return tuple(np.broadcast_to(e, v.shape[1:]).astype(v.dtype) for e, v in zip(start, first, strict=True))
        starts = np.zeros(layout.n, bool)
        total = tuple(v[-1] for v in prefixes(s.op, first, starts))
        return s.op(np, init, total) if init is not None else total

    what = f"reduce {name} init {with_init} {layout} plan {plan}"
    run(what, s, layout.over_batch(f, 0, 0), [arguments() for _ in range(2)], reference, plan)


SEGMENTS: tuple[tuple[str, str], ...] = (
    ("add i32", "offsets"), ("add i32", "ids"), ("add f32", "offsets"), ("max f16", "ids"), ("best", "offsets"), ("mixed", "ids"),
    ("last", "ids"), ("affine", "offsets"), ("matrix", "ids"), ("add i32 x 3", "offsets"), ("or bool", "ids"),
    ("add reals", "offsets"),
)  # fmt: skip


def segments(rng: Rng, which: int) -> None:
    name, by = SEGMENTS[which]
    s = SUBJECTS[name]
    n = length(rng)
    count = int(rng.choice([1, 2, few(rng, 30), max(1, n // 3), 2 * n + 1]))
    lanes = few(rng, 60) if rng.random() < 0.3 else 1
    rows = few(rng, 20) if rng.random() < 0.4 else 1
    if n * lanes * rows > 150_000:
        lanes = rows = 1
    shared = bool(rng.random() < 0.5)  # the segments, by the batch
    plan = [int(rng.integers(0, 3)), few(rng, 20) if rng.random() < 0.5 else 0] if is_forced(rng, which) else []
    shape = (*((rows,) if rows > 1 else ()), n, *((lanes,) if lanes > 1 else ()))

    def division() -> np.ndarray:
        if by == "ids":
            low, high = (-1, count + 1) if rng.random() < 0.3 else (0, count)
            ids = np.sort(rng.integers(low, high, n)) if rng.random() < 0.7 else np.sort(rng.integers(low, high, n) // 5 * 5)
            return ids.astype(np.int32)
        offsets = np.sort(rng.integers(0, n + 1, count + 1))
        if rng.random() < 0.5:
            offsets[0], offsets[-1] = 0, n
        return offsets.astype(np.int32)

    def arguments() -> tuple[Any, ...]:
        cut = division() if shared or rows == 1 else np.stack([division() for _ in range(rows)])
        return s.sample(rng, *shape), cut

    def f(x: Any, cut: Any) -> Any:
        if by == "ids":
            return jp.segment_reduce(x, cut, op_of(s), num_segments=count, identity=identity_of(s))
        return jp.segment_reduce(x, jp.Offsets(cut), op_of(s), identity=identity_of(s))

    def one(x: Leaves, cut: np.ndarray) -> Leaves:
        ids = cut
        if by == "offsets":
            ids = np.repeat(np.arange(-1, count + 1), np.diff(cut, prepend=0, append=n))
        out, seen = by_key(s, x, ids.astype(np.int64), count)
        start = s.start()
        assert start is not None
        flags = [seen.reshape(-1, *[1] * (v.ndim - 1)) for v in out]
        return tuple(np.where(k, v, e).astype(v.dtype) for k, v, e in zip(flags, out, start, strict=True))

    def reference(x: Leaves, cut: np.ndarray) -> Leaves:
        if rows == 1:
            return one(x, cut)
        members = [one(tuple(v[r] for v in x), cut if shared else cut[r]) for r in range(rows)]
        return tuple(np.stack(v) for v in zip(*members, strict=True))

    mapped = jax.vmap(f, in_axes=(0, None if shared else 0)) if rows > 1 else f
    what = f"segments {name} {by} n {n} segments {count} lanes {lanes} rows {rows} shared {shared} plan {plan}"
    run(what, s, mapped, [arguments() for _ in range(2)], reference, plan)


HISTOGRAMS: tuple[tuple[str, bool], ...] = (  # with a dest?
    ("add i32", False), ("add i32", True), ("add i32 x 3", True), ("add u8", False), ("add f32", False),
    ("add i64", False), ("max f16", False),
    ("min bf16", True), ("mul u32", False), ("or bool", False), ("best", True), ("mixed", False), ("add i32 x 3", False),
    ("add reals", False),
)  # fmt: skip


def hist(rng: Rng, which: int) -> None:
    name, with_dest = HISTOGRAMS[which]
    s = SUBJECTS[name]
    n = length(rng)
    bins = int(rng.choice([1, 2, few(rng, 30), int(np.exp(rng.uniform(0, np.log(20_000))))]))
    rows = few(rng, 60) if rng.random() < 0.4 else 1
    if rows * max(n, bins) > 100_000:
        rows = 1
    shared = bool(rng.random() < 0.3)
    plan: list[int] = []
    if is_forced(rng, which):
        copies, passes = int(rng.choice([0, few(rng, 9), 1024])), int(rng.choice([0, few(rng, 5)]))
        plan = [int(rng.integers(0, 5)), copies, passes, 0, int(rng.integers(-1, 3))]
    lead = (rows,) if rows > 1 else ()

    def indices() -> np.ndarray:
        kind = rng.integers(4)
        width = {0: bins, 1: max(1, bins // 50), 2: 1, 3: bins}[int(kind)]
        at = rng.integers(0, width, n) + rng.integers(0, bins - width + 1)
        if kind == 3:
            at = np.sort(at)
        out = rng.choice([-1, -(2**31), bins, 2**31 - 1], n)
        return np.where(rng.random(n) < 0.02, out, at).astype(np.int32)

    def arguments() -> tuple[Any, ...]:
        index = indices() if shared or rows == 1 else np.stack([indices() for _ in range(rows)])
        return index, s.sample(rng, *lead, n), s.sample(rng, *lead, bins) if with_dest else None

    table = s.sample(rng, 4)[0] if s.shape and rng.random() < 0.7 else None  # whose rows f reads

    def f(index: Any, x: Any, dest: Any) -> Any:
        if table is not None:
            captured, add = jnp.asarray(table), jp.Bins(bins, op_of(s), identity=identity_of(s), dest=dest)
            return jp.genhist(lambda i, v: (i, (v[0] + captured[i & 3],)), (index, x), add)
        return jp.reduce_by_index(x, index, bins, op_of(s), identity=identity_of(s), dest=dest)

    def one(index: np.ndarray, x: Leaves, dest: Leaves | None) -> Leaves:
        x = x if table is None else (x[0] + table[index & 3],)
        out, seen = by_key(s, x, index.astype(np.int64), bins)
        start = s.start() if dest is None else dest
        assert start is not None
        both = out if dest is None else s.op(np, dest, out)
        flags = [seen.reshape(-1, *[1] * (v.ndim - 1)) for v in out]
        return tuple(np.where(k, b, e).astype(v.dtype) for k, b, e, v in zip(flags, both, start, out, strict=True))

    def reference(index: np.ndarray, x: Leaves, dest: Leaves | None) -> Leaves:
        if rows == 1:
            return one(index, x, dest)

        def at(leaves: Leaves | None, r: int) -> Any:
            return None if leaves is None else tuple(v[r] for v in leaves)

        members = [one(index if shared else index[r], at(x, r), at(dest, r)) for r in range(rows)]
        return tuple(np.stack(v) for v in zip(*members, strict=True))

    mapped = jax.vmap(f, in_axes=(None if shared else 0, 0, 0)) if rows > 1 else f
    what = f"hist {name} dest {with_dest} n {n} bins {bins} rows {rows} shared {shared} plan {plan}"
    run(what, s, mapped, [arguments() for _ in range(2)], reference, plan, repeatable=s.exact)


MARTIN: tuple[tuple[str, bool], ...] = (
    ("add i32", False), ("last", False), ("mixed", False), ("max f16", True), ("affine", True), ("matrix", True),
)  # fmt: skip


def martin(rng: Rng, which: int) -> None:
    """The benchmark's five algorithms of Martín et al. 2012, of the whole and of segments by sorted ids."""
    name, by_ids = MARTIN[which]
    s, n = SUBJECTS[name], max(1, length(rng, 40_000))  # none at all is no call
    count = int(rng.choice([1, 2, few(rng, 30), max(1, n // 3)]))
    xs = s.sample(rng, n)
    ids = np.sort(rng.integers(*((-1, count + 1) if rng.random() < 0.3 else (0, count)), n)).astype(np.int32)
    start = s.start()
    assert start is not None
    seen: np.ndarray | bool = True
    if by_ids:
        out, seen = by_key(s, xs, ids.astype(np.int64), count)
        wanted = tuple(np.where(seen, v, e).astype(v.dtype) for v, e in zip(out, start, strict=True))
    else:
        wanted = tuple(v[-1] for v in prefixes(s.op, xs, np.zeros(n, bool)))

    def f(jp: Any, *arrays: Any) -> Any:
        if by_ids:
            return jp.segment_reduce(arrays[:-1], arrays[-1], op_of(s), num_segments=count, identity=identity_of(s))
        return jp.reduce(arrays, op_of(s), identity=identity_of(s))

    arrays = tuple(map(jnp.asarray, (*xs, ids) if by_ids else xs))
    known = contestant.spec_of(functools.partial(f, jp), *arrays).identity is not None
    for algorithm in contestant.ALGORITHMS:
        what = f"{algorithm}, {name}, n {n}" + (f", {count} segments" if by_ids else "")
        try:
            work = contestant.algorithm(algorithm, f)([arrays])
            counts.calls += 1
            for _ in range(2):
                got = work.enqueue(0)
                work.wait(got)
                counts.cases += 1
                # Of empty segments jaxprims may write an identity behind the kernels.
                check(what, [np.where(seen | known, g, w) for g, w in zip(got, wanted, strict=True)], wanted, s.exact)
        except Wrong:
            raise
        except Exception as e:
            raise Wrong(f"{what}: {e}") from e


@dataclasses.dataclass(frozen=True)
class Near:
    """A function of a neighbourhood, on values of which no result is rounded; ``cell``: the shape of a cell; ``places``: it takes
    coordinates; ``again``: its results may be the next step's arrays."""

    rank: int
    dtypes: tuple[str, ...]
    f: Callable[..., Any]
    constants: tuple[str, ...] = ()
    cell: tuple[int, ...] = ()
    places: bool = False
    again: bool = True


_TABLE = np.array([3, -1, 4, 1], np.int32)


def _looked_up(a: Any) -> Any:
    k = a[-1, 0] & 3
    return a[0, 1] - (jnp.asarray(_TABLE) if isinstance(k, jax.Array) else _TABLE)[k]


def _of_lanes(at: Any) -> Any:
    """A coordinate, of a cell or of all of a grid, beside the lanes of cells."""
    return at[..., None] if np.ndim(at) else at


STENCILS = (
    Near(2, ("float32",), lambda a: a[-1, 0] + a[1, 0] - a[0, -1] + a[0, 1] - a[0, 0]),
    Near(1, ("int32",), lambda a: a[-3] + 3 * a[0] - a[1]),
    Near(3, ("int32",), lambda a: a[0, 0, 0] - a[-1, 0, 1] + a[1, -2, 0] * 3 + a[0, 1, -1]),
    Near(2, ("uint8",), lambda a: sum(a[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)) - a[0, 0]),
    Near(2, ("complex64",), lambda a: a[0, -1] - a[2, 0] * a[0, 1].dtype.type(1j)),
    Near(1, ("bfloat16",), lambda a: abs(a[-2] - a[3])),
    Near(2, ("float32", "int16"), lambda a, b: (a[1, 0] - a[0, 0], b[0, 2] + b[-1, 0])),
    Near(3, ("float64",), lambda a, w: a[0, 0, 1] - a[0, -1, 0] * w[1, 0, 0] + w[0, 0, -2], ("float64",)),
    Near(2, ("int32",), lambda a, at: a[0, -1] + at[0] * 5 - at[1] * a[1, 0], places=True),
    Near(2, ("float16",), lambda a: abs(a[1, 0] - a[0, -1]), cell=(3,)),
    Near(1, ("int64",), lambda a: a[-1][..., ::-1] - a[1], cell=(2,)),
    Near(2, ("int32",), _looked_up),
    Near(2, ("uint8", "float32"), lambda a, b: b[0, 1] - a[-1, 0].astype(b[0, 0].dtype), again=False),
    Near(4, ("bool",), lambda a: a[0, 0, 0, 1] ^ a[0, 1, 0, 0] ^ a[-1, 0, 0, -1] ^ a[0, 0, 1, 0]),
    Near(2, ("int32",), lambda a, w: a[-40, 3] + w[25, -60] - a[0, 17], ("int32",)),
    Near(3, ("float32",), lambda a: abs(a[0, 0, 0] - a[1, 0, 0]) + a[0, 0, -1] * 0, cell=(2, 2)),
    Near(2, ("int32",), lambda a, at: a[0, -1] + _of_lanes(at[1]) * a[1, 0], cell=(3,), places=True),
)


def stencil(rng: Rng, which: int) -> None:
    near = STENCILS[which]
    rank, place = near.rank, tuple(range(near.rank))
    most = {1: 9000, 2: 150, 3: 40, 4: 11}[rank]
    shape = tuple(few(rng, most) if rng.random() < 0.4 else int(rng.integers(1, most)) for _ in range(rank))
    modes = tuple(rng.choice([m for m in BOUNDARIES if near.again or m != "keep"], rank))
    if rng.random() < 0.5:
        modes = modes[:1] * rank
    steps = int(rng.choice([1, 2, 3, 5, 9])) if near.again else 1
    rows = few(rng, 6) if rng.random() < 0.3 else 1
    fill = int(rng.integers(0, 2))
    plan: list[int] = []
    if rng.random() < 0.6:
        plan = [int(rng.integers(0, 6)), *(few(rng, 70) if rng.random() < 0.5 else 0 for _ in range(3))]
    tiles = math.prod(-(-n // (t or n)) for n, t in zip(shape[::-1], plan[:0:-1], strict=False))
    if tiles > 200:  # thousands are no other case, and each has a block of threads however few its cells are
        shape = tuple(math.ceil(n * (200 / tiles) ** (1 / rank)) for n in shape)

    def numbers(dtypes: Sequence[str], *lead: int) -> Leaves:
        drawn = [sample(rng, t, (*lead, *shape, *near.cell)) for t in dtypes]
        return tuple(np.where(x == -np.inf, x.dtype.type(0), x) if x.dtype == np.float16 else x for x in drawn)

    def arguments() -> tuple[Any, ...]:
        return numbers(near.dtypes, *((rows,) if rows > 1 else ())), numbers(near.constants)

    def f(xs: Any, ws: Any) -> Any:
        arrays = [*xs, jp.positions] if near.places else list(xs)
        given = {"boundary": modes, "fill_value": fill, "steps": steps, "axes": place}
        return jax.tree.leaves(jp.stencil(near.f, arrays, constants=list(ws) or None, **given))

    def one(xs: Leaves, ws: Leaves) -> Leaves:
        given = {"fill": fill, "steps": steps, "rank": rank, "places": near.places}
        return tuple(stencil_reference(near.f, xs, modes, constants=ws, **given))

    def reference(xs: Leaves, ws: Leaves) -> Leaves:
        if rows == 1:
            return one(xs, ws)
        members = [one(tuple(x[r] for x in xs), ws) for r in range(rows)]
        return tuple(np.stack(v) for v in zip(*members, strict=True))

    mapped = jax.vmap(f, in_axes=(0, None)) if rows > 1 else f
    what = f"stencil {which} {shape} {modes} steps {steps} rows {rows} fill {fill} plan {plan}"
    run(what, SUBJECTS["add i32"], mapped, [arguments() for _ in range(2)], reference, plan)


FAMILIES: dict[str, tuple[Callable[[Rng, int], None], int]] = {
    "scan": (scan, len(SCANS)),
    "chains": (chains, len(SCANS)),
    "reduce": (reduce, len(REDUCTIONS)),
    "segments": (segments, len(SEGMENTS)),
    "hist": (hist, len(HISTOGRAMS)),
    "martin": (martin, len(MARTIN)),
    "stencil": (stencil, len(STENCILS)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", type=int, help="of each operator")
    parser.add_argument("families", nargs="+", choices=FAMILIES)
    parser.add_argument("--device", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of an operator's first call")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of operators")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    os.environ["JAXPRIMS_EMULATION_DEVICE"] = options.device
    os.environ["JAXPRIMS_EMULATION_SEED"] = str(options.seed)
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", jp.IdentityWarning)
    warnings.simplefilter("error", jp.FallbackWarning)
    _watch()
    wrongs = 0
    for family in options.families:
        case, subjects = FAMILIES[family]
        for which, k in itertools.product(options.only or range(subjects), range(options.first, options.first + options.calls)):
            try:
                with np.errstate(all="ignore"):
                    case(np.random.default_rng([options.seed, which, k]), which)
            except Wrong as e:
                wrongs += 1
                print(f"{family} --only {which} --first {k}: {e}", flush=True)
                if not options.keep_going:
                    raise SystemExit(1) from None
    print(" ".join(f"{name}:{count}" for name, count in emulator.launches().items()))
    print(f"{counts.kernels} kernels, {counts.cases} cases")
    raise SystemExit(wrongs > 0)


if __name__ == "__main__":
    main()
