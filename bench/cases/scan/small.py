"""Calls on few elements, where only the call itself can cost; and the first call, which compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs, Prepare, Run, anything, equal
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import like_first, walk

FIRST_CALL = "first call"

_NEW = itertools.count(1)
"""For constants that no kernel was compiled with before."""


def cases(quick: bool) -> list[Case]:
    lengths = (1_000, 100_000) if quick else (1_000, 100_000, 1_000_000, 50_000_000)
    return [
        *(cumsum(n, {"xla": 0.8} if n == 1_000 else {}) for n in (10, 1_000, 30_000, 1_000_000)),
        eagerly(1_000),
        within_a_function(1_000),
        *(first_call(n) for n in lengths),
    ]


def cumsum(n: int, targets: dict[str, float]) -> Case:
    contestants = {
        **native("cumsum", 1, n, 1, outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": arrays.xla(lambda x: jax.lax.cumsum(x)),
        "numpy": arrays.numpy(np.cumsum),
        "torch": arrays.torch(lambda t, x: t.cumsum(x, 0)),
        "futhark": futhark("cumsum", file="scan"),
    }
    return Case("small", f"cumsum, {n:,} elements", n, walk(n), contestants, equal, targets)


def eagerly(n: int) -> Case:
    contestants = {
        "jaxprims": arrays.eager(lambda x: arrays.module("jaxprims").cumsum(x)),
        "xla": arrays.eager(lambda x: jax.lax.cumsum(x)),
    }
    return Case("small", f"cumsum, {n:,} elements, not under jit", n, walk(n), contestants, equal)


def within_a_function(n: int) -> Case:
    contestants = {
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumsum(x * 2)[::-1] + 1),
        "xla": arrays.xla(lambda x: jax.lax.cumsum(x * 2)[::-1] + 1),
    }
    name = f"cumsum, {n:,} elements within a jitted function"
    return Case("small", name, n, walk(n), contestants, equal, {"xla": 0.8})


def first_call(n: int) -> Case:
    """Tracing, compiling and running a function that was never seen before. ``floor`` is the least that XLA takes for any."""

    def jaxprims(inputs: Inputs) -> Run:
        jp = arrays.module("jaxprims")
        return _new_each_time(lambda x, k: jp.scan(x, lambda a, b: jnp.maximum(a * k, b)))(inputs)

    contestants: dict[str, Prepare] = {
        "jaxprims": jaxprims,
        "xla": _new_each_time(lambda x, k: jax.lax.associative_scan(lambda a, b: jnp.maximum(a * k, b), x)),
        "floor": _new_each_time(lambda x, k: x * k),
    }
    return Case(
        FIRST_CALL, f"{n:,} elements", n, walk(n), contestants, anything, seconds_over={"floor": 0.06}, params={"length": n}
    )


def _new_each_time(fn: Callable[[Any, float], Any]) -> Prepare:
    """The first call of ``fn(x, k)`` with a new constant k."""

    def prepare(inputs: Inputs) -> Run:
        (x,) = (jnp.asarray(a) for a in inputs.values())

        def call() -> Any:
            k = 1 + next(_NEW) / 4096
            return jax.block_until_ready(jax.jit(lambda x: fn(x, k))(x))

        return Run(call)

    return prepare
