"""Scans, and how their tiles wait."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import gpu_plans
from ..gpu_contestants import Prepare, compute, cub, cupy, empty, futhark_cuda, jaxprims, torch, xla
from ..gpu_measure import small_floats, uniform_ints
from .case import OURS, Case, Sizes


def scans(s: Sizes) -> list[Case]:
    n = s.large
    wide = 1024 if n > 2**20 else 64
    walk = functools.cache(lambda: (small_floats(6, n),))
    maps = functools.cache(lambda: (jnp.where(uniform_ints(7, n, 2) == 0, jnp.float32(1), jnp.float32(-1)), *walk()))
    starts = functools.cache(lambda: (*walk(), uniform_ints(8, n, 20) == 0))
    matrix = functools.cache(lambda: (walk()[0][: n // wide * wide].reshape(-1, wide),))
    pair = jax.jit(lambda a, b: (jnp.stack([a, b], 1),))

    def like_first(x: jax.Array) -> list[jax.Array]:
        return [empty(x.shape, x.dtype)]

    def plus(library: Any, cp: Any, x: Any) -> Any:
        out = cp.empty_like(x)
        zero = np.zeros(1, np.float32)
        call = functools.partial(
            library.inclusive_scan, d_in=x, d_out=out, op=library.OpKind.PLUS, init_value=zero, num_items=len(x)
        )
        return call, out

    cumsum: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_add", like_first, lambda x: [len(x)]),
        "torch": torch(lambda t, x: t.cumsum(x, 0)),
        OURS: jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": xla(jnp.cumsum),
        "cupy": cupy(lambda cp, x: cp.cumsum(x, dtype=cp.float32)),
        "cuda.compute": compute(plus),
        "futhark": futhark_cuda("cumsum", file="scan"),
    }
    affine: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_affine", like_first, lambda x: [len(x)], pair, lambda y: (y[:, 0], y[:, 1])),
        OURS: jaxprims(lambda jp, a, b: jp.scan((a, b), jp.monoids.affine)),
        "xla": xla(lambda a, b: jax.lax.associative_scan(_affine, (a, b))),
        "futhark": futhark_cuda("affine", file="scan"),
    }
    largest: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_max", like_first, lambda x: [len(x)]),
        "torch": torch(lambda t, x: t.cummax(x, 0)[0]),
        OURS: jaxprims(lambda jp, x: jp.cummax(x)),
        "xla": xla(jax.lax.cummax),
    }

    def along(axis: int) -> dict[str, Prepare]:
        return {
            "torch": torch(lambda t, x: t.cumsum(x, axis)),
            OURS: jaxprims(lambda jp, x: jp.cumsum(x, axis)),
            "xla": xla(lambda x: jnp.cumsum(x, axis)),
            "cupy": cupy(lambda cp, x: cp.cumsum(x, axis, dtype=cp.float32)),
        }

    def recurrence(jp: Any, a: jax.Array, b: jax.Array) -> jax.Array:
        return jp.linear_recurrence(a, b)

    rows = n // wide
    return [
        Case("scans", "cumsum", n, 8 * n, walk, cumsum),
        Case("scans", "affine maps", n, 16 * n, maps, affine),
        Case("scans", "linear recurrence", n, 12 * n, maps, {OURS: jaxprims(recurrence)}),
        Case("scans", "cummax", n, 8 * n, walk, largest),
        Case("scans", "cumsum, restarts", n, 9 * n, starts, {OURS: jaxprims(lambda jp, x, c: jp.scan(x, segment_starts=c))}),
        Case("scans", f"cumsum, {rows:,} rows of {wide:,}", n, 8 * n, matrix, along(1)),
        Case("scans", f"cumsum along axis 0 of {rows:,} × {wide:,}", n, 8 * n, matrix, along(0)),
    ]


def scan_plans(quick: bool) -> list[Case]:
    """Whether tiles wait in shared memory: the plan that is chosen against both, of lengths and rows between which it changes."""
    rows: list[tuple[tuple[int, ...], Any]] = [((2**k,), np.float32) for k in (17, 19, 20, 21, 22, 23, 24, 25, 27)]
    rows += [((2**k,), np.uint8) for k in (20, 22, 24, 27)]
    rows += [
        ((m, n), np.float32) for m, n in ((131_072, 1024), (9000, 7001), (900, 70_001), (64, 2**20), (8, 2**23), (64, 2**16))
    ]

    def scanned(jp: Any, x: jax.Array) -> jax.Array:
        return jp.scan(x, axis=-1)

    def composed(jp: Any, a: jax.Array, b: jax.Array) -> Any:
        return jp.scan((a, b), jp.monoids.affine)

    def all_plans(fn: Callable[..., Any]) -> dict[str, Prepare]:
        return {OURS: jaxprims(fn), **{name: jaxprims(fn, plan) for name, plan in gpu_plans.SCANS.items()}}

    def cumsum(shape: tuple[int, ...], dtype: Any) -> Case:
        n = int(np.prod(shape))
        name = f"cumsum, {'×'.join(f'{k:,}' for k in shape)} {np.dtype(dtype).name}"
        x = lambda: (small_floats(15, n).reshape(shape).astype(dtype),)  # noqa: E731
        contestants = all_plans(scanned) | {"xla": xla(lambda x: jnp.cumsum(x, axis=-1, dtype=x.dtype))}
        return Case("scan plans", name, n, 2 * n * np.dtype(dtype).itemsize, x, contestants, 1e-4)

    def affine(n: int) -> Case:
        make = lambda: (jnp.where(uniform_ints(7, n, 2) == 0, 1.0, -1.0), small_floats(6, n))  # noqa: E731
        contestants = all_plans(composed) | {"xla": xla(lambda a, b: jax.lax.associative_scan(_affine, (a, b)))}
        return Case("scan plans", f"affine maps, {n:,}", n, 16 * n, make, contestants, 1e-4)

    return [*(cumsum(*r) for r in rows[: 2 if quick else None]), *(affine(2**k) for k in (() if quick else (18, 20, 22, 24, 26)))]


def _affine(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0] * f[1] + g[1]
