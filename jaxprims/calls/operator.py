"""The user's operator, traced on the values that it combines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from ..arguments.checks import as_array, called
from ..arguments.monoid import Monoid
from ..operators.traced import trace
from ..tracing.varying import Axes, element_aval, vary


class Typed(Protocol):
    """What an operator combines: structure, shapes and dtypes of its leaves."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]


def checked_operator(monoid: Monoid, values: Typed, axes: Axes) -> ClosedJaxpr:
    """The operator on whole values. Raises TypeError where it does not return what it was given."""
    if isinstance(monoid.op, jnp.ufunc) and not jax.tree_util.treedef_is_leaf(values.tree):
        name = monoid.op.__name__  # type: ignore[attr-defined]
        by_leaf = f"op=lambda a, b: jax.tree.map(jnp.{name}, a, b), or that of jp.monoids, to combine leaf by leaf"
        raise TypeError(f"op: jnp.{name} combines arrays, and the values are {values.tree}; write {by_leaf}")
    closed = trace_operator(monoid, values, values.shapes, axes)
    for s, d, o in zip(values.shapes, values.dtypes, closed.out_avals, strict=True):
        if tuple(o.shape) != s or np.dtype(o.dtype) != d:
            raise TypeError(f"op must keep shape and dtype: on {d}{list(s)} it returned {o.dtype}{list(o.shape)}")
    return closed


def trace_operator(monoid: Monoid, values: Typed, shapes: Sequence[tuple[int, ...]], axes: Axes) -> ClosedJaxpr:
    avals = [element_aval(s, d, axes) for s, d in zip(shapes, values.dtypes, strict=True)]
    n = len(avals)

    def flat(*leaves: Any) -> list[Any]:
        a, b = jax.tree.unflatten(values.tree, leaves[:n]), jax.tree.unflatten(values.tree, leaves[n:])
        got, tree = called("op", lambda a, b: jax.tree.flatten(monoid.op(a, b), is_leaf=lambda x: x is None), a, b)
        if tree != values.tree:
            raise TypeError(f"op must return the structure of its arguments, {values.tree}, got {tree}")
        return [vary(as_array(x, "op's result"), axes) for x in got]

    return trace(monoid.op, [*avals, *avals], ("op", values.tree), flat)
