"""Inputs and contestants that several groups share."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...contestant import Answer, Inputs, Prepare, Run


def steps(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Float32 integers in [-8, 8] around 0: their prefix sums are exact in any order."""
    return rng.integers(-8, 9, shape, dtype=np.int8).astype(np.float32)


def walk(*shape: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {"x": steps(rng, *shape)}


@functools.lru_cache(maxsize=2)
def _buffer(shape: tuple[int, ...], dtype: str, k: int) -> np.ndarray:
    return np.empty(shape, dtype)


def like(array: np.ndarray, k: int = 0) -> np.ndarray:
    """An array of the same shape for a result. All contestants of a case write to the same one: memory is not endless."""
    return _buffer(array.shape, array.dtype.str, k)


def with_result(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x, like(x)


def like_inputs(inputs: Inputs) -> tuple[np.ndarray, ...]:
    """An array for each input, of its shape."""
    return tuple(like(a, k) for k, a in enumerate(inputs.values()))


def like_first(inputs: Inputs) -> tuple[np.ndarray, ...]:
    return like_inputs(inputs)[:1]


def the_input(inputs: Inputs) -> tuple[np.ndarray, ...]:
    """The result overwrites the input; see :func:`copied`."""
    return (next(iter(inputs.values())),)


def copied(prepare: Prepare) -> Prepare:
    """The contestant with an input that it may overwrite. Its answer is that of its first call."""

    def prepare_copied(inputs: Inputs) -> Run:
        ((name, array),) = inputs.items()
        mine = like(array)
        mine[...] = array
        return prepare({name: mine})

    return prepare_copied


def merged(axis: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape as (axes before, axis, axes after)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def in_shape(prepare: Prepare, shape: tuple[int, ...], result: tuple[int, ...]) -> Prepare:
    """A contestant that sees its input in another shape."""

    def prepare_in_shape(inputs: Inputs) -> Run:
        run = prepare({name: a.reshape(shape) for name, a in inputs.items()})

        def fetch(r: Any) -> Answer:
            return tuple(a.reshape(result) for a in run.fetch(r))

        return dataclasses.replace(run, fetch=fetch)

    return prepare_in_shape
