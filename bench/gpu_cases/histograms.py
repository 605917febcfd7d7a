"""Sums by index, figure 7 and the tables of Henriksen et al. 2020."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import gpu_plans
from ..gpu_contestants import Prepare, cub, cupy, empty, futhark_cuda, jaxprims, torch, xla
from ..gpu_measure import Arrays, small_floats, uniform_floats, uniform_ints
from .case import HIGHEST, LOWEST, OURS, RACE_FACTORS, SATURATION, Case, Sizes


def dense(bins: int, identity: Any) -> Callable[..., Any]:
    """CUB's unique keys and reduced values as an array of bins."""

    def answer(unique: jax.Array, reduced: jax.Array, count: jax.Array) -> jax.Array:
        used = jnp.arange(len(unique)) < count[0]
        return jnp.full(bins, identity, reduced.dtype).at[jnp.where(used, unique, bins)].set(reduced, mode="drop")

    return jax.jit(answer)


def dense_pairs(bins: int) -> Callable[..., Any]:
    columns = dense(bins, LOWEST), dense(bins, HIGHEST)
    return lambda unique, reduced, count: [f(unique, reduced[:, k], count) for k, f in enumerate(columns)]


def by_key(name: str, bins: int, dtype: Any, convert: Callable[..., Any] | None, pairs: bool = False) -> Prepare:
    """Keys sorted, and values of equal keys reduced. Making the keys is not timed, as in the paper."""
    return cub(
        "hist",
        name,
        lambda keys, _: [empty((bins,), np.int32), empty((bins, 2) if pairs else (bins,), dtype), empty((1,), np.int32)],
        lambda keys, _: [len(keys), bins],
        convert,
        dense_pairs(bins) if pairs else dense(bins, 0),
    )


def long_index(t: Any, v: Any, i: Any) -> Any:
    """PyTorch's scatter takes 64-bit indices only."""
    return v, i.long()


def sum_contestants(bins: int, **ours: Any) -> dict[str, Prepare]:
    """Of float32 ``values`` and int32 ``indices``."""

    def with_cupy(cp: Any, v: Any, i: Any) -> Any:
        out = cp.zeros(bins, cp.float32)
        cp.add.at(out, i, v)
        return out

    return {
        "cub": by_key("add_f32", bins, np.float32, lambda v, i: (i, v)),
        "torch": torch(lambda t, v, i: t.zeros(bins, device="cuda").scatter_add_(0, i, v), long_index),
        OURS: jaxprims(lambda jp, v, i: jp.reduce_by_index(v, i, bins, **ours)),
        "xla": xla(lambda v, i: jax.ops.segment_sum(v, i, bins)),
        "cupy": cupy(with_cupy),
    }


def sums(s: Sizes) -> list[Case]:
    """The sum of float32 into few bins: twice the best of the others, and 85 % of the bandwidth."""
    n = s.large
    values = functools.cache(lambda: small_floats(1, n))

    def case(bins: int, n: int, group: str = "sum by index") -> Case:
        index = functools.cache(lambda: (values()[:n], uniform_ints(2, n, bins)))
        params = {"bins": bins}
        contestants = sum_contestants(bins)
        if bins == 100:
            contestants |= {
                "torch bincount": torch(lambda t, v, i: t.bincount(i, v, bins)),
                "cupy bincount": cupy(lambda cp, v, i: cp.bincount(i, v, bins)),
                "cub even": cub(
                    "hist", "count_even", lambda i: [empty((bins,), np.int32)], lambda i: [len(i), bins], lambda v, i: (i,)
                ),
                "futhark": futhark_cuda("sum_by_index", bins),
            }
        # A bin's sum may pass 2^24 where there is one bin; float64 and float32 results differ by a rounding.
        return Case(group, f"{bins:,} bins", n, 8 * n, index, contestants, 1e-5, params, ("cub even",))

    return [*(case(h, n) for h in (1, 10, 100, 1000)), case(60_000, n, "sum by index, many bins")]


