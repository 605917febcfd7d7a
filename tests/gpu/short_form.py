"""Some thirty small calls that need each kind of kernel: for tools that slow a program down a hundredfold.

``python tests/gpu/short_form.py [PATTERN]`` runs them, and compares them with sequential loops.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import references
from references import affine, assert_close, matmul
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.targets.cuda.plans import HistogramPlan, ScanPlan, StencilPlan
from jaxprims.targets.plans import AnyKernel, forced

RNG = np.random.default_rng(7)


@dataclasses.dataclass(frozen=True)
class Call:
    """A function, its arguments, and what it shall give."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    want: Callable[[], Any]
    tolerance: float | None = None

    def check(self) -> None:
        with forced(AnyKernel()):  # few elements are XLA's else
            got = jax.jit(self.fn)(*self.args)
        assert_close(jax.block_until_ready(got), self.want(), self.tolerance)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-1000, 1000, shape).astype(np.int32)


def indices(n: int, bins: int) -> np.ndarray:
    """A tenth of them out of range; a third in one bin."""
    out = RNG.integers(0, bins, n).astype(np.int32)
    out[RNG.random(n) < 0.3] = bins // 2
    return np.where(RNG.random(n) < 0.1, RNG.choice([-1, bins, -(2**31), 2**31 - 1], n), out).astype(np.int32)


