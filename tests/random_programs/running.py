"""Runs programs, and compares what they give."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

from .program import Program
from .transformations import TRANSFORMED, is_real

EPS = float(jnp.finfo(jnp.float32).eps)


def differs(got: Any, plain: Any, others: Sequence[Any] = (), odd: bool = False) -> str | None:
    """How results differ; ``others`` are what the plain ones might have been as well. ``odd``: XLA's maxima may lose a NaN."""
    if jax.tree.structure(got) != jax.tree.structure(plain):
        return f"{jax.tree.structure(got)} is not {jax.tree.structure(plain)}"
    for k, (g, p, *qs) in enumerate(zip(*map(jax.tree.leaves, (got, plain, *others)), strict=True)):
        if p.dtype == jax.dtypes.float0:
            continue
        if (g.shape, g.dtype, g.weak_type) != (p.shape, p.dtype, p.weak_type):
            return f"result {k} is {jax.typeof(g)}, not {jax.typeof(p)} (weak: {g.weak_type}, {p.weak_type})"
        inexact = jnp.issubdtype(p.dtype, jnp.inexact)
        wide = np.complex128 if p.dtype.kind == "c" else np.float64 if inexact else p.dtype
        largest = float(jnp.finfo(p.dtype).max) if inexact else 0
        g, p, *qs = (np.asarray(a).astype(wide) for a in (g, p, *qs))
        wrong = _far(g, p, qs, largest, odd) if inexact else _unequal(g, p, qs)
        if wrong.any():
            at = tuple(int(j[0]) for j in np.nonzero(np.atleast_1d(wrong)))[: wrong.ndim]
            return f"result {k}{p.shape}: {wrong.sum()} wrong, at {at} {g[at]}, not {p[at]} nor {[q[at] for q in qs]}"
    return None


def _unequal(g: Any, p: Any, others: Sequence[Any]) -> Any:
    sure = np.all([o == p for o in others], axis=0) & np.ones(p.shape, bool)
    return sure & (g != p) if sure.mean() > 0.9 else np.zeros(p.shape, bool)


def _far(g: Any, p: Any, others: Sequence[Any], largest: float, odd: bool) -> Any:
    with np.errstate(all="ignore"):
        finite = np.all(np.isfinite([p, *others]), axis=0)
        off = max((np.abs(o - p)[finite].max(initial=0) for o in others), default=0)
        exact = off == 0 and np.all(p[finite] * 64 == np.round(p[finite] * 64))
        bound = 0 if exact else 20 * off + 60 * EPS * np.abs(p[finite]).max(initial=0)
        to_infinity = np.isinf(g) & (np.sign(g) == np.sign(p)) & (np.abs(p) + bound >= largest)
        beyond = ~np.isfinite(p) & np.all([(o == p) | (np.isnan(o) & np.isnan(p)) for o in [p, *others]], axis=0)
        wrong = (finite & ~(np.abs(g - p) <= bound) & ~to_infinity) | (beyond & ~((g == p) | (np.isnan(g) & np.isnan(p))))
    return wrong & ~np.isnan(g) if odd else wrong


def check(p: Program) -> str | None:
    """What is wrong with the fused program, if anything is."""
    with warnings.catch_warnings(), jax.enable_x64(p.dtype == "float64"):
        warnings.simplefilter("ignore")
        f, arrays, transformed = p.function(), p.arrays(), TRANSFORMED[p.mode]
        plain = jax.jit(transformed(f, lambda f: f))
        try:
            expected = plain(*arrays)  # on one device: XLA's own parts of `where(x, cumsum(y), cummax(y))` are not always right
        except Exception:  # it has no derivative, say
            return None
        fused = transformed(f, jp.fuse)
        try:
            placed = _divided(arrays) if p.mode == "devices" else arrays
            got = jax.block_until_ready((fused if p.mode == "eager" else jax.jit(fused))(*placed))
        except Exception:
            return traceback.format_exc(limit=-8)
        if differs(got, expected, odd=p.odd) is None or p.dtype == "int32":
            return differs(got, expected, odd=p.odd)
        return differs(got, expected, _others(p, arrays), p.odd)


def _divided(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Over eight devices, where their lengths are multiples of that."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    parts = [jax.P("d") if a.shape[0] % 8 == 0 else jax.P() for a in arrays]
    return [jax.device_put(a, NamedSharding(mesh, part)) for a, part in zip(arrays, parts, strict=True)]


def _others(p: Program, arrays: Sequence[Any]) -> list[Any]:
    """The plain program's results in double precision, and of numbers that differ in the last bit."""
    draw, eps = np.random.default_rng(1), float(jnp.finfo(p.dtype).eps)
    plain = jax.jit(TRANSFORMED[p.mode](p.function(), lambda f: f))

    def moved(a: Any) -> Any:
        return (a * (1 + eps * draw.integers(-1, 2, a.shape))).astype(a.dtype) if is_real(a) else a

    others = [plain(*map(moved, arrays)) for _ in range(3 if p.kind == "rounded" else 0)]
    with jax.enable_x64(True):
        wide = jax.jit(TRANSFORMED[p.mode](p.function(), lambda f: f))
        return [*others, wide(*(a.astype(float) if is_real(a) else a for a in arrays))]


def shrunk(p: Program) -> Program:
    """With as few results as it takes."""
    for name in list(p.outputs):
        if len(p.outputs) > 1:
            before, p.outputs = p.outputs, [o for o in p.outputs if o != name]
            if check(p) is None:
                p.outputs = before
    return p


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    args = parser.parse_args()
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    begin, failed, done = time.monotonic(), 0, 0
    for number in range(args.count) if args.only is None else [args.only]:
        with forced(AnyKernel()) if number % 2 else contextlib.nullcontext():
            p = Program(args.seed, number)
            wrong = check(p)
            if wrong:
                failed += 1
                of = f"{p.mode}, {p.kind} {p.dtype}{list(p.shape)}{', odd' * p.odd}"
                print(f"\n--seed {args.seed} --only {number}: {of}\n{shrunk(p).text}\n{check(p)}", flush=True)
        done += 1
        if number % 40 == 39:
            jax.clear_caches()
        if time.monotonic() - begin > args.seconds:
            break
    print(f"{done} programs in {time.monotonic() - begin:.0f} s: {failed} failed")
    return bool(failed)
