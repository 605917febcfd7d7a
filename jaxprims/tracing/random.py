"""Random keys: a key of threefry is two words of 32 bits, as a complex number is two parts, and what ``jax.random`` draws from
it is integer arithmetic that JAX's own implementation spells out. Keys of other generators are left to plain XLA.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_prng_impl

from .emit import Unsupported
from .keys import is_key
from .lowering import Lowering
from .values import Array, Value, View, check_shape, constants, loaded, row_major, scalar_dtypes

Words = tuple[jax.Array, jax.Array]


def threefry(k0: jax.Array, k1: jax.Array, x0: jax.Array, x1: jax.Array) -> Words:
    """Threefry-2x32 in 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)."""
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + k0, x1 + k1
    for five in range(5):
        for by in (13, 15, 26, 6) if five % 2 == 0 else (17, 29, 16, 24):
            x0 = x0 + x1
            rotated = lax.shift_left(x1, jnp.uint32(by)) | lax.shift_right_logical(x1, jnp.uint32(32 - by))
            x1 = x0 ^ rotated
        x0, x1 = x0 + keys[(five + 1) % 3], x1 + keys[(five + 2) % 3] + jnp.uint32(five + 1)
    return x0, x1


def random_at(k0: jax.Array, k1: jax.Array, at: jax.Array, bit_width: int) -> jax.Array:
    """What ``jax.random.bits`` has at a position of an array, of a key's two words."""
    return joined(*threefry(k0, k1, jnp.zeros_like(at), at), bit_width)


def joined(high: jax.Array, low: jax.Array, bit_width: int) -> jax.Array:
    """A number of so many bits of two words."""
    if bit_width == 64:
        return high.astype(jnp.uint64) << jnp.uint64(32) | low.astype(jnp.uint64)
    return (high ^ low).astype(f"uint{bit_width}")


def threefry2x32(e: Lowering, eqn: Any, *xs: Value) -> list[Array]:
    shape = check_shape(eqn.outvars[0].aval.shape, "threefry2x32")
    columns = [np.broadcast_to(loaded(e, x, "threefry2x32").parts[0], shape).ravel().tolist() for x in xs]
    rows = np.array([e.inline(threefry, *at) for at in zip(*columns, strict=True)], np.int64).reshape(-1, 2)
    return [Array(np.dtype(np.uint32), (rows[:, k].reshape(shape),)) for k in range(2)]


def iota_2x32_shape(e: Lowering, eqn: Any) -> list[Array]:
    shape = check_shape(eqn.params["shape"], "iota_2x32_shape")
    low = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    return [constants(e, words, "iota_2x32_shape") for words in (np.zeros_like(low), low)]


def wrap(e: Lowering, eqn: Any, x: Value) -> Value:
    """Words to keys: the last axis goes."""
    dtype = eqn.outvars[0].aval.dtype
    scalar_dtypes(dtype, "random_wrap")
    if isinstance(x, View) and x.base is None and (x.strides, x.offset, x.size) == (row_major(x.shape), 0, math.prod(x.shape)):
        return View(dtype, x.uniform, x.size // 2, x.shape[:-1], row_major(x.shape[:-1]))
    words = loaded(e, x, "random_wrap").parts[0]
    return Array(dtype, (words[..., 0], words[..., 1]))


def _words(keys: Array) -> Array:
    return Array(np.dtype(np.uint32), (np.stack(keys.parts, -1),))


def _for_each(result: Callable[..., Any], keyed: bool) -> Callable[..., Array]:
    """A rule that applies JAX's function to each key (or seed), with what belongs to it: ``result(params, key, more...)``.
    ``keyed``: it gives keys."""

    def rule(e: Lowering, eqn: Any, *xs: Value) -> Array:
        name, aval = eqn.primitive.name, eqn.outvars[0].aval
        check_shape(aval.shape, name)
        scalar_dtypes(aval.dtype, name)
        given = [loaded(e, x, name) for x in xs]
        if len({x.shape for x in given}) > 1:
            raise Unsupported(name, "of arrays of several shapes")
        arrays = [_words(x) if is_key(x.dtype) else x for x in given]
        inside = [x.shape[len(g.shape) :] for g, x in zip(given, arrays, strict=True)]
        structs = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(inside, arrays, strict=True)]
        closed = jax.make_jaxpr(lambda *args: result(eqn.params, *args))(*structs)
        outer = given[0].shape
        rows = []
        for at in np.ndindex(*outer):
            (y,) = e.evaluate(closed.jaxpr, closed.consts, [x.map(operator.itemgetter(at)) for x in arrays])
            rows.append(loaded(e, y, name).parts[0])
        out = np.stack(rows) if rows else np.zeros((0, *aval.shape[len(outer) :], *(2,) * keyed), np.int64)
        parts = (out[..., 0], out[..., 1]) if keyed else (out,)
        return Array(aval.dtype if keyed else np.dtype(aval.dtype), tuple(p.reshape(aval.shape) for p in parts))

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "threefry2x32": threefry2x32,
    "iota_2x32_shape": iota_2x32_shape,
    "random_wrap": wrap,
    "random_unwrap": lambda e, eqn, keys: _words(loaded(e, keys, "random_unwrap")),
    "random_seed": _for_each(lambda params, seed: threefry_prng_impl.seed(seed), keyed=True),
    "random_fold_in": _for_each(lambda params, key, n: threefry_prng_impl.fold_in(key, n), keyed=True),
    "random_split": _for_each(lambda params, key: threefry_prng_impl.split(key, tuple(params["shape"])), keyed=True),
    "random_bits": _for_each(
        lambda params, key: threefry_prng_impl.random_bits(key, params["bit_width"], tuple(params["shape"])), keyed=False
    ),
}
