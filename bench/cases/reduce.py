"""Reductions: 50 million float32, whole and along axes, with the error of float sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..contestant import Answer, Case, Inputs, Prepare, close, equal
from ..peers import arrays
from ..peers.futhark import futhark
from ..peers.native import native

GROUP = "50 million"
AXES = "axes"
ERRORS = "errors"


def cases(quick: bool) -> list[Case]:
    n, part = (100_000, 50) if quick else (50_000_000, 1)
    matrix = (10_000 // part, 5_000)
    return [
        total(GROUP, "sum", n),
        maximum(n),
        argmax(n),
        logsumexp(n),
        product(n // 4),
        moments(n // 4),
        *(along(name, matrix, axis) for name in ("sum", "max") for axis in (0, 1)),
        *(along("sum", shape, axis) for shape in ((n // 8, 8), (8, n // 8)) for axis in (0, 1)),
        argmax_along((n // 1000, 1000)),
        total(ERRORS, "sum of 1,000", 1_000),
        total(ERRORS, "sum of 1 million", 1_000_000),
    ]


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from .. import plots  # matplotlib is only needed here

    return list(plots.overview(report, directory, stem, leave_out=(ERRORS,)))


def uniform(*shape: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {"x": rng.random(shape, np.float32)}


def normal(*shape: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {"x": rng.standard_normal(shape, np.float32)}


def total(group: str, name: str, n: int) -> Case:
    """Of values in [0, 1): nothing cancels, and each contestant's rounding shows."""
    contestants = {
        **native("reduce_sum"),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x)),
        "xla": arrays.xla(jnp.sum),
        "numpy": arrays.numpy(np.sum),
        "torch": arrays.torch(lambda t, x: t.sum(x)),
        "futhark": futhark("reduce_sum", file="reduce"),
    }

    def exact(inputs: Inputs) -> Answer:
        return (np.asarray(np.sum(inputs["x"], dtype=np.float64)),)

    return Case(group, name, n, uniform(n), contestants, close(1e-2), exact=exact)


def maximum(n: int) -> Case:
    contestants = {
        **native("reduce_max"),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x, jnp.maximum)),
        "xla": arrays.xla(jnp.max),
        "numpy": arrays.numpy(np.max),
        "torch": arrays.torch(lambda t, x: t.amax(x)),
        "futhark": futhark("reduce_max", file="reduce"),
    }
    return Case(GROUP, "maximum", n, normal(n), contestants, equal)


def argmax(n: int) -> Case:
    contestants = {
        **native("reduce_argmax"),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.argmax(x)),
        "xla": arrays.xla(jnp.argmax),
        "numpy": arrays.numpy(np.argmax),
        "torch": arrays.torch(lambda t, x: t.argmax(x)),
        "futhark": futhark("reduce_argmax", file="reduce"),
    }
    return Case(GROUP, "argmax", n, normal(n), contestants, equal, {"xla": 33.0, "futhark": 1.0})


def logsumexp(n: int) -> Case:
    def numpy(x: np.ndarray) -> np.ndarray:
        largest = x.max()
        return np.log(np.exp(x - largest).sum()) + largest

    contestants = {
        **native("reduce_logsumexp"),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x, jnp.logaddexp)),
        "xla": arrays.xla(jax.nn.logsumexp),
        "numpy": arrays.numpy(numpy),
        "torch": arrays.torch(lambda t, x: t.logsumexp(x, 0)),
        "futhark": futhark("reduce_logsumexp", file="reduce"),
    }
    return Case(GROUP, "logsumexp", n, normal(n), contestants, close(1e-3))


