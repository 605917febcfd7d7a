"""What a jaxpr's variable stands for while it is lowered: a small array of scalars, or a view of a captured array.

An :class:`Array` holds the number of every scalar (a complex array has two parts: real, imaginary). A :class:`View` holds
none: its scalars are loaded when something reads them, so a captured array may be as large as it likes. Positions that
are computed are :class:`Index`, always in range.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.program import dtype_name, numpy_dtype
from .emit import MAX_SLOTS, Emitter, Unsupported
from .keys import is_key, plain_dtype, threefry_dtype


def scalar_dtypes(dtype: Any, primitive: str) -> tuple[str, ...]:
    """The dtypes of the scalars that make up one number: two for a complex one, or for a random key."""
    if is_key(dtype):
        if dtype != threefry_dtype():
            raise Unsupported(primitive, f"of keys of another generator than threefry ({dtype})")
        return "u32", "u32"
    t = np.dtype(dtype)
    if t.kind == "c":
        return ("f32" if t.itemsize == 8 else "f64",) * 2
    try:
        return (dtype_name(t),)
    except (KeyError, TypeError):
        raise Unsupported(primitive, f"kernels have no scalars of dtype {dtype}") from None


def check_shape(shape: Sequence[Any], primitive: str) -> tuple[int, ...]:
    """The shape, if an array of it may be split into scalars."""
    if not all(isinstance(n, int) for n in shape):
        raise Unsupported(primitive, f"an array inside the function has the symbolic shape {tuple(shape)}")
    if math.prod(shape) > MAX_SLOTS:
        raise Unsupported(primitive, f"it makes an array of {math.prod(shape)} scalars; at most {MAX_SLOTS} are compiled")
    return tuple(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Array:
    """Scalars of a small array: ``parts[k][i, j, ...]`` is the number of a value."""

    dtype: np.dtype
    parts: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def complex(self) -> bool:
        return len(self.parts) == 2

    def map(self, f: Callable[[np.ndarray], np.ndarray]) -> Array:
        """Moves scalars: ``f`` acts on the arrays of numbers."""
        return Array(self.dtype, tuple(np.asarray(f(p)) for p in self.parts))

    def each(self, f: Callable[[int], int]) -> Array:
        """Replaces each number."""
        return self.map(lambda p: np.array([f(v) for v in p.ravel().tolist()], np.int64).reshape(p.shape))

    def scalar(self) -> int:
        """The value of a real array of one scalar."""
        return int(self.parts[0].item())


@dataclasses.dataclass(frozen=True)
class Index:
    """A position in a dimension: ``offset``, plus a value in ``[0, count)`` if there is one."""

    value: int | None
    offset: int
    count: int = 1

    def __add__(self, n: int) -> Index:
        return Index(self.value, self.offset + n, self.count)


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Element ``i`` is number ``base + offset + sum(i * strides)`` of a captured array (a complex one has pairs of scalars)."""

    dtype: np.dtype
    uniform: int
    size: int  # numbers in the captured array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    base: int | None = None  # a value

    @staticmethod
    def whole(dtype: Any, uniform: int, shape: tuple[int, ...]) -> View:
        return View(plain_dtype(dtype), uniform, math.prod(shape), shape, row_major(shape))

    @property
    def _positions(self) -> str:
        """The dtype that holds all positions of scalars."""
        return "s32" if 2 * self.size < 2**31 else "s64"

    def replace(self, **changes: Any) -> View:
        return dataclasses.replace(self, **changes)

    def each(self, f: Callable[[int], int]) -> View:
        return self if self.base is None else self.replace(base=f(self.base))

    def array(self, e: Emitter, primitive: str) -> Array:
        """All of it, loaded."""
        shape = check_shape(self.shape, primitive)
        loaded = [self.load(e, [Index(None, i) for i in at]) for at in np.ndindex(shape)]
        parts = zip(*loaded, strict=True) if loaded else [()] * len(scalar_dtypes(self.dtype, primitive))
        return Array(self.dtype, tuple(np.array(p, np.int64).reshape(shape) for p in parts))

    def moved(self, e: Emitter, at: Sequence[Index]) -> View:
        """The view whose origin is here."""
        wide = self._positions
        base = None if self.base is None else e.convert(self.base, wide)
        for i, stride in zip(at, self.strides, strict=True):
            if i.value is not None:
                step = e.op("mul", e.convert(i.value, wide), e.const(stride, wide))
                base = step if base is None else e.op("add", base, step)
        offset = self.offset + sum(i.offset * s for i, s in zip(at, self.strides, strict=True))
        return self.replace(base=base, offset=offset)

    def load(self, e: Emitter, at: Sequence[Index]) -> tuple[int, ...]:
        """The scalars of one element."""
        if self.size == 0:
            raise Unsupported("captured array", f"it is read, and has shape {self.shape}")
        here, wide = self.moved(e, at), self._positions
        position = e.const(here.offset, wide)
        if here.base is not None:
            position = e.op("add", e.convert(here.base, wide), position)
        dtypes = scalar_dtypes(self.dtype, "captured array")
        if len(dtypes) == 2:
            position = e.op("mul", position, e.const(2, wide))
        return tuple(e.emit("load", t, e.op("add", position, e.const(k, wide)), attr=self.uniform) for k, t in enumerate(dtypes))


