"""Operators that are no others' examples: with branches, roots, ties, integers beside floats, rules of their own. By name: the
operator, the dtypes of an element's leaves, its identity, and how :class:`random_calls.program.Array` draws them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Row = tuple[Callable[..., Any], tuple[str, ...], Any, str]


def heavier(a: Any, b: Any) -> Any:
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def with_payload(a: Any, b: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, a[0] >= b[0]), a, b)


def counted(a: Any, b: Any) -> Any:
    n = jnp.where(a[0] == b[0], a[1] + b[1], jnp.where(a[0] > b[0], a[1], b[1]))
    return jnp.where(a[0] >= b[0], a[0], b[0]), n


def matrix(a: Any, b: Any) -> Any:
    p, q, r, s = a
    t, u, v, w = b
    return p * t + q * v, p * u + q * w, r * t + s * v, r * u + s * w


def weighed_mean(a: Any, b: Any) -> Any:
    w = a[0] + b[0]
    return w, a[1] + (b[1] - a[1]) * b[0] / jnp.where(w == 0, 1, w)


def online_softmax(a: Any, b: Any) -> Any:
    top = jnp.maximum(a[0], b[0])
    safe = jnp.where(jnp.isfinite(top), top, 0)
    return top, a[1] * jnp.exp(a[0] - safe) + b[1] * jnp.exp(b[0] - safe)


def cubic(a: Any, b: Any) -> Any:
    """The cube root of a sum of cubes, by Newton's method."""
    total = a**3 + b**3
    return jax.lax.fori_loop(0, 12, lambda _, y: y - (y - total / (y * y)) / 3, a + b)


@jax.custom_jvp
def probable(a: Any, b: Any) -> Any:
    return a + b - a * b


@probable.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (a, b), (da, db) = primals, tangents
    return probable(a, b), da * (1 - b) + db * (1 - a)


def brackets(a: Any, b: Any) -> Any:
    """Of those that are open and closed: what is left of them, one sequence after the other."""
    closed = jnp.minimum(a[1], b[0])
    return a[0] + b[0] - closed, a[1] + b[1] - closed


def since_flag(a: Any, b: Any) -> Any:
    return a[0] | b[0], jnp.where(b[0], b[1], a[1] * b[1])


def quaternions(a: Any, b: Any) -> Any:
    (w, x, y, z), (p, q, r, s) = a, b
    return (
        w * p - x * q - y * r - z * s,
        w * q + x * p + y * s - z * r,
        w * r - x * s + y * p + z * q,
        w * s + x * r - y * q + z * p,
    )


ODD: dict[str, Row] = {
    "velocities": (lambda a, b: (a + b) / (1 + a * b), ("float32",), 0, "slow"),
    "heavier": (heavier, ("float32",), 0, "between"),
    "with payload": (with_payload, ("float32", "float32"), (-np.inf, 0), "distinct"),
    "counted": (counted, ("float32", "int32"), (-np.inf, 0), "distinct"),
    "weighed mean": (weighed_mean, ("float32", "float32"), (0, 0), "positive"),
    "online softmax": (online_softmax, ("float32", "float32"), (-np.inf, 0), "normal"),
    "probable": (probable, ("float32",), 0, "fine"),
    "checkpoint": (jax.checkpoint(lambda a, b: a * b * 2), ("float32",), 0.5, "fine"),
    "branch": (jnp.vectorize(lambda a, b: jax.lax.cond(a > b, lambda: a, lambda: b)), ("float32",), -np.inf, "distinct"),
    "complex": (lambda a, b: a + b + (1 - 2j) * a * b, ("complex64",), 0, "fine"),
    "own norm": (lambda a, b: jnp.sqrt(a * a + b * b), ("float32",), 0, "positive"),
}
ODD_IN_ORDER: dict[str, Row] = {
    "cubic": (cubic, ("float32",), 0, "positive"),
    "brackets": (brackets, ("float32", "float32"), (0, 0), "positive"),
    "since flag": (since_flag, ("bool", "float32"), (False, 1), "unit"),
    "quaternions": (quaternions, ("float32",) * 4, (1, 0, 0, 0), "fine"),
    "max plus": (lambda a, b: (a[0] + b[0], jnp.maximum(a[1] + b[0], b[1])), ("float32",) * 2, (0, -np.inf), "normal"),
    "first": (lambda a, b: jnp.where(a == 0, b, a), ("float32",), 0, "distinct"),
}
