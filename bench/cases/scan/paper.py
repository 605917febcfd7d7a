"""de Kluijver 2024, chapter 4: prefix sums of 100 million 64-bit integers in four dimensions, and in place."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from ...contestant import Case, Inputs, Prepare, equal
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import copied, in_shape, like_first, merged, the_input, with_result
from .orders import in_orders
from .shapes import text

GROUP = "de Kluijver 2024"
IN_PLACE = "de Kluijver 2024 in place"
SHAPES = ((100_000_000,), (4, 25_000_000), (4_000, 25_000), (10_000, 10_000), (100_000, 1_000), (100, 100, 100, 100))
QUICK = ((80_000,), (4, 20_000), (100, 100, 2, 4))


def cases(quick: bool) -> list[Case]:
    shapes = QUICK if quick else SHAPES
    return [*(cumsum(s) for s in shapes), *(cumsum_in_place(s) for s in shapes)]


def _make(shape: tuple[int, ...]) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        return {"x": rng.integers(-100, 100, shape, dtype=np.int8).astype(np.int64)}

    return make


def cumsum(shape: tuple[int, ...]) -> Case:
    outer, n, _ = merged(len(shape) - 1, shape)
    contestants: dict[str, Prepare] = {
        **native("cumsum_wide", outer, n, 1, outputs=like_first),
        "jaxprims": arrays.wide(arrays.jaxprims(lambda jp, x: jp.cumsum(x, axis=x.ndim - 1))),
        "xla": arrays.wide(arrays.xla(lambda x: jax.lax.cumsum(x, axis=x.ndim - 1))),
        "numpy": arrays.numpy(lambda x, out: np.cumsum(x, -1, out=out), with_result),
        "torch": arrays.torch(lambda t, x, out: t.cumsum(x, -1, out=out), with_result),
        "futhark": in_shape(futhark("cumsum_rows_wide", file="scan"), (outer, n), shape),
        **in_orders(len(shape) - 1),
    }
    return Case(GROUP, text(shape), outer * n, _make(shape), contestants, equal)


def cumsum_in_place(shape: tuple[int, ...]) -> Case:
    outer, n, _ = merged(len(shape) - 1, shape)
    contestants: dict[str, Prepare] = {
        **{name: copied(p) for name, p in native("cumsum_wide", outer, n, 1, outputs=the_input).items()},
        "jaxprims": arrays.wide(arrays.jaxprims_in_place(lambda jp, x: jp.scan(x, axis=-1, in_place=True))),
        "xla": arrays.wide(arrays.xla_in_place(lambda x: jax.lax.cumsum(x, axis=x.ndim - 1))),
        "numpy": copied(arrays.numpy(lambda x: np.cumsum(x, -1, out=x))),
        "torch": copied(arrays.torch(lambda t, x: x.cumsum_(-1))),
    }
    return Case(IN_PLACE, text(shape), outer * n, _make(shape), contestants, equal)
