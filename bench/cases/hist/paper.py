"""Henriksen et al. 2020, V-A: bins from 31 to 1.5 million, race factors 1 and 63, one operator of each class."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs, Prepare, equal, same_argmax
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native

GROUP = "Henriksen et al. 2020"
BINS = (31, 127, 505, 2041, 6141, 12281, 24569, 49145, 196607, 393215, 786431, 1572863)
RACE_FACTORS = (1, 63)
SATURATION = 0xFFFFFF


def cases(quick: bool) -> list[Case]:
    n = 100_000 if quick else 50_000_000
    sizes = BINS[1::5] if quick else BINS
    operators = {"add (HDW)": add, "saturating add (CAS)": saturating, "argmax (XCG)": argmax}

    def make(rng: np.random.Generator) -> Inputs:
        return {"x": rng.integers(0, 2**31, n, dtype=np.int32)}

    return [
        Case(
            GROUP, f"{name}, {bins} bins, race factor {rf}", n, make, contestants(n, bins, rf),
            same_argmax if contestants is argmax else equal,
            params={"bins": bins, "race_factor": rf, "operator": name},
        )
        for name, contestants in operators.items()
        for rf in RACE_FACTORS
        for bins in sizes
    ]  # fmt: skip


def bin_of(x: Any, bins: int, race_factor: int) -> Any:
    """The index of an element, which uses only one bin in ``race_factor``."""
    return jax.lax.rem(x, jnp.int32(max(1, bins // race_factor))) * race_factor


def bin_of_array(x: Any, bins: int, race_factor: int) -> Any:
    return (x % max(1, bins // race_factor)) * race_factor


def weight(x: Any) -> Any:
    """Six bits of the element, so that few bins saturate and a 32-bit sum of all elements does not wrap."""
    return (x >> 8) & 63


def add(n: int, bins: int, rf: int) -> dict[str, Prepare]:
    """Sums that wrap."""
    return {
        **native("paper_add", bins, rf),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.genhist(lambda e: (bin_of(e, bins, rf), e), x, jp.Bins(bins, jnp.add))),
        "xla": arrays.xla(lambda x: jax.ops.segment_sum(x, bin_of(x, bins, rf), bins)),
        "numpy": arrays.numpy(lambda x: np.bincount(bin_of_array(x, bins, rf), x, bins).astype(np.int64).astype(np.int32)),
        "torch": arrays.torch(lambda t, x: t.zeros(bins, dtype=t.int32).scatter_add_(0, bin_of_array(x, bins, rf).long(), x)),
        "futhark": futhark("paper_add", bins, rf),
    }


def saturating(n: int, bins: int, rf: int) -> dict[str, Prepare]:
    """Unsigned sums that stop at 2^24 - 1. Libraries without operators sum in 32 bits and clamp at the end."""

    def op(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.minimum(a + b, jnp.uint32(SATURATION))

    return {
        **native("paper_saturating", bins, rf),
        "jaxprims": arrays.jaxprims(
            lambda jp, x: jp.genhist(
                lambda e: (bin_of(e, bins, rf), weight(e).astype(jnp.uint32)), x, jp.Bins(bins, op, jnp.uint32(0))
            )
        ),
        "xla": arrays.xla(
            lambda x: jnp.minimum(jax.ops.segment_sum(weight(x).astype(jnp.uint32), bin_of(x, bins, rf), bins), SATURATION)
        ),
        "numpy": arrays.numpy(lambda x: np.minimum(np.bincount(bin_of_array(x, bins, rf), weight(x), bins), SATURATION)),
        "torch": arrays.torch(
            lambda t, x: (
                t.zeros(bins, dtype=t.int32).scatter_add_(0, bin_of_array(x, bins, rf).long(), weight(x)).clamp_(max=SATURATION)
            )
        ),
        "futhark": futhark("paper_saturating", bins, rf),
    }


def argmax(n: int, bins: int, rf: int) -> dict[str, Prepare]:
    """The largest element and where it is. Libraries without operators need two passes."""

    def xla(x: jax.Array) -> Any:
        index = bin_of(x, bins, rf)
        largest = jax.ops.segment_max(x, index, bins)
        position = jnp.where(x == largest[index], jnp.arange(n, dtype=jnp.int32), n)
        return largest, jax.ops.segment_min(position, index, bins)

    def torch(t: Any, x: Any) -> Any:
        index = bin_of_array(x, bins, rf).long()
        largest = t.full((bins,), -(2**31), dtype=t.int32).scatter_reduce_(0, index, x, "amax")
        position = t.where(x == largest[index], t.arange(n, dtype=t.int32), n)
        return largest, t.full((bins,), n, dtype=t.int32).scatter_reduce_(0, index, position, "amin")

    return {
        **native("paper_argmax", bins, rf),
        "jaxprims": arrays.jaxprims(
            lambda jp, x: jp.genhist(
                lambda e, position: (bin_of(e, bins, rf), (e, position)), (x, jp.positions), jp.Bins(bins, jp.monoids.argmax)
            )
        ),
        "xla": arrays.xla(xla),
        "torch": arrays.torch(torch),
        "futhark": futhark("paper_argmax", bins, rf),
    }