def offsets(lengths: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def saturate(a: Any, b: Any) -> Any:
    return jnp.minimum(a + b, jnp.uint32(2**24 - 1))


def saturate_numpy(a: Any, b: Any) -> Any:
    return np.minimum(a + b, np.uint32(2**24 - 1))


def rows_of(fn: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """A loop over rows."""
    return references.stack(*(fn(*row) for row in zip(*arrays, strict=True)))


def by_sums(values: np.ndarray, index: np.ndarray, bins: int) -> np.ndarray:
    """Sums by index, in float64 or wrapping integers."""
    kept = (index >= 0) & (index < bins)
    out = np.zeros((bins, *values.shape[1:]), references.wide(values).dtype)
    np.add.at(out, index[kept], values[kept])
    return out


def argmax_by_index(values: np.ndarray, index: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    best = np.full(bins, -np.inf, np.float32), np.full(bins, 2**31 - 1, np.int32)
    for k, (v, h) in enumerate(zip(values, index, strict=True)):
        if 0 <= h < bins and v > best[0][h]:
            best[0][h], best[1][h] = v, k
    return best


def folds(values: np.ndarray, at: np.ndarray, ufunc: np.ufunc, empty: float) -> np.ndarray:
    return np.array([ufunc.reduce(values[a:b], initial=empty) for a, b in itertools.pairwise(at)])


def _histograms() -> dict[str, Call]:
    n = 6000
    v, w = integers(n), floats(n)
    few, some, many = indices(n, 50), indices(n, 3000), indices(n, 150_000)
    u = RNG.integers(0, 2**23, n).astype(np.uint32)
    halves, bytes_, vectors = w.astype(jnp.bfloat16), RNG.integers(0, 256, n).astype(np.uint8), integers(n, 5)
    batch, rows = integers(40, 64), RNG.integers(-1, 17, (40, 64)).astype(np.int32)
    big_batch, big_rows = integers(3, 2000), RNG.integers(-1, 301, (3, 2000)).astype(np.int32)
    moments = (np.ones(n, np.float32), w, np.zeros(n, np.float32))
    dest = integers(50)
    one = np.zeros(n, np.int32)

    def two_parts(x: Any, i: Any, j: Any) -> Any:
        return jp.genhist(lambda x, i, j: ((i, x), (j, jnp.uint32(1))), (x, i, j), [jp.Bins(50), jp.Bins(3000)])

    def sums(h: int, **options: Any) -> Callable[..., Any]:
        return lambda x, i: jp.reduce_by_index(x, i, h, **options)

    def a_copy_each(x: Any, i: Any) -> Any:
        with forced(HistogramPlan("shared", subhistograms=1024)):
            return jp.reduce_by_index(x, i, 50)

    return {
        "hist add f32, a copy for each thread": Call(a_copy_each, (w, few), lambda: by_sums(w, few, 50), 1e-4),
        "hist add i32, 50 bins": Call(sums(50), (v, few), lambda: by_sums(v, few, 50)),
        "hist add f32, 50 bins": Call(sums(50), (w, few), lambda: by_sums(w, few, 50), 1e-4),
        "hist add f32, 3,000 bins": Call(sums(3000), (w, some), lambda: by_sums(w, some, 3000), 1e-4),
        "hist add i32, 150,000 bins": Call(sums(150_000), (v, many), lambda: by_sums(v, many, 150_000)),
        "hist add, one bin": Call(sums(1), (v, one), lambda: by_sums(v, one, 1)),
        "hist add bf16": Call(sums(50), (halves, few), lambda: by_sums(halves.astype(np.float32), few, 50), 2e-2),
        "hist add u8": Call(sums(50), (bytes_, few), lambda: by_sums(bytes_, few, 50).astype(np.uint8)),
        "hist dest": Call(
            lambda x, i, d: jp.reduce_by_index(x, i, 50, dest=d), (v, few, dest), lambda: dest + by_sums(v, few, 50)
        ),
        "hist max f32": Call(
            lambda x, i: jp.reduce_by_index(x, i, 3000, jnp.maximum), (w, some),
            lambda: references.reduce_by_index(w, some, 3000, np.maximum, np.float32(-np.inf)),
        ),
        "hist saturating (CAS)": Call(
            lambda x, i: jp.reduce_by_index(x, i, 50, saturate, identity=0), (u, few),
            lambda: references.reduce_by_index(u, few, 50, saturate_numpy, np.uint32(0)),
        ),
        "hist saturating (CAS), 150,000 bins": Call(
            lambda x, i: jp.reduce_by_index(x, i, 150_000, saturate, identity=0), (u, many),
            lambda: np.minimum(by_sums(u.astype(np.int64), many, 150_000), 2**24 - 1).astype(np.uint32),
        ),
        "hist argmax (pairs)": Call(
            lambda x, i: jp.reduce_by_index((x, jp.positions), i, 3000, jp.monoids.argmax), (w, some),
            lambda: argmax_by_index(w, some, 3000),
        ),
        "hist moments (XCG)": Call(
            lambda x, i: jp.reduce_by_index(x, i, 50, references.mean_variance(jnp.where), identity=(0.0, 0.0, 0.0)),
            (moments, few),
            lambda: references.reduce_by_index(moments, few, 50, references.mean_variance(np.where), (0.0, 0.0, 0.0)), 1e-3,
        ),
        "hist moments (XCG), 150,000 bins": Call(
            lambda x, i: jp.reduce_by_index(x, i, 150_000, references.mean_variance(jnp.where), identity=(0.0, 0.0, 0.0))[0],
            (moments, many), lambda: by_sums(moments[0], many, 150_000).astype(np.float32),
        ),
        "hist of vectors": Call(sums(50), (vectors, few), lambda: by_sums(vectors, few, 50)),
        "hist of two parts": Call(
            two_parts, (v, few, some),
            lambda: (by_sums(v, few, 50), by_sums(np.ones(n, np.uint32), some, 3000)),
        ),
        "hist, 40 small ones": Call(
            jax.vmap(sums(16)), (batch, rows), lambda: rows_of(lambda x, i: by_sums(x, i, 16), batch, rows)
        ),
        "hist, 3 larger ones": Call(
            jax.vmap(sums(300)), (big_batch, big_rows), lambda: rows_of(lambda x, i: by_sums(x, i, 300), big_batch, big_rows)
        ),
        "hist, sorted indices": Call(
            sums(3000, indices_are_sorted=True), (v, np.sort(some)), lambda: by_sums(v, np.sort(some), 3000)
        ),
    }  # fmt: skip


def _ordered() -> dict[str, Call]:
    n = 20_011
    x, ones = integers(n), np.where(RNG.random(n) < 0.5, -1, 1).astype(np.int32)
    starts = RNG.random(n) < 0.01
    table, tall = integers(33, 301), integers(700, 37)
    few, many, lying = integers(5, 3000), integers(900, 7), integers(7, 3001)
    turns = references.circulant(RNG, 3000)
    short, long_ = offsets(RNG.integers(0, 7, 4000)), offsets([0, 9000, 1, 0, 7000, 300, 0])
    ids = np.repeat(np.arange(len(short) - 1, dtype=np.int32), np.diff(short))
    a, b, c = integers(short[-1]), floats(long_[-1]), floats(short[-1])
    wide = np.stack([np.eye(3, dtype=np.int32)] * 400) + (RNG.random((400, 3, 3)) < 0.02)
    products = list(range(400))

    def waiting(*args: Any, **options: Any) -> Any:
        """As long sequences do, each a few tiles."""
        with forced(ScanPlan(waits=True)):
            return jp.scan(*args, **options)

    def total() -> np.ndarray:
        out = wide[0]
        for k in products[1:]:
            out = out @ wide[k]
        return out

    return {
        "scan add": Call(jp.cumsum, (x,), lambda: np.cumsum(x, dtype=np.int32)),
        "scan affine, reverse": Call(
            lambda a, b: jp.scan((a, b), affine, reverse=True), (ones, x),
            lambda: references.scan((ones, x), affine, reverse=True),
        ),
        "scan whose tiles wait": Call(
            lambda a, b: waiting((a, b), affine), (ones, x), lambda: references.scan((ones, x), affine)
        ),
        "scan of rows whose tiles wait": Call(
            lambda x: waiting(x, jnp.add, axis=1), (lying,), lambda: np.cumsum(lying, 1, dtype=np.int32)
        ),
        "scan exclusive": Call(
            lambda x: jp.scan(x, exclusive=True), (x,), lambda: np.concatenate([[0], np.cumsum(x[:-1], dtype=np.int32)])
        ),
        "scan with init": Call(lambda x: jp.scan(x, init=5), (x,), lambda: 5 + np.cumsum(x, dtype=np.int32)),
        "scan restarting": Call(
            lambda x, s: jp.scan(x, segment_starts=s), (x, starts), lambda: references.scan(x, np.add, starts=starts)
        ),
        "scan of rows": Call(lambda x: jp.cumsum(x, 1), (table,), lambda: np.cumsum(table, 1, dtype=np.int32)),
        "scan of small rows": Call(lambda x: jp.cumsum(x, 1), (many,), lambda: np.cumsum(many, 1, dtype=np.int32)),
        "scan across": Call(jp.cumsum, (tall,), lambda: np.cumsum(tall, 0, dtype=np.int32)),
        "scan of matrices": Call(
            lambda m: jp.scan(m, matmul), (turns,), lambda: references.scan(turns, matmul), 1e-3
        ),
        "recurrence": Call(
            jp.linear_recurrence, (ones, x), lambda: references.scan((ones, x), affine)[1]
        ),
        "reduce add": Call(jp.reduce, (x,), lambda: np.sum(x, dtype=np.int32)),
        "reduce in order": Call(
            lambda m: jp.reduce(m, matmul, axis=0), (wide,), total
        ),
        "reduce rows": Call(lambda x: jp.reduce(x, axis=1), (few,), lambda: np.sum(few, 1, dtype=np.int32)),
        "reduce small rows": Call(lambda x: jp.reduce(x, jnp.maximum, axis=1), (many,), lambda: np.max(many, 1)),
        "reduce columns": Call(lambda x: jp.reduce(x, axis=0), (tall,), lambda: np.sum(tall, 0, dtype=np.int32)),
        "reduce argmax": Call(
            lambda x: jp.reduce((x, jp.positions), jp.monoids.argmax), (c,), lambda: (np.max(c), np.argmax(c).astype(np.int32))
        ),
        "segments, short": Call(
            lambda v, o: jp.segment_reduce(v, jp.Offsets(o)), (a, short), lambda: folds(a, short, np.add, 0).astype(np.int32)
        ),
        "segments, long": Call(
            lambda v, o: jp.segment_reduce(v, jp.Offsets(o), jnp.maximum), (b, long_),
            lambda: folds(b, long_, np.maximum, -np.inf),
        ),
        "segments by ids": Call(
            lambda v, i: jp.segment_reduce(v, i, jnp.minimum, num_segments=len(short) - 1), (c, ids),
            lambda: folds(c, short, np.minimum, np.inf),
        ),
    }  # fmt: skip


def _stencils() -> dict[str, Call]:
    """Every boundary; one step, and several, chosen and forced."""

    def near(a: Any) -> Any:
        return a[-1, 0] + 3 * a[0, 2] - a[1, 0] * a[0, -1]

    def along(a: Any) -> Any:
        return a[-3] - a[1]

    def through(a: Any, w: Any) -> Any:
        return a[0, 0, 1] - a[0, -1, 0] * w[1, 0, 0] + a[-1, 0, 0]

    plate, line, solid, weights = integers(130, 300), integers(5000), integers(9, 20, 70), integers(9, 20, 70)
    out = {}
    for steps, depth in ((1, 0), (5, 1), (5, 3)):

        def run(x: Any, y: Any, z: Any, w: Any, steps: int = steps, depth: int = depth) -> Any:
            with forced(StencilPlan(depth)):
                one = functools.partial(jp.stencil, steps=steps, fill_value=3)
                given = [{"boundary": b} for b in BOUNDARIES]
                return [(one(near, x, **b), one(along, y, **b), one(through, z, constants=w, **b)) for b in given]

        def want(steps: int = steps) -> Any:
            one = functools.partial(stencil, steps=steps, fill=3)
            rows = [
                (one(near, [plate], b), one(along, [line], b), one(through, [solid], b, constants=[weights])) for b in BOUNDARIES
            ]
            return [tuple(leaf for (leaf,) in row) for row in rows]

        out[f"stencil, {steps} steps, {depth or 'all'} a launch"] = Call(run, (plate, line, solid, weights), want)
    return out


def calls() -> dict[str, Call]:
    """By name, made anew."""
    return {**_histograms(), **_ordered(), **_stencils()}


def main(pattern: str = "") -> int:
    """Runs them in order; the number that failed."""
    if os.environ.get("JAXPRIMS_REQUIRE_GPU") == "1" and jax.default_backend() != "gpu":
        print(f"short form: no GPU, JAX runs on {jax.default_backend()!r}", flush=True)
        return 1
    start, failed = time.monotonic(), 0
    chosen = {name: call for name, call in calls().items() if re.search(pattern, name)}
    print(f"{len(chosen)} calls on {jax.devices()[0].device_kind}", flush=True)
    for name, call in chosen.items():
        try:
            call.check()
            word = "ok"
        except Exception as error:  # the others shall be tried too
            failed += 1
            word = f"FAILED: {type(error).__name__}: {str(error).strip()[:600]}"
        print(f"{time.monotonic() - start:7.1f} s  {name}: {word}", flush=True)
    print(f"short form: {len(chosen) - failed} of {len(chosen)} right", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
