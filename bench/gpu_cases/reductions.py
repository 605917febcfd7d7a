"""Figures 4 and 5 of Martín et al. 2012: reductions, and of segments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprims.targets.plans import AnyKernel

from ..gpu_contestants import Prepare, compute, cub, cupy, empty, futhark_cuda, jaxprims, torch, xla
from ..gpu_measure import Arrays, Work, uniform_floats
from ..paper2.contestant import ALGORITHMS, algorithm
from .case import OURS, Case, Sizes


def one(x: jax.Array) -> list[jax.Array]:
    return [empty((), x.dtype)]


def reductions(s: Sizes) -> list[Case]:
    """Table I and figure 4 of Martín et al. 2012: the minimum of float32 by five algorithms."""

    def least(library: Any, cp: Any, x: Any) -> Any:
        out = cp.empty(1, x.dtype)
        first = np.full(1, np.inf, np.float32)
        call = functools.partial(
            library.reduce_into, d_in=x, d_out=out, num_items=len(x), op=library.OpKind.MINIMUM, h_init=first
        )
        return call, out

    def case(n: int) -> Case:
        contestants: dict[str, Prepare] = {
            "cub": cub("ordered", "reduce_min", one, lambda x: [len(x)]),
            OURS: jaxprims(lambda jp, x: jp.reduce(x, jnp.minimum), AnyKernel()),  # else it is XLA's
            **{name: algorithm(name, lambda jp, x: jp.reduce(x, jnp.minimum)) for name in ALGORITHMS},
            "xla": xla(jnp.min),
            "torch": torch(lambda t, x: t.amin(x)),
            "cupy": cupy(lambda cp, x: cp.min(x)),
            "cuda.compute": compute(least, lambda y: y.reshape(())),
        }
        return Case("reductions", f"minimum of {n:,}", n, 4 * n, lambda: (uniform_floats(9, n),), contestants, params={"n": n})

    return [case(n) for n in s.reductions]


def of_length(n: int, length: int) -> Callable[[], tuple[jax.Array, ...]]:
    """Values, and the offsets of segments of one length."""
    return lambda: (uniform_floats(10, n // length * length), jnp.arange(n // length + 1, dtype=jnp.int32) * length)


def random_lengths(n: int) -> Callable[[], tuple[jax.Array, ...]]:
    """From 10 to 50, as in Martín et al. 2012."""

    def make() -> tuple[jax.Array, ...]:
        lengths = np.random.default_rng(11).integers(10, 51, n // 30)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return uniform_floats(10, int(offsets[-1])), jax.block_until_ready(jnp.asarray(offsets))

    return make


def segmented(op: str, ids: bool = False) -> dict[str, Prepare]:
    """Reductions of segments by offsets; with ``ids``, by sorted ids too, and by the algorithms that are for those."""
    fn = {"min": jnp.minimum, "max": jnp.maximum, "add": jnp.add}[op]
    by_ids = {"min": jax.ops.segment_min, "max": jax.ops.segment_max, "add": jax.ops.segment_sum}[op]

    @jax.jit
    def with_ids(v: jax.Array, o: jax.Array) -> tuple[jax.Array, jax.Array]:
        return v, jnp.zeros(len(v), jnp.int32).at[o[1:-1]].add(1).cumsum()

    def ours(jp: Any, v: jax.Array, o: jax.Array) -> jax.Array:
        return jp.segment_reduce(v, jp.Offsets(o), fn)

    def by_sorted_ids(jp: Any, v: jax.Array, i: jax.Array, o: jax.Array) -> jax.Array:
        return jp.segment_reduce(v, i, fn, num_segments=len(o) - 1)

    def both(v: jax.Array, o: jax.Array) -> Arrays:
        return (*with_ids(v, o), o)

    def by_algorithm(name: str, inputs: list[Arrays]) -> Work:
        count = len(inputs[0][1]) - 1
        return algorithm(name, lambda jp, v, i: jp.segment_reduce(v, i, fn, num_segments=count), with_ids)(inputs)

    def from_xla(inputs: list[Arrays]) -> Work:
        count = len(inputs[0][1]) - 1
        return xla(lambda v, i: by_ids(v, i, count, indices_are_sorted=True), with_ids)(inputs)

    def from_library(library: Any, cp: Any, v: Any, o: Any) -> Any:
        out = cp.empty(len(o) - 1, v.dtype)
        kind = {"min": "MINIMUM", "max": "MAXIMUM", "add": "PLUS"}[op]
        first = np.full(1, {"min": np.inf, "max": -np.inf, "add": 0}[op], np.float32)
        call = functools.partial(
            library.segmented_reduce, d_in=v, d_out=out, num_segments=len(out), start_offsets_in=o[:-1], end_offsets_in=o[1:],
            op=getattr(library.OpKind, kind), h_init=first,
        )  # fmt: skip
        return call, out

    name = {"min": "min", "max": "max", "add": "sum"}[op]
    return {
        "cub": cub("ordered", f"segments_{op}", lambda v, o: [empty((len(o) - 1,), v.dtype)], lambda v, o: [len(o) - 1]),
        OURS: jaxprims(ours),
        **({"by ids": jaxprims(by_sorted_ids, convert=both)} if ids else {}),
        **({k: functools.partial(by_algorithm, k) for k in ALGORITHMS} if ids else {}),
        "xla": from_xla,
        "torch": torch(lambda t, v, o: t.segment_reduce(v, name, offsets=o, unsafe=True), lambda t, v, o: (v, o.long())),
        "cuda.compute": compute(from_library),
        **({} if op == "min" else {"futhark": futhark_cuda(f"segments_{name}", file="segment")}),
    }


def million_segments(s: Sizes) -> list[Case]:
    """2.5 million segments of 20."""
    n = s.paper
    count = n // 20
    size = 4 * n + 8 * count
    ids: dict[str, Prepare] = {
        "cub": cub(
            "ordered", "ids_max",
            lambda v, i: [empty((count,), np.int32), empty((count,), np.float32), empty((1,), np.int32)],
            lambda v, i: [len(v)], answer=lambda unique, out, used: out,
        ),
        OURS: jaxprims(lambda jp, v, i: jp.segment_reduce(v, i, jnp.maximum, num_segments=count)),
        "xla": xla(lambda v, i: jax.ops.segment_max(v, i, count, indices_are_sorted=True)),
    }  # fmt: skip

    def by_ids() -> tuple[jax.Array, ...]:
        return uniform_floats(10, count * 20), jnp.repeat(jnp.arange(count, dtype=jnp.int32), 20)

    offsets = of_length(n, 20)
    return [
        Case("segments of 20", "maximum, by offsets", n, size, offsets, segmented("max")),
        Case("segments of 20", "sum, by offsets", n, size, offsets, segmented("add"), 1e-4),
        Case("segments of 20", "maximum, by sorted ids", n, 8 * n + 4 * count, by_ids, ids),
    ]


def segments(s: Sizes) -> list[Case]:
    """Figure 5 of Martín et al. 2012, and the lengths between: the minimum of float32."""
    n = s.paper
    lengths = [k for k in (3, 10, 30, 100, 1_000, 10_000, 1_000_000) if k < n]
    named: dict[str, tuple[float, Callable[[], tuple[jax.Array, ...]]]] = {
        **{f"of {k:,}": (k, of_length(n, k)) for k in lengths},
        "of 10 to 50": (30.5, random_lengths(n)),
        "one alone": (n, of_length(n, n)),
    }
    return [
        Case("segments", name, n, 4 * n + int(8 * n / k), make, segmented("min", ids=True), params={"length": k})
        for name, (k, make) in named.items()
    ]
