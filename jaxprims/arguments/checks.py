"""What users hand over, checked; indices into bins, brought into range and flattened."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MODES = ("drop", "clip", "wrap")
_ARRAY_LIKE = (jax.Array, np.ndarray, np.generic, int, float, complex)


def dtype_of(x: Any) -> Any:
    """The dtype of what JAX takes for an array; object for anything else. Quick: eager calls ask first of all."""
    if isinstance(x, jax.Array):
        return x.dtype
    taken = isinstance(x, _ARRAY_LIKE) and not isinstance(x, np.ma.MaskedArray)
    return jnp.result_type(x) if taken else np.dtype(object)


def lies_as_taken(x: np.ndarray | np.generic) -> bool:
    """Without a mask, its bytes in this machine's order? What ``jax.jit`` compiled for an array before does not look again."""
    return x.dtype.isnative and not isinstance(x, np.ma.MaskedArray)


_WIDE = frozenset(map(np.dtype, ("float64", "int64", "uint64", "complex128")))


def is_too_wide(dtype: Any) -> bool:
    """Of 64 bits (each part of 64), which there are while ``jax_enable_x64`` is set alone; arrays outlive that."""
    return dtype in _WIDE and not jax.config.jax_enable_x64


def sizes_of(num_bins: Any) -> tuple[int, ...]:
    sizes = num_bins if isinstance(num_bins, tuple) else (num_bins,)
    if not sizes:
        raise ValueError("num_bins must be an integer or a tuple of at least one, got ()")
    out = []
    for n in sizes:
        if isinstance(n, (bool, np.bool_)) or not hasattr(n, "__index__"):
            raise TypeError(f"num_bins must be an integer or a tuple of integers, got {num_bins!r}")
        try:
            out.append(n.__index__())
        except TypeError:
            raise TypeError(f"num_bins must be known when the function is traced, got {num_bins!r}") from None
        if out[-1] < 0:
            raise ValueError(f"num_bins must not be negative, got {num_bins!r}")
    if math.prod(out) >= 2**47:
        raise ValueError(f"num_bins must be fewer than any memory has bytes (2^47), got {num_bins!r}")
    return tuple(out)


NOTE = "jaxprims: while tracing"
"""How the note starts that an exception of the user's function gets."""


def called(name: str, fn: Callable[..., Any], *args: Any) -> Any:
    """What the user's function returns. What it raises is raised as it is, with a note that names the function."""
    try:
        return fn(*args)
    except Exception as e:
        if not any(note.startswith(NOTE) for note in getattr(e, "__notes__", ())):
            e.add_note(f"{NOTE} {name} on {', '.join(map(_shown, jax.tree.leaves(args)))}")
        raise


def _shown(x: Any) -> str:
    return jax.typeof(x).str_short() if isinstance(x, _ARRAY_LIKE) else repr(x)


def as_array(x: Any, name: str) -> Any:
    if isinstance(x, jax.Array):
        return x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) if is_too_wide(x.dtype) else x
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as e:
        raise TypeError(f"{name}: {type(x).__name__} is not an array: {x!r:.100} ({e})") from None


def integer(x: Any, name: str) -> int:
    """One that is known when the function is traced."""
    if not isinstance(x, (bool, np.bool_)) and hasattr(x, "__index__"):
        try:
            return operator.index(x)
        except TypeError:  # an array, of floats say, or one that is traced
            pass
    known = " that is known when the function is traced" if isinstance(x, jax.core.Tracer) else ""
    raise TypeError(f"{name} must be an integer{known}, got {x!r:.100}") from None


def check_index(dtype: Any, name: str) -> None:
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {dtype}")


def index_array(x: Any, name: str) -> Any:
    """Integers [N]."""
    array = as_array(x, name)
    check_index(array.dtype, name)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape [N], got {array.shape}")
    return array


def check_numbers(dtype: Any, name: str) -> None:
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(f"{name} must be numbers, got {dtype}")


def in_mode(index: Sequence[Any], sizes: Sequence[int], mode: str) -> tuple[Any, ...]:
    if mode == "drop":
        return tuple(index)
    if min(sizes) == 0:
        return tuple(jnp.full_like(i, -1) if jnp.issubdtype(i.dtype, jnp.signedinteger) else i for i in index)
    out = []
    for i, n in zip(index, sizes, strict=True):
        top = int(jnp.iinfo(i.dtype).max)
        low = 0 if int(jnp.iinfo(i.dtype).min) < 0 else None
        if mode == "clip":
            i = i if low is None else jnp.maximum(i, 0)
            out.append(i if n - 1 > top else jnp.minimum(i, n - 1))
        elif n <= top:
            out.append(jnp.mod(i, jnp.asarray(n, i.dtype)))
        else:  # every value of this dtype is below n; a negative one wraps around once
            wide = i.astype(jnp.int32 if n < 2**31 else jnp.int64)
            out.append(jnp.where(wide < 0, wide + n, wide))
    return tuple(out)


def flat_index(index: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
    """One index into the flattened bins; -1 (or whatever is out of range) where it is to be dropped. int32 where that will do."""
    total = math.prod(sizes)
    narrow = total < 2**31 - 1
    if len(sizes) == 1:
        i = index[0]
        if not narrow:
            return i.astype(jnp.int64) if jax.config.jax_enable_x64 and i.dtype != jnp.uint64 else i
        if i.dtype == jnp.int32 or np.dtype(i.dtype).itemsize < 4:
            return i.astype(jnp.int32)
        low = 0 if jnp.issubdtype(i.dtype, jnp.signedinteger) else None
        inside = i < total if low is None else (i >= 0) & (i < total)
        return jnp.where(inside, i.astype(jnp.int32), -1)
    if not narrow and not jax.config.jax_enable_x64:
        raise ValueError(f"num_bins={sizes} holds more than 2^31 bins: jax_enable_x64 is needed to index them")
    wide = jnp.int32 if narrow else jnp.int64
    flat, inside = jnp.zeros((), wide), jnp.asarray(True)
    for i, n in zip(index, sizes, strict=True):
        top = int(jnp.iinfo(i.dtype).max)
        fits = i >= 0 if n > top else (i >= 0) & (i < n)
        inside = inside & fits
        flat = flat * n + jnp.where(fits, i, 0).astype(wide)
    return jnp.where(inside, flat, -1)


def truth(value: Any, name: str) -> bool:
    """What JAX's functions take for a flag: whatever is true or false."""
    try:
        return bool(value)
    except (TypeError, ValueError):  # an array, or one that is traced
        raise TypeError(f"{name} must be True or False, got {value!r:.100}") from None


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)
