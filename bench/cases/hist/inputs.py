"""Inputs and contestants that several groups share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ...contestant import Case, Check, Inputs, Prepare, equal
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native

Indices = Callable[[np.random.Generator, int, int], np.ndarray]


def small_integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Float32 integers in [-8, 8): their sums are exact in any order, so that answers can be compared for equality."""
    return rng.integers(-8, 8, shape, dtype=np.int8).astype(np.float32)


def uniform(rng: np.random.Generator, n: int, bins: int) -> np.ndarray:
    return rng.integers(0, bins, n, dtype=np.int32)


def values_and_indices(n: int, bins: int, indices: Indices = uniform) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {"values": small_integers(rng, n), "indices": indices(rng, n, bins)}


def wide_indices(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 64-bit types that NumPy's bincount would convert to at each call."""
    return values.astype(np.float64), indices.astype(np.int64)


def long_indices(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's scatter takes 64-bit indices only."""
    return values, indices.astype(np.int64)


def boost_sum(bh: Any, threads: int, values: np.ndarray, indices: np.ndarray, bins: int) -> np.ndarray:
    axis = bh.axis.Integer(0, bins, underflow=False, overflow=False)
    h = bh.Histogram(axis, storage=bh.storage.Double())
    return h.fill(indices, weight=values, threads=threads).view()


def sum_by_index(
    group: str,
    name: str,
    n: int,
    bins: int,
    targets: Mapping[str, float],
    indices: Indices = uniform,
    are_sorted: bool = False,
    check: Check = equal,
) -> Case:
    """A sum by index of n float32, by everyone. Equal to the last bit unless a bin's sum passes 2^24."""
    contestants: dict[str, Prepare] = {
        **native("sum_by_index", bins),
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jp.reduce_by_index(v, i, bins, indices_are_sorted=are_sorted)),
        "xla": arrays.xla(lambda v, i: jax.ops.segment_sum(v, i, bins, indices_are_sorted=are_sorted)),
        "numpy": arrays.numpy(lambda v, i: np.bincount(i, v, bins), wide_indices),
        "torch": arrays.torch(lambda t, v, i: t.zeros(bins).scatter_add_(0, i, v), long_indices),
        "boost": arrays.boost(lambda bh, threads, v, i: boost_sum(bh, threads, v, i, bins)),
        "futhark": futhark("sum_by_index", bins),
    }
    return Case(group, name, n, values_and_indices(n, bins, indices), contestants, check, targets, {"bins": bins})