def bin_of(x: Any, bins: int, rf: int) -> Any:
    """The index of an element, which uses only one bin in ``rf``."""
    return jax.lax.rem(x, jnp.int32(max(1, bins // rf))) * rf


def weight(x: Any) -> Any:
    """Six bits of the element, so that few bins saturate."""
    return (x >> 8) & 63


def signed(x: Any) -> Any:
    """The same as float32 around 0: their sums are exact."""
    return (weight(x) - 32).astype(jnp.float32)


@functools.cache
def _paper_input(n: int) -> tuple[jax.Array]:
    return (uniform_ints(3, n),)


def _saturate(a: Any, b: Any) -> Any:
    return jnp.minimum(a + b, jnp.uint32(SATURATION))


def numbers(bins: int, rf: int) -> Callable[[jax.Array], Arrays]:
    """The input with what the index is made with, as numbers that kernels get when they run: a kernel for all sizes."""
    modulus, stride = jnp.int32(max(1, bins // rf)), jnp.int32(rf)
    return lambda x: (x, modulus, stride)


def operators(bins: int) -> dict[str, Callable[..., Any]]:
    """By name: (jaxprims, x, modulus, stride) -> the histogram."""

    def of(value: Callable[[Any], Any], *op: Any) -> Callable[..., Any]:
        return lambda jp, x, m, s: jp.genhist(lambda e: (jax.lax.rem(e, m) * s, value(e)), x, jp.Bins(bins, *op))

    def argmax(jp: Any, x: Any, m: Any, s: Any) -> Any:
        f = lambda e, position: (jax.lax.rem(e, m) * s, (e, position))  # noqa: E731
        return jp.genhist(f, (x, jp.positions), jp.Bins(bins, jp.monoids.argmax))

    return {
        "add i32": of(lambda e: e, jnp.add),
        "add f32": of(signed, jnp.add),
        "saturating add": of(lambda e: weight(e).astype(jnp.uint32), _saturate, jnp.uint32(0)),
        "argmax of pairs": argmax,
    }


def figure_7(s: Sizes, rf: int) -> list[Case]:
    """All operators for all numbers of bins, against the libraries. Those get their indices, made outside the timing."""
    n = s.paper

    def of(operator: str, bins: int) -> Case:
        index = jax.jit(lambda x: bin_of(x, bins, rf))
        ours = {OURS: jaxprims(operators(bins)[operator], convert=numbers(bins, rf))}
        params = {"bins": bins, "race_factor": rf, "operator": operator}
        others = _others(operator, bins, rf, n, index)
        if bins not in s.bins[1::5]:
            others.pop("futhark", None)
        if operator.startswith("add f32") and bins not in s.bins[1::3]:
            others.pop("xla")
        contestants = {k: v for k, v in others.items() if k.startswith("cub")} | ours | others
        name = f"{operator}, {bins} bins, race factor {rf}"
        return Case(
            "figure 7", name, n, 4 * n, lambda: _paper_input(n), contestants, 1e-5 if "f32" in operator else 0.0, params,
            ("cub even",), _used_pairs if operator.startswith("argmax") else lambda a: a,
        )  # fmt: skip

    return [of(operator, h) for operator in operators(1) for h in s.bins]


@jax.jit
def _used(value: jax.Array, position: jax.Array) -> Arrays:
    empty_bin = (value == LOWEST) | (position == HIGHEST) | (position < 0)
    return jnp.where(empty_bin, LOWEST, value), jnp.where(empty_bin, -1, position)


def _used_pairs(answer: Arrays) -> Arrays:
    """Pairs wherever a bin has any: what an empty bin holds is each contestant's own affair."""
    return _used(*answer)


def _others(operator: str, bins: int, rf: int, n: int, index: Callable[..., Any]) -> dict[str, Prepare]:
    clip = jax.jit(lambda h: jnp.minimum(h, SATURATION))
    if operator.startswith("add i32"):
        return {
            "cub": by_key("add_i32", bins, np.int32, lambda x: (index(x), x)),
            "cub even": cub(
                "hist", "count_even", lambda i: [empty((bins,), np.int32)], lambda i: [len(i), bins], lambda x: (index(x),)
            ),
            "xla": xla(lambda x: jax.ops.segment_sum(x, index(x), bins)),
            "torch": torch(
                lambda t, x, i: t.zeros(bins, dtype=t.int32, device="cuda").scatter_add_(0, i, x), _torch_index(bins, rf)
            ),
            "cupy": cupy(lambda cp, x, i: _cupy_add(cp, cp.zeros(bins, cp.int32), i, x), _cupy_index(bins, rf)),
            "futhark": futhark_cuda("paper_add", bins, rf),
        }
    if operator.startswith("add f32"):
        weights = jax.jit(lambda x: (index(x), signed(x)))
        return {
            "cub": by_key("add_f32", bins, np.float32, weights),
            "xla": xla(lambda x: jax.ops.segment_sum(signed(x), index(x), bins)),
            "torch": torch(
                lambda t, w, i: t.zeros(bins, device="cuda").scatter_add_(0, i, w),
                lambda t, x: ((((x >> 8) & 63) - 32).float(), _torch_index(bins, rf)(t, x)[1]),
            ),
            "cupy": cupy(
                lambda cp, w, i: _cupy_add(cp, cp.zeros(bins, cp.float32), i, w),
                lambda cp, x: ((((x >> 8) & 63) - 32).astype(cp.float32), _cupy_index(bins, rf)(cp, x)[1]),
            ),
        }
    if operator.startswith("saturating"):
        weights = jax.jit(lambda x: (index(x), weight(x).astype(jnp.uint32)))
        return {
            "cub": by_key("saturating", bins, np.uint32, weights),
            "xla": xla(lambda x: clip(jax.ops.segment_sum(weight(x), index(x), bins))),
            "torch": torch(
                lambda t, w, i: t.zeros(bins, dtype=t.int32, device="cuda").scatter_add_(0, i, w).clamp_(max=SATURATION),
                lambda t, x: ((x >> 8) & 63, _torch_index(bins, rf)(t, x)[1]),
            ),
            "futhark": futhark_cuda("paper_saturating", bins, rf),
        }

    def two_passes(x: jax.Array) -> Any:
        i = index(x)
        largest = jax.ops.segment_max(x, i, bins)
        return largest, jax.ops.segment_min(jnp.where(x == largest[i], jnp.arange(n, dtype=jnp.int32), HIGHEST), i, bins)

    def two_in_torch(t: Any, x: Any, i: Any) -> Any:
        largest = t.full((bins,), LOWEST, dtype=t.int32, device="cuda").scatter_reduce_(0, i, x, "amax")
        position = t.where(x == largest[i], t.arange(n, dtype=t.int32, device="cuda"), HIGHEST)
        return largest, t.full((bins,), HIGHEST, dtype=t.int32, device="cuda").scatter_reduce_(0, i, position, "amin")

    pairs = jax.jit(lambda x: (index(x), jnp.stack([x, jnp.arange(n, dtype=jnp.int32)], 1)))
    return {
        "cub": by_key("argmax", bins, np.int32, pairs, pairs=True),
        "xla": xla(two_passes),
        "torch": torch(two_in_torch, _torch_index(bins, rf)),
        "futhark": futhark_cuda("paper_argmax", bins, rf),
    }


def _torch_index(bins: int, rf: int) -> Callable[..., Any]:
    return lambda t, x: (x, ((x % max(1, bins // rf)) * rf).long())


def _cupy_index(bins: int, rf: int) -> Callable[..., Any]:
    return lambda cp, x: (x, (x % max(1, bins // rf)) * rf)


def _cupy_add(cp: Any, out: Any, index: Any, values: Any) -> Any:
    cp.add.at(out, index, values)
    return out


def plans(s: Sizes) -> list[Case]:
    """Table I and figure 7: the plan that is chosen against fixed ones."""

    def of(operator: str, bins: int, rf: int) -> Case:
        make, convert = operators(bins)[operator], numbers(bins, rf)
        contestants: dict[str, Prepare] = {OURS: jaxprims(make, convert=convert)}
        for name, plan in gpu_plans.histograms(bins, operator).items():
            contestants[name] = jaxprims(make, plan, convert)
        params = {"bins": bins, "race_factor": rf, "operator": operator}
        check = _used_pairs if operator.startswith("argmax") else lambda a: a
        name = f"{operator}, {bins} bins, race factor {rf}"
        return Case(
            "plans", name, s.paper, 4 * s.paper, lambda: _paper_input(s.paper), contestants, 0.0, params, check=check,
            explained=True,
        )  # fmt: skip

    chosen = [o for o in operators(1) if "f32" not in o]
    return [of(operator, h, rf) for rf in RACE_FACTORS for operator in chosen for h in s.plan_bins]


def deterministic(s: Sizes) -> list[Case]:
    """What the same bits on every run cost."""
    n = s.paper
    values = functools.cache(lambda: uniform_floats(4, n))

    def case(bins: int) -> Case:
        inputs = functools.cache(lambda: (values(), uniform_ints(5, n, bins)))
        contestants = {
            OURS: jaxprims(lambda jp, v, i: jp.reduce_by_index(v, i, bins)),
            "deterministic": jaxprims(lambda jp, v, i: jp.reduce_by_index(v, i, bins, deterministic=True)),
        }
        return Case("deterministic", f"f32 sum, {bins:,} bins", n, 8 * n, inputs, contestants, 1e-4, {"bins": bins})

    return [case(h) for h in (100, 60_000, 1_500_000)]
