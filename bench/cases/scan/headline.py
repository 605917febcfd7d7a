"""50 million float32: the operators and forms that jaxprims is measured by, with the ratios it shall reach."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs, close, equal
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native, tbb
from .inputs import copied, like_first, like_inputs, steps, the_input, walk, with_result

GROUP = "50 million"
N = 50_000_000


def cases(quick: bool) -> list[Case]:
    n = 100_000 if quick else N
    return [
        cumsum(n),
        cumsum_in_place(n),
        exclusive(n),
        backwards(n),
        segmented(n),
        cummax(n),
        cumlogsumexp(n),
        last_nonzero(n),
        affine(n),
        recurrence(n),
        products(n, 2, {"xla": 10.0}),
        products(n, 3, {}),
    ]


def cumsum(n: int) -> Case:
    contestants = {
        **native("cumsum", 1, n, 1, outputs=like_first),
        **tbb("tbb_cumsum", like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": arrays.xla(lambda x: jax.lax.cumsum(x)),
        "numpy": arrays.numpy(lambda x, out: np.cumsum(x, out=out), with_result),
        "torch": arrays.torch(lambda t, x, out: t.cumsum(x, 0, out=out), with_result),
        "futhark": futhark("cumsum", file="scan"),
    }
    return Case(GROUP, "cumsum", n, walk(n), contestants, equal, {"xla": 26.0, "futhark": 2.0})


def cumsum_in_place(n: int) -> Case:
    """The input's memory becomes the result's, so that every call sums the sums of the call before."""

    def numpy(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.cumsum(x, out=x)

    contestants = {
        **{name: copied(p) for name, p in native("cumsum", 1, n, 1, outputs=the_input).items()},
        **{name: copied(p) for name, p in tbb("tbb_cumsum", the_input).items()},
        "jaxprims": arrays.jaxprims_in_place(lambda jp, x: jp.scan(x, in_place=True)),
        "xla": arrays.xla_in_place(lambda x: jax.lax.cumsum(x)),
        "numpy": copied(arrays.numpy(numpy)),
        "torch": copied(arrays.torch(lambda t, x: x.cumsum_(0))),
    }
    return Case(GROUP, "cumsum, in place", n, walk(n), contestants, equal)


def exclusive(n: int) -> Case:
    def numpy(x: np.ndarray, out: np.ndarray) -> np.ndarray:
        np.cumsum(x[:-1], out=out[1:])
        return out

    contestants = {
        **native("cumsum_exclusive", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.scan(x, exclusive=True)),
        "xla": arrays.xla(lambda x: jnp.concatenate([jnp.zeros(1, x.dtype), jax.lax.cumsum(x[:-1])])),
        "numpy": arrays.numpy(numpy, lambda x: (x, np.zeros_like(x))),
        "futhark": futhark("cumsum_exclusive", file="scan"),
    }
    return Case(GROUP, "cumsum, exclusive", n, walk(n), contestants, equal)


def backwards(n: int) -> Case:
    contestants = {
        **native("cumsum_reversed", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumsum(x, reverse=True)),
        "xla": arrays.xla(lambda x: jax.lax.cumsum(x, reverse=True)),
        "numpy": arrays.numpy(lambda x, out: np.cumsum(x[::-1], out=out[::-1])[::-1], with_result),
        "torch": arrays.torch(lambda t, x: x.flip(0).cumsum(0).flip(0)),
        "futhark": futhark("cumsum_reversed", file="scan"),
    }
    return Case(GROUP, "cumsum, from the end", n, walk(n), contestants, equal)


def segmented(n: int) -> Case:
    """Restarts at about every 20th element."""

    def make(rng: np.random.Generator) -> Inputs:
        return {"x": steps(rng, n), "starts": rng.integers(0, 20, n, dtype=np.uint8) == 0}

    def combine(a: Any, b: Any) -> Any:
        return a[0] | b[0], jnp.where(b[0], b[1], a[1] + b[1])

    def numpy(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
        total = np.cumsum(x)
        start = np.maximum.accumulate(np.where(starts, np.arange(n, dtype=np.int32), 0))
        return total - (total - x)[start]

    contestants = {
        **native("cumsum_segmented", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x, starts: jp.scan(x, segment_starts=starts)),
        "xla": arrays.xla(lambda x, starts: jax.lax.associative_scan(combine, (starts, x))[1]),
        "numpy": arrays.numpy(numpy),
        "futhark": futhark("cumsum_segmented", file="scan"),
    }
    return Case(GROUP, "cumsum, segments of about 20", n, make, contestants, equal)


def cummax(n: int) -> Case:
    contestants = {
        **native("cummax", outputs=like_first),
        **tbb("tbb_cummax", like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cummax(x)),
        "xla": arrays.xla(lambda x: jax.lax.cummax(x)),
        "numpy": arrays.numpy(lambda x, out: np.maximum.accumulate(x, out=out), with_result),
        "torch": arrays.torch(lambda t, x: t.cummax(x, 0)[0]),
        "futhark": futhark("cummax", file="scan"),
    }
    return Case(GROUP, "cummax", n, normal(n), contestants, equal)


def cumlogsumexp(n: int) -> Case:
    """NumPy, Futhark and the C++ by hand sum in float64: one float32 after the other would lose what is added last."""
    contestants = {
        **native("cumlogsumexp", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumlogsumexp(x)),
        "xla": arrays.xla(lambda x: jax.lax.cumlogsumexp(x)),
        "numpy": arrays.numpy(np.logaddexp.accumulate, lambda x: (x.astype(np.float64),)),
        "torch": arrays.torch(lambda t, x: t.logcumsumexp(x, 0)),
        "futhark": futhark("cumlogsumexp", file="scan"),
    }

    def exact(inputs: Inputs) -> tuple[np.ndarray, ...]:
        return (np.log(np.cumsum(np.exp(inputs["x"], dtype=np.float64))),)

    return Case(GROUP, "cumlogsumexp", n, normal(n), contestants, close(1e-4), {"xla": 120.0}, exact=exact)


def last_nonzero(n: int) -> Case:
    """A user's own operator, which does not commute: the last value that is not zero."""

    def op(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(b != 0, b, a)

    def make(rng: np.random.Generator) -> Inputs:
        return {"x": np.where(rng.integers(0, 4, n, dtype=np.uint8) == 0, steps(rng, n), np.float32(0))}

    def numpy(x: np.ndarray, position: np.ndarray) -> np.ndarray:
        return x[np.maximum.accumulate(np.where(x != 0, position, 0))]

    contestants = {
        **native("last_nonzero", outputs=like_first),
        **tbb("tbb_last_nonzero", like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.scan(x, op)),
        "xla": arrays.xla(lambda x: jax.lax.associative_scan(op, x)),
        "numpy": arrays.numpy(numpy, lambda x: (x, np.arange(n, dtype=np.int32))),
        "futhark": futhark("last_nonzero", file="scan"),
    }
    return Case(GROUP, "last value not zero", n, make, contestants, equal)


def compose(f: Any, g: Any) -> Any:
    """x -> a x + b, f first."""
    return g[0] * f[0], g[0] * f[1] + g[1]


def affine(n: int) -> Case:
    """Pairs (a, b), both results wanted. The signs and integers keep every float32 exact."""

    def make(rng: np.random.Generator) -> Inputs:
        return {"a": rng.integers(0, 2, n, dtype=np.int8).astype(np.float32) * 2 - 1, "b": steps(rng, n)}

    contestants = {
        **native("affine", outputs=like_inputs),
        "jaxprims": arrays.jaxprims(lambda jp, a, b: jp.scan((a, b), compose)),
        "xla": arrays.xla(lambda a, b: jax.lax.associative_scan(compose, (a, b))),
        "futhark": futhark("affine", file="scan"),
    }
    return Case(GROUP, "affine pairs", n, make, contestants, equal, {"xla": 30.0})


def recurrence(n: int) -> Case:
    """y[t] = a[t] y[t - 1] + b[t], with a from 0.9 to 1."""

    def make(rng: np.random.Generator) -> Inputs:
        return {"a": 1 - rng.random(n, np.float32) * np.float32(0.1), "b": rng.standard_normal(n, np.float32)}

    contestants = {
        **native("recurrence", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, a, b: jp.linear_recurrence(a, b)),
        "xla": arrays.xla(lambda a, b: jax.lax.associative_scan(compose, (a, b))[1]),
        "futhark": futhark("recurrence", file="scan"),
    }
    return Case(GROUP, "linear recurrence", n, make, contestants, close(1e-5), {"xla": 30.0, "futhark": 5.5})


def products(n: int, k: int, targets: dict[str, float]) -> Case:
    """Products of k x k matrices, n numbers in all. They permute axes and change signs, so that float32 is exact."""
    count = n // (k * k)

    def make(rng: np.random.Generator) -> Inputs:
        orders = rng.permuted(np.broadcast_to(np.arange(k, dtype=np.int8), (count, k)), axis=1)
        signs = rng.integers(0, 2, (count, k, 1), dtype=np.int8) * np.int8(2) - np.int8(1)
        return {"x": ((orders[..., None] == np.arange(k, dtype=np.int8)) * signs).astype(np.float32)}

    def columns(a: Any, b: Any) -> Any:
        """The product by components, which XLA makes faster code of than of many small matmuls."""
        return tuple(tuple(sum(a[i][m] * b[m][j] for m in range(k)) for j in range(k)) for i in range(k))

    def xla(x: jax.Array) -> Any:
        parts = tuple(tuple(x[:, i, j] for j in range(k)) for i in range(k))
        scanned = jax.lax.associative_scan(columns, parts)
        return jnp.stack([jnp.stack(row, -1) for row in scanned], -2)

    contestants = {
        **native(f"products_{k}x{k}", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.scan(x, lambda a, b: a @ b)),
        "xla": arrays.xla(xla),
        "xla matmul": arrays.xla(lambda x: jax.lax.associative_scan(jnp.matmul, x)),
        "futhark": futhark(f"products_{k}x{k}", file="scan"),
    }
    return Case(GROUP, f"products of {k} × {k} matrices", n, make, contestants, equal, targets)


def normal(n: int) -> Any:
    return lambda rng: {"x": rng.standard_normal(n, np.float32)}
