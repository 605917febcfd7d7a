"""Grids, functions of neighbourhoods, and bits compared: shared by the tests of stencils."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from stencil_reference import BOUNDARIES


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.int32)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def weighed(*offsets: tuple[int, ...]) -> Callable[[Any], Any]:
    """The cells at these offsets, each times another number."""
    return lambda a: sum((2 * k + 1) * a[o] for k, o in enumerate(offsets))


def assert_same(got: Any, wanted: Any) -> None:
    """The same bits."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert g.shape == np.shape(w) and g.dtype == np.asarray(w).dtype, (g.shape, g.dtype, np.shape(w), np.asarray(w).dtype)
        assert np.asarray(g).tobytes() == np.asarray(w).tobytes(), (np.asarray(g), w)


# Lopsided; they reach beyond small grids on both sides.
NEAR: dict[int, Callable[[Any], Any]] = {
    1: weighed((-3,), (0,), (1,)),
    2: weighed((-1, 0), (0, -2), (0, 0), (2, 1)),
    3: weighed((0, 0, 0), (-1, 0, 1), (1, -2, 0), (0, 1, -1)),
    4: weighed((0, 0, 0, 0), (-1, 0, 0, 2), (0, 1, -1, 0), (1, 0, 0, -1)),
}


def mixed(rank: int) -> list[tuple[str, ...]]:
    """Boundaries by axis: each alone, and every two next to each other."""
    alone = [(b,) * rank for b in BOUNDARIES]
    if rank == 1:
        return alone
    pairs = list(itertools.permutations(BOUNDARIES, 2))
    return [*alone, *(tuple((p * rank)[:rank]) for p in pairs)]


def wave(u: Any, v: Any, speed: Any) -> Any:
    """u changes by v, v by u's curvature: two arrays of integers, and one that does not change."""
    return u[0, 0] + v[0, 0], v[0, 0] + speed[0, 1] * (u[1, 0] + u[-1, 0] + u[0, 2] + u[0, -1] - 4 * u[0, 0])


def turned(a: Any) -> Any:
    """Not linear, and of a value that shows every cell that was read wrongly."""
    return 0.7 * a[0] * a[1] - 0.4 * a[-1] + 0.3


def curved(a: Any) -> Any:
    return 0.8 * a[0, 0] * a[-1, 1] + 0.3 * a[1, -1] - 0.4 * a[0, 2]
