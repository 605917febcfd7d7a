"""What is measured on a GPU, and what jaxprims shall reach: figure 7 and the tables of Henriksen et al. 2020, figures 4 and 5 of
Martín et al. 2012, scans, calls on little."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprims.targets.plans import AnyKernel

from . import gpu_plans
from .contestant import Missing
from .gpu_contestants import Prepare, compute, cub, cupy, empty, futhark_cuda, jaxprims, torch, xla
from .gpu_measure import Arrays, Work, small_floats, uniform_floats, uniform_ints
from .paper2.contestant import ALGORITHMS, algorithm

OURS = "jaxprims"
BINS = (31, 127, 505, 2041, 6141, 12281, 24569, 49145, 196607, 393215, 786431, 1572863)
RACE_FACTORS = (1, 63)
SATURATION = 0xFFFFFF
LOWEST, HIGHEST = -(2**31), 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison. ``bytes``: what must be moved at least. The first contestant to answer is the reference of the others."""

    group: str
    name: str
    elements: int
    bytes: int
    inputs: Callable[[], tuple[jax.Array, ...]]
    contestants: Mapping[str, Prepare]
    rtol: float = 0.0
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    """Contestants that do another, easier work."""
    check: Callable[[Arrays], Arrays] = lambda answer: answer
    """What of the answers is compared."""
    alone: bool = False
    """Also timed one call at a time."""
    explained: bool = False
    """The report says what ``jaxprims.explain`` tells of the plan."""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    paper: int  # of Henriksen et al. 2020
    large: int  # where a launch must not show
    bins: tuple[int, ...]
    plan_bins: tuple[int, ...]
    reductions: tuple[int, ...]


FULL = Sizes(50_000_000, 2**27, BINS, BINS[::2] + BINS[-1:], tuple(m * 2**20 for m in (16, 31, 64, 128, 256, 512)))
SMALL = Sizes(20_000, 50_000, (31, 6141), (127,), (2**14, 2**16))


def groups(quick: bool) -> Iterator[tuple[str, Callable[[], list[Case]]]]:
    """In the order of their weight: what is measured when time runs out is the end of this list. A group's cases are made when it
    is its turn, and its inputs dropped after it."""
    s = SMALL if quick else FULL
    yield "launch", lambda: launch(s)
    yield "sum by index", lambda: sums(s)
    yield "scans", lambda: scans(s)
    yield "scan plans", lambda: scan_plans(quick)
    yield "segments, targets", lambda: million_segments(s)
    yield "everyday", lambda: everyday(quick)
    yield "whole programs", lambda: programs(quick)
    for rf in RACE_FACTORS:
        yield f"figure 7, race factor {rf}", functools.partial(figure_7, s, rf)
    yield "plans", lambda: plans(s)
    yield "deterministic", lambda: deterministic(s)
    yield "reductions", lambda: reductions(s)
    yield "segments", lambda: segments(s)
    yield "applications", lambda: applications(quick)


# --- histograms ------------------------------------------------------------------------------------------------------------


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


# --- scans -----------------------------------------------------------------------------------------------------------------


