"""Operands, as they are drawn, and the two functions of them that are to agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

Rng = np.random.Generator
Fn = Callable[..., Any]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float32", "float32", "float64")
ODD_NUMBERS = (np.nan, np.inf, -np.inf)
DERIVATIVES = ("jvp", "vjp", "transpose")


@dataclasses.dataclass(frozen=True)
class Array:
    """An operand: how it is drawn, and whether derivatives are taken by it."""

    shape: tuple[int, ...]
    dtype: str
    kind: str = "small"
    size: int = 0  # of what ids or offsets point into
    diff: bool = False

    def with_odd(self, rng: Rng, odd: Sequence[float]) -> np.ndarray:
        """A draw in which a few numbers are those of ``odd``."""
        x = self.draw(rng)
        if not odd or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        chosen = rng.random(x.shape) < rng.choice([0.001, 0.03, 0.3])
        return np.where(chosen, rng.choice(np.array(odd), x.shape), x).astype(x.dtype)

    def draw(self, rng: Rng) -> np.ndarray:
        shape, t = self.shape, jnp.dtype(self.dtype)
        if self.kind == "ids":
            info = np.iinfo(t)
            near = rng.integers(max(info.min, -2), min(info.max, self.size + 1), shape, endpoint=True)
            extreme = rng.choice(np.array([info.min, info.max], t), shape)
            return np.where(rng.random(shape) < 0.05, extreme, near.astype(t))
        if self.kind == "sorted":
            return np.sort(rng.integers(0, max(self.size, 1), shape), axis=-1).astype(t)
        if self.kind == "offsets":
            inner = np.sort(rng.integers(0, self.size, shape, endpoint=True), axis=-1)
            if shape[-1] > 1 and rng.random() < 0.7:
                inner[..., 0], inner[..., -1] = 0, self.size
            return inner.astype(t)
        if self.dtype == "bool":
            return rng.random(shape) < rng.choice([0.1, 0.5, 0.9])
        if self.kind == "unit":
            few = [1, 1, 3] if t.kind == "u" else [1, -1, 2] if t.itemsize > 2 or t.kind == "i" else [1, -1]
            few = few[:2] if np.prod(shape) > 200 else few  # whose product no float holds
            drawn = rng.choice(np.array(few), shape).astype(t)
            if t.itemsize == 2 and t.kind not in "iu":  # a dozen factors that no order lets overflow
                chosen = rng.random(shape) < 12 / max(1, drawn.size)
                drawn = np.where(chosen, rng.choice(np.array([2, 0.5]), shape), drawn).astype(t)
            return drawn
        if self.kind in ("distinct", "between"):
            values = rng.permutation(int(np.prod(shape))) - int(np.prod(shape)) // 2
            return (values.reshape(shape) + (0.25 if self.kind == "between" else 0)).astype(t)
        if self.kind == "positive":
            return (np.abs(rng.standard_normal(shape)) + 0.5).astype(t)
        if self.kind == "slow":  # beside the speed of light, three times as fast, too; and all of them together
            return (rng.uniform(-0.1, 0.1, shape) / max(1, np.prod(shape) / 100) ** 0.5).astype(t)
        if self.kind == "normal":
            return rng.standard_normal(shape).astype(t)
        if self.kind == "fine":  # so that what is combined of all neither grows nor comes to rest
            return (rng.standard_normal(shape) * 0.1 / max(1, np.prod(shape) / 100) ** 0.5).astype(t)
        if t.kind in "iu" and rng.random() < 0.3:
            info = np.iinfo(t)
            return rng.integers(info.min, info.max, shape, t, endpoint=True)
        drawn = rng.integers(0 if t.kind == "u" else -4, 5, shape)
        return (drawn + 1j * rng.integers(-3, 4, shape)).astype(t) if t.kind == "c" else drawn.astype(t)


@dataclasses.dataclass(frozen=True)
class Program:
    """Two functions of the same arrays that are to agree."""

    text: str
    mine: Fn
    plain: Fn
    arrays: tuple[Array, ...]
    linear: int | None = None  # the array that they are linear in
    smooth: bool = True  # derivatives agree wherever the arrays are drawn
    tolerance: float = 0.0
    traceable: bool = True
    odd: tuple[float, ...] = ()  # numbers that the two agree on, wherever they stand among others

    def around(self, text: str, mine: Fn, plain: Fn, arrays: Sequence[Array] | None = None, **others: Any) -> Program:
        more = {"arrays": tuple(arrays if arrays is not None else self.arrays)} | others
        return dataclasses.replace(self, text=f"{text}({self.text})", mine=mine, plain=plain, **more)