Value = Array | View


def loaded(e: Emitter, v: Value, name: str) -> Array:
    return v if isinstance(v, Array) else v.array(e, name)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array, in elements."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def constants(e: Emitter, a: Any, primitive: str) -> Array:
    """A NumPy array as constants."""
    a = np.asarray(a)
    (t, *_) = dtypes = scalar_dtypes(a.dtype, primitive)
    check_shape(a.shape, primitive)
    parts = (a.real, a.imag) if len(dtypes) == 2 else (a,)
    return Array(a.dtype, tuple(np.array([e.const(x, t) for x in p.ravel()], np.int64).reshape(a.shape) for p in parts))


def clamp_index(e: Emitter, value: int, count: int) -> Index:
    """``value``, of any integer dtype, clamped to ``[0, count)``."""
    known = e.constant(value)
    if known is not None:
        return Index(None, min(max(int(known), 0), count - 1))
    if count <= 1:
        return Index(None, 0)
    dtype = e.dtype(value)
    if dtype in ("s8", "u8", "s16", "u16", "b1"):
        value, dtype = e.convert(value, "s32"), "s32"
    if dtype[0] == "s":
        value = e.op("max", value, e.const(0, dtype))
    if count - 1 < np.iinfo(numpy_dtype(dtype)).max:
        value = e.op("min", value, e.const(count - 1, dtype))
    return Index(e.convert(value, "s32" if count <= 2**31 else "s64"), 0, count)


def read(e: Emitter, value: Value, at: Sequence[Index]) -> tuple[int, ...]:
    """The scalars of one element. In an array of scalars a computed position is a tree of selections."""
    if isinstance(value, View):
        return value.load(e, at)
    return tuple(_pick(e, p, at) for p in value.parts)


def _pick(e: Emitter, part: np.ndarray, at: Sequence[Index]) -> int:
    if not at:
        return int(part[()])
    first, *rest = at
    if first.value is None:
        return _pick(e, part[first.offset], rest)
    return by_number(e, first.value, first.count, lambda k: _pick(e, part[first.offset + k], rest))


def by_number(e: Emitter, which: int, count: int, case: Callable[[int], int]) -> int:
    """``case(which)``, or of the first or the last where that is none below ``count``: selections by bisection."""

    def between(low: int, high: int) -> int:
        if high - low == 1:
            return case(low)
        middle = (low + high) // 2
        return e.select(e.op("lt", which, e.like(which, middle)), between(low, middle), between(middle, high))

    return between(0, count)