def scans(s: Sizes) -> list[Case]:
    n = s.large
    wide = 1024 if n > 2**20 else 64
    walk = functools.cache(lambda: (small_floats(6, n),))
    maps = functools.cache(lambda: (jnp.where(uniform_ints(7, n, 2) == 0, jnp.float32(1), jnp.float32(-1)), *walk()))
    starts = functools.cache(lambda: (*walk(), uniform_ints(8, n, 20) == 0))
    matrix = functools.cache(lambda: (walk()[0][: n // wide * wide].reshape(-1, wide),))
    pair = jax.jit(lambda a, b: (jnp.stack([a, b], 1),))

    def like_first(x: jax.Array) -> list[jax.Array]:
        return [empty(x.shape, x.dtype)]

    def plus(library: Any, cp: Any, x: Any) -> Any:
        out = cp.empty_like(x)
        zero = np.zeros(1, np.float32)
        call = functools.partial(
            library.inclusive_scan, d_in=x, d_out=out, op=library.OpKind.PLUS, init_value=zero, num_items=len(x)
        )
        return call, out

    cumsum: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_add", like_first, lambda x: [len(x)]),
        "torch": torch(lambda t, x: t.cumsum(x, 0)),
        OURS: jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": xla(jnp.cumsum),
        "cupy": cupy(lambda cp, x: cp.cumsum(x, dtype=cp.float32)),
        "cuda.compute": compute(plus),
        "futhark": futhark_cuda("cumsum", file="scan"),
    }
    affine: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_affine", like_first, lambda x: [len(x)], pair, lambda y: (y[:, 0], y[:, 1])),
        OURS: jaxprims(lambda jp, a, b: jp.scan((a, b), jp.monoids.affine)),
        "xla": xla(lambda a, b: jax.lax.associative_scan(_affine, (a, b))),
        "futhark": futhark_cuda("affine", file="scan"),
    }
    largest: dict[str, Prepare] = {
        "cub": cub("ordered", "scan_max", like_first, lambda x: [len(x)]),
        "torch": torch(lambda t, x: t.cummax(x, 0)[0]),
        OURS: jaxprims(lambda jp, x: jp.cummax(x)),
        "xla": xla(jax.lax.cummax),
    }

    def along(axis: int) -> dict[str, Prepare]:
        return {
            "torch": torch(lambda t, x: t.cumsum(x, axis)),
            OURS: jaxprims(lambda jp, x: jp.cumsum(x, axis)),
            "xla": xla(lambda x: jnp.cumsum(x, axis)),
            "cupy": cupy(lambda cp, x: cp.cumsum(x, axis, dtype=cp.float32)),
        }

    def recurrence(jp: Any, a: jax.Array, b: jax.Array) -> jax.Array:
        return jp.linear_recurrence(a, b)

    rows = n // wide
    return [
        Case("scans", "cumsum", n, 8 * n, walk, cumsum),
        Case("scans", "affine maps", n, 16 * n, maps, affine),
        Case("scans", "linear recurrence", n, 12 * n, maps, {OURS: jaxprims(recurrence)}),
        Case("scans", "cummax", n, 8 * n, walk, largest),
        Case("scans", "cumsum, restarts", n, 9 * n, starts, {OURS: jaxprims(lambda jp, x, c: jp.scan(x, segment_starts=c))}),
        Case("scans", f"cumsum, {rows:,} rows of {wide:,}", n, 8 * n, matrix, along(1)),
        Case("scans", f"cumsum along axis 0 of {rows:,} × {wide:,}", n, 8 * n, matrix, along(0)),
    ]


def scan_plans(quick: bool) -> list[Case]:
    """Whether tiles wait in shared memory: the plan that is chosen against both, of lengths and rows between which it changes."""
    rows: list[tuple[tuple[int, ...], Any]] = [((2**k,), np.float32) for k in (17, 19, 20, 21, 22, 23, 24, 25, 27)]
    rows += [((2**k,), np.uint8) for k in (20, 22, 24, 27)]
    rows += [
        ((m, n), np.float32) for m, n in ((131_072, 1024), (9000, 7001), (900, 70_001), (64, 2**20), (8, 2**23), (64, 2**16))
    ]

    def scanned(jp: Any, x: jax.Array) -> jax.Array:
        return jp.scan(x, axis=-1)

    def composed(jp: Any, a: jax.Array, b: jax.Array) -> Any:
        return jp.scan((a, b), jp.monoids.affine)

    def all_plans(fn: Callable[..., Any]) -> dict[str, Prepare]:
        return {OURS: jaxprims(fn), **{name: jaxprims(fn, plan) for name, plan in gpu_plans.SCANS.items()}}

    def cumsum(shape: tuple[int, ...], dtype: Any) -> Case:
        n = int(np.prod(shape))
        name = f"cumsum, {'×'.join(f'{k:,}' for k in shape)} {np.dtype(dtype).name}"
        x = functools.partial(lambda: (small_floats(15, n).reshape(shape).astype(dtype),))
        contestants = all_plans(scanned) | {"xla": xla(lambda x: jnp.cumsum(x, axis=-1, dtype=x.dtype))}
        return Case("scan plans", name, n, 2 * n * np.dtype(dtype).itemsize, x, contestants, 1e-4)

    def affine(n: int) -> Case:
        make = functools.partial(lambda: (jnp.where(uniform_ints(7, n, 2) == 0, 1.0, -1.0), small_floats(6, n)))
        contestants = all_plans(composed) | {"xla": xla(lambda a, b: jax.lax.associative_scan(_affine, (a, b)))}
        return Case("scan plans", f"affine maps, {n:,}", n, 16 * n, make, contestants, 1e-4)

    return [*(cumsum(*r) for r in rows[: 2 if quick else None]), *(affine(2**k) for k in (() if quick else (18, 20, 22, 24, 26)))]


def _affine(f: Any, g: Any) -> Any:
    return g[0] * f[0], g[0] * f[1] + g[1]


# --- reductions ------------------------------------------------------------------------------------------------------------


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


# --- what a call costs; applications ---------------------------------------------------------------------------------------


def launch(s: Sizes) -> list[Case]:
    """Calls on 1,000 elements: only their cost counts."""
    n = 1000
    pair = functools.cache(lambda: (small_floats(12, n), uniform_ints(13, n, 100)))

    def case(name: str, contestants: Mapping[str, Prepare], inputs: Callable[[], tuple[jax.Array, ...]]) -> Case:
        return Case("launch", name, n, 0, inputs, contestants, 1e-5, alone=True)

    def walk() -> tuple[jax.Array, ...]:
        return pair()[:1]

    by_index = {k: v for k, v in sum_contestants(100).items() if k not in ("cub", "futhark")}
    cumsum: dict[str, Prepare] = {
        "torch": torch(lambda t, x: t.cumsum(x, 0)),
        OURS: jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": xla(jnp.cumsum),
        "cupy": cupy(lambda cp, x: cp.cumsum(x, dtype=cp.float32)),
    }
    total: dict[str, Prepare] = {
        "torch": torch(lambda t, x: t.sum(x)),
        OURS: jaxprims(lambda jp, x: jp.reduce(x)),
        "xla": xla(jnp.sum),
        "cupy": cupy(lambda cp, x: cp.sum(x)),
        "xla, x + 1": xla(lambda x: x + 1),
    }
    return [
        case("sum by index of 1,000", by_index, pair),
        case("cumsum of 1,000", cumsum, walk),
        dataclasses.replace(case("sum of 1,000", total, walk), unchecked=("xla, x + 1",)),
    ]


def everyday(quick: bool) -> list[Case]:
    """The calls of the suite ``everyday``, by jaxprims and by plain JAX."""
    from .cases import everyday as calls

    def case(call: calls.Call, kind: str) -> Case:
        def inputs() -> tuple[jax.Array, ...]:
            return tuple(jax.device_put(a) for a in calls.inputs_of(call, kind, np.random.default_rng(20)).values())

        plain, ours = (calls.transformed(fn, kind) for fn in (call.plain, call.ours))
        both: dict[str, Prepare] = {"xla": xla(plain), OURS: jaxprims(lambda _, *xs: ours(*xs))}
        return Case("everyday", f"{kind}, {call.name}", 0, 0, inputs, both, 2e-2, check=_without_nan)

    def aborts(call: calls.Call, kind: str) -> bool:
        """Plain JAX 0.11.2's compiler ends the process, and with it the run."""
        return kind == calls.GRADIENT and "products" in call.name

    kinds = (calls.FORWARD, calls.GRADIENT, calls.BATCH, calls.LOOP)
    few = calls.CALLS[: 3 if quick else None]
    return [case(call, kind) for kind in kinds for call in few if kind in call.kinds and not aborts(call, kind)]


def programs(quick: bool) -> list[Case]:
    """Those of the suite ``fuse``, a million numbers each: ``jax.jit`` alone and of ``jp.fuse``."""
    from .cases import fuse

    n = 50_000 if quick else 1_000_000

    def case(p: fuse.Program, kind: str) -> Case:
        def inputs() -> tuple[jax.Array, ...]:
            return tuple(jax.device_put(a) for a in p.inputs(np.random.default_rng(20), n).values())

        plain = p.function if kind == fuse.FORWARD else fuse.gradient(p.function)

        def ours(jp: Any, *xs: jax.Array) -> Any:
            return jp.fuse(plain)(*xs)

        both: dict[str, Prepare] = {"xla": xla(plain), OURS: jaxprims(ours)}
        return Case("whole programs", f"{kind}, {p.name}", n, 0, inputs, both, 2e-2, check=_without_nan)

    few = fuse.PROGRAMS[: 3 if quick else None]
    kinds = (fuse.FORWARD, fuse.FUSED_GRADIENT)
    return [case(p, kind) for kind in kinds for p in few if kind == fuse.FORWARD or p.differentiable]


def _without_nan(answer: Arrays) -> Arrays:
    """An empty segment's mean is NaN for both."""
    return tuple(jnp.nan_to_num(a) for a in answer)


def applications(quick: bool) -> list[Case]:
    """Table III of Henriksen et al. 2020, those of the suite ``hist``: jaxprims and XLA, each call waited for."""
    from .cases.hist import applications as hist_applications

    def adapted(case: Any) -> Case:
        host: dict[str, Any] = {}

        def inputs() -> tuple[jax.Array, ...]:
            host.update(case.make(np.random.default_rng(20)))
            return ()

        def from_host(prepare: Any) -> Prepare:
            def made(_: list[Arrays]) -> Work:
                run = prepare(host)
                return Work(lambda k: run.call(), lambda _: None, lambda r: tuple(jnp.asarray(a) for a in run.fetch(r)))

            return made

        both = {name: from_host(case.contestants[name]) for name in ("xla", OURS)}
        tolerance = 1e-3 if "saturating" not in case.name else 0.0
        return Case("applications", case.name, case.elements, 0, inputs, both, tolerance, dict(case.params))

    return [adapted(c) for c in hist_applications.cases(quick)]


__all__ = ["Case", "Missing", "groups"]
