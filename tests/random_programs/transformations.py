"""Where ``fuse`` stands, and what is done to the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Fn = Callable[..., Any]


def is_real(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jnp.floating)


def _grad(f: Fn) -> Fn:
    def loss(floats: Any, i: Any, b: Any) -> Any:
        x, w, y = floats
        weighted = [o * (jnp.arange(o.size).reshape(o.shape) % 5 - 2).astype(o.dtype) for o in f(x, w, i, y, b) if is_real(o)]
        return sum((jnp.sum(o).astype(x.dtype) for o in weighted), x.dtype.type(0))

    return lambda x, w, i, y, b: jax.grad(loss)((x, w, y), i, b)


def _batch(f: Fn) -> Fn:
    def call(x: Any, w: Any, i: Any, y: Any, b: Any) -> Any:
        several = [jnp.stack(a) for a in ([x, y, -x], [i, i + 1, i], [y, x, x])]
        return jax.vmap(lambda x, i, y: f(x, w, i, y, b))(*several)

    return call


def _along(f: Fn, push: Fn) -> Fn:
    """What ``push`` makes of the floats that f gives of x and y."""
    return lambda x, w, i, y, b: push(lambda x, y: [o for o in jax.tree.leaves(f(x, w, i, y, b)) if is_real(o)], x, y)


def _jvp(of: Fn, x: Any, y: Any) -> Any:
    return jax.jvp(of, (x, y), (y, x))


def _linearize(of: Fn, x: Any, y: Any) -> Any:
    out, line = jax.linearize(of, x, y)
    return out, line(y, x)


def _jacobian(of: Fn, x: Any, y: Any) -> Any:
    return jax.jacfwd(of)(x[..., :10], y[..., :10]), jax.jacrev(of)(x[..., :10], y[..., :10])


def _nested(f: Fn) -> Fn:
    return lambda x, w, i, y, b: jax.tree.map(lambda o: o + o, f(jnp.flip(x), w, i + 1, jnp.maximum(x, y), b))


def _scan(f: Fn) -> Fn:
    return lambda x, w, i, y, b: lax.scan(lambda c, t: (c + 1, f(x + c, w, i, y, b)), x.dtype.type(0), length=2)[1]


def _cond(f: Fn) -> Fn:
    return lambda x, w, i, y, b: lax.cond(x.sum() > 0, lambda: f(x, w, i, y, b), lambda: f(y, w, i, x, b))


TRANSFORMED: dict[str, Callable[[Fn, Callable[[Fn], Fn]], Fn]] = {
    "jit": lambda f, fuse: fuse(f),
    "eager": lambda f, fuse: fuse(f),
    "devices": lambda f, fuse: fuse(f),
    "nested": lambda f, fuse: _nested(fuse(f)),
    "scan": lambda f, fuse: _scan(fuse(f)),
    "cond": lambda f, fuse: _cond(fuse(f)),
    "vmap": lambda f, fuse: _batch(fuse(f)),
    "grad of": lambda f, fuse: _grad(fuse(f)),
    "of grad": lambda f, fuse: fuse(_grad(f)),
    "vmap of grad": lambda f, fuse: _batch(_grad(fuse(f))),
    "of vmap of grad": lambda f, fuse: fuse(_batch(_grad(f))),
    "jvp": lambda f, fuse: _along(fuse(f), _jvp),
    "linearize": lambda f, fuse: _along(fuse(f), _linearize),
    "hessian": lambda f, fuse: _along(_grad(fuse(f)), _jvp),
    "jacobian": lambda f, fuse: _along(fuse(f), _jacobian),
}
OF_INTEGERS = ("jit", "eager", "nested", "scan", "cond", "vmap")
MODES = ["jit"] * 4 + list(TRANSFORMED)
