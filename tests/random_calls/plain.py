"""The same in plain JAX, one element after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .program import Fn


def slices(tree: Any, k: Any) -> Any:
    return jax.tree.map(lambda x: x[k], tree)


def select(flag: Any, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), a, b)


def loop(xs: Any, op: Fn, init: Any, cut: Any = None, reverse: bool = False) -> tuple[Any, Any, Any]:
    """All states of a scan along axis 0; those before each element, and whether there is one; the last."""
    n = jax.tree.leaves(xs)[0].shape[0]
    begins = jnp.zeros(n, bool) if cut is None else cut
    has = init is not None
    start = init if has else jax.tree.map(lambda x: jnp.zeros_like(x, shape=x.shape[1:]), xs)

    def step(carry: Any, row: Any) -> Any:
        known, state = carry
        x, begins_here = row
        state = select(begins_here, start, state)
        known = jnp.where(begins_here, has, known)
        after = select(known, op(state, x), x)
        return (jnp.ones_like(known), after), (after, state, known)

    if n == 0:
        return xs, (xs, begins), start
    (_, last), (after, before, known) = jax.lax.scan(step, (jnp.full((), has), start), (xs, begins), reverse=reverse)
    return after, (before, known), last


def scan(
    xs: Any, op: Fn, identity: Any = None, init: Any = None, cut: Any = None, exclusive: bool = False, reverse: bool = False
) -> Any:
    after, (before, known), _ = loop(xs, op, init, cut, reverse)
    if not exclusive:
        return after

    def filled(y: Any, i: Any) -> Any:
        return jnp.where(known.reshape(-1, *[1] * (y.ndim - 1)), y, jnp.asarray(i, y.dtype))

    return before if init is not None else jax.tree.map(filled, before, identity)


def reduce(xs: Any, op: Fn, identity: Any = None, init: Any = None) -> Any:
    n = jax.tree.leaves(xs)[0].shape[0]
    if n == 0:
        full = jax.tree.map(lambda x, i: jnp.broadcast_to(jnp.asarray(i, x.dtype), x.shape[1:]), xs, identity)
        return full if init is None else init
    return loop(xs, op, init)[2]


def by_index(values: Any, index: Any, h: int, op: Fn, start: Any, mode: str = "drop") -> Any:
    """Bins, updated one element after the other."""
    wide = index.astype(jnp.result_type(int)) if index.dtype.kind != "u" else jnp.where(index > h, h, index).astype(int)
    if mode == "clip":
        wide = jnp.clip(wide, 0, h - 1)
    elif mode == "wrap":
        wide = (index % jnp.asarray(h, index.dtype)).astype(int) if h <= np.iinfo(index.dtype).max else wide % h

    def step(bins: Any, row: Any) -> Any:
        at, x = row
        inside = (at >= 0) & (at < h)
        place = jnp.where(inside, at, 0)
        old = slices(bins, place)
        new = select(inside, op(old, x), old)
        return jax.tree.map(lambda b, y: b.at[place].set(y), bins, new), None

    return start if h == 0 or index.shape[0] == 0 else jax.lax.scan(step, start, (wide, values))[0]


def by_segment(values: Any, ids: Any, h: int, op: Fn, identity: Any) -> Any:
    """Likewise, in order; what has no element is the identity."""
    full = jax.tree.map(lambda x, i: jnp.broadcast_to(jnp.asarray(i, x.dtype), (h, *x.shape[1:])), values, identity)
    seen = jnp.zeros(h, bool)

    def both(a: Any, b: Any) -> Any:
        return select(a[0], op(a[1], b[1]), b[1])

    return by_index((jnp.ones(ids.shape, bool), values), ids, h, lambda a, b: (a[0] | b[0], both(a, b)), (seen, full))[1]