def product(n: int) -> Case:
    """The product of n 2 x 2 matrices, in order. They permute axes and change signs, so that float32 is exact."""

    def make(rng: np.random.Generator) -> Inputs:
        swap, signs = rng.integers(0, 2, (n, 1, 1), dtype=np.int8), rng.integers(0, 2, (n, 2, 1), dtype=np.int8)
        return {"x": ((np.eye(2, dtype=np.int8) ^ swap) * (signs * np.int8(2) - np.int8(1))).astype(np.float32)}

    def xla(x: jax.Array) -> jax.Array:
        """Halves the array until one matrix is left."""
        while len(x) > 1:
            odd = x[len(x) - len(x) % 2 :]
            x = jnp.concatenate([x[0 : len(x) - len(odd) : 2] @ x[1::2], odd])
        return x[0]

    contestants = {
        **native("reduce_product"),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x, lambda a, b: a @ b, axis=0)),
        "xla": arrays.xla(xla),
        "futhark": futhark("reduce_product", file="reduce"),
    }
    return Case(GROUP, "product of 2 × 2 matrices", 4 * n, make, contestants, equal)


def moments(n: int) -> Case:
    """Count, mean and sum of squared deviations in one pass, merged by Chan's formula."""

    def merge(a: Any, b: Any) -> Any:
        (n1, m1, s1), (n2, m2, s2) = a, b
        n, d = n1 + n2, m2 - m1
        w = n2 / jnp.maximum(n, 1.0)
        return n, m1 + d * w, s1 + s2 + d * d * n1 * w

    def xla(x: jax.Array) -> Any:
        mean = jnp.mean(x)
        return jnp.float32(n), mean, jnp.sum((x - mean) ** 2)

    def numpy(x: np.ndarray) -> Any:
        mean = x.mean()
        return np.float32(n), mean, np.square(x - mean).sum()

    def torch(t: Any, x: Any) -> Any:
        variance, mean = t.var_mean(x, correction=0)
        return t.tensor(float(n)), mean, variance * n

    contestants = {
        "xla": arrays.xla(xla),
        "native": native("reduce_moments")["native"],  # one loop's sum of squares is off by 2 %
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x, merge, map=lambda v: (jnp.float32(1), v, jnp.float32(0)))),
        "numpy": arrays.numpy(numpy),
        "torch": arrays.torch(torch),
        "futhark": futhark("reduce_moments", file="reduce"),
    }
    make = lambda rng: {"x": rng.standard_normal(n, np.float32) + 1}  # noqa: E731
    return Case(GROUP, "mean and variance, one pass", n, make, contestants, close(1e-2))


def along(name: str, shape: tuple[int, int], axis: int) -> Case:
    op = {"sum": jnp.add, "max": jnp.maximum}[name]
    layout = (1, *shape) if axis == 0 else (*shape, 1)

    def flat(prepare: Prepare) -> Prepare:
        def prepare_flat(inputs: Inputs) -> Any:
            run = prepare(inputs)
            return type(run)(run.call, lambda r: (run.fetch(r)[0].reshape(-1),), run.close)

        return prepare_flat

    contestants = {
        **{n: flat(p) for n, p in native(f"{name}_along", *layout).items()},
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.reduce(x, op, axis=axis)),
        "xla": arrays.xla(lambda x: getattr(jnp, name)(x, axis)),
        "numpy": arrays.numpy(lambda x: getattr(np, name)(x, axis)),
        "torch": arrays.torch(lambda t, x: getattr(t, "a" * (name == "max") + name)(x, axis)),
        "futhark": futhark(f"{name}_{'columns' if axis == 0 else 'rows'}", file="reduce"),
    }
    title = f"{name}, {shape[0]:,} × {shape[1]:,}, axis {axis}"
    return Case(AXES, title, math.prod(shape), normal(*shape), contestants, close(1e-3))


def argmax_along(shape: tuple[int, int]) -> Case:
    contestants = {
        "xla": arrays.xla(lambda x: jnp.argmax(x, 1)),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.argmax(x, 1)),
        "numpy": arrays.numpy(lambda x: np.argmax(x, 1)),
        "torch": arrays.torch(lambda t, x: t.argmax(x, 1)),
    }
    return Case(AXES, f"argmax, {shape[0]:,} × {shape[1]:,}, axis 1", math.prod(shape), normal(*shape), contestants, equal)
