"""Segmented reductions of 50 million float32: by offsets (CSR row pointers) and by sorted ids, and what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..contestant import Case, Inputs, close, equal
from ..peers import arrays
from ..peers.futhark import futhark
from ..peers.native import native

BY_OFFSETS = "by offsets"
BY_IDS = "by sorted ids"
MORE = "applications"


def cases(quick: bool) -> list[Case]:
    n = 100_000 if quick else 50_000_000
    operators = (SUM, MAX, FARTHEST)
    by_offsets = [reduced(name, lengths, op, n) for name, lengths in LENGTHS.items() for op in operators]
    targets = {("of 20", MAX.name): {"xla": 9.0}}
    by_ids = [
        reduced(name, LENGTHS[name], op, n, ids=True, targets=targets.get((name, op.name), {}))
        for name in ("of 3", "of 20", "1,000 long ones")
        for op in operators
    ]
    return [*by_offsets, *by_ids, by_index(n), softmax(n // 5), matrix_times_vector(n // 5)]


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from .. import plots  # matplotlib is only needed here

    return list(plots.overview(report, directory, stem))


# --- segments -----------------------------------------------------------------------------------------------------------

Lengths = Callable[[np.random.Generator, int], np.ndarray]


def _equal(length: int) -> Lengths:
    return lambda rng, n: np.full(n // length, length)


def _random(rng: np.random.Generator, n: int) -> np.ndarray:
    """From 0 to 40."""
    return rng.integers(0, 41, n // 20)


def _giant(rng: np.random.Generator, n: int) -> np.ndarray:
    """Half of all elements in one, among segments of 0 to 4."""
    tiny = rng.integers(0, 5, n // 4)
    tiny[len(tiny) // 3] = n // 2
    return tiny


LENGTHS: dict[str, Lengths] = {
    "of 3": _equal(3),
    "of 20": _equal(20),
    "of 0 to 40": _random,
    "one giant, many tiny": _giant,
    "one alone": lambda rng, n: np.array([n]),
    "1,000 long ones": lambda rng, n: np.full(1000, n // 1000),
}


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def ids_of(offsets: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))


# --- operators ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operator:
    name: str  # of the entries in bench/native and bench/futhark
    op: Callable[[Any, Any], Any]
    empty: float
    xla: Callable[[Any, Any, int], Any]  # values, ids, segments
    reduceat: np.ufunc | None
    torch: str | None


def _farther(a: Any, b: Any) -> Any:
    return jnp.where(jnp.abs(b) > jnp.abs(a), b, a)


def _farthest(values: jax.Array, ids: jax.Array, segments: int) -> jax.Array:
    """A scan that starts anew with each id, of which the segments' last ones are wanted."""

    def op(a: Any, b: Any) -> Any:
        return jnp.where(a[1] == b[1], _farther(a[0], b[0]), b[0]), b[1]

    scanned = jax.lax.associative_scan(op, (values, ids))[0]
    is_last = jnp.append(ids[1:] != ids[:-1], True)
    return jnp.zeros(segments, values.dtype).at[jnp.where(is_last, ids, segments)].set(scanned, mode="drop")


SUM = Operator("sum", jnp.add, 0.0, lambda v, i, s: jax.ops.segment_sum(v, i, s, indices_are_sorted=True), np.add, "sum")
MAX = Operator(
    "max", jnp.maximum, -np.inf, lambda v, i, s: jax.ops.segment_max(v, i, s, indices_are_sorted=True), np.maximum, "max"
)
FARTHEST = Operator("farthest", _farther, 0.0, _farthest, None, None)


def reduced(
    name: str, lengths: Lengths, operator: Operator, n: int, ids: bool = False, targets: Mapping[str, float] | None = None
) -> Case:
    """Segments by offsets or by ids; contestants that take the other get it, made outside the timing."""
    # Shapes have to be known before the input is made: the number of segments is the same for every seed.
    segments = len(lengths(np.random.default_rng(0), n))
    key = "ids" if ids else "offsets"

    def make(rng: np.random.Generator) -> Inputs:
        offsets = offsets_of(lengths(rng, n))
        values = rng.integers(-1000, 1000, offsets[-1], dtype=np.int16).astype(np.float32)
        return {"values": values, key: ids_of(offsets) if ids else offsets}

    def with_ids(values: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values, given if ids else ids_of(given)

    def with_offsets(values: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values, np.searchsorted(given, np.arange(segments + 1)).astype(np.int32) if ids else given

    def jaxprims(jp: Any, values: jax.Array, given: jax.Array) -> Any:
        if ids:
            return jp.segment_reduce(values, given, operator.op, num_segments=segments, identity=operator.empty)
        return jp.segment_reduce(values, jp.Offsets(given), operator.op, identity=operator.empty)

    def numpy(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        assert operator.reduceat is not None
        starts, ends = offsets[:-1], offsets[1:]
        out = operator.reduceat.reduceat(values, np.minimum(starts, len(values) - 1))
        return np.where(starts == ends, np.float32(operator.empty), out)

    def torch(t: Any, values: Any, offsets: Any) -> Any:
        return t.segment_reduce(values, operator.torch, offsets=offsets, unsafe=True)

    def wide(values: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, offsets = with_offsets(values, given)
        return values, offsets.astype(np.int64)

    extra = (segments, operator.empty) if ids else (operator.empty,)
    contestants = {
        **native(f"{'ids' if ids else 'segments'}_{operator.name}", *extra),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(lambda v, i: operator.xla(v, i, segments), with_ids),
        **({"numpy": arrays.numpy(numpy, with_offsets)} if operator.reduceat else {}),
        **({"torch": arrays.torch(torch, wide)} if operator.torch else {}),
    }
    if not ids:
        contestants["futhark"] = futhark(f"segments_{operator.name}", file="segment")
        contestants["futhark loops"] = futhark(f"loops_{operator.name}", file="segment")
    check = close(1e-3) if operator is SUM else equal
    title = f"{operator.name}, segments {name}"
    return Case(BY_IDS if ids else BY_OFFSETS, title, n, make, contestants, check, targets or {})


# --- applications ---------------------------------------------------------------------------------------------------------


def by_index(n: int) -> Case:
    """A histogram whose indices are sorted, and said to be."""
    segments = n // 20

    def make(rng: np.random.Generator) -> Inputs:
        return {
            "values": rng.integers(-8, 9, n, dtype=np.int8).astype(np.float32),
            "ids": np.sort(rng.integers(0, segments, n, dtype=np.int32)),
        }

    contestants = {
        **native("ids_sum", segments, 0.0),
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jp.reduce_by_index(v, i, segments, indices_are_sorted=True)),
        "xla": arrays.xla(lambda v, i: jax.ops.segment_sum(v, i, segments, indices_are_sorted=True)),
        "numpy": arrays.numpy(lambda v, i: np.bincount(i, v, segments), lambda v, i: (v.astype(np.float64), i.astype(np.int64))),
        "torch": arrays.torch(lambda t, v, i: t.zeros(segments).scatter_add_(0, i, v), lambda v, i: (v, i.astype(np.int64))),
    }
    return Case(MORE, "reduce_by_index, sorted indices", n, make, contestants, equal)


def softmax(n: int) -> Case:
    """Segments of 0 to 40, by ids."""
    segments = n // 20

    def make(rng: np.random.Generator) -> Inputs:
        offsets = offsets_of(_random(rng, n))
        return {"values": rng.standard_normal(offsets[-1], np.float32), "ids": ids_of(offsets)}

    def with_offsets(values: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values, np.searchsorted(ids, np.arange(segments + 1)).astype(np.int32)

    def xla(values: jax.Array, ids: jax.Array) -> jax.Array:
        largest = jax.ops.segment_max(values, ids, segments, indices_are_sorted=True)
        e = jnp.exp(values - largest[ids])
        return e / jax.ops.segment_sum(e, ids, segments, indices_are_sorted=True)[ids]

    def numpy(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
        _, starts = np.unique(ids, return_index=True)
        lengths = np.diff(np.append(starts, len(ids)))
        e = np.exp(values - np.repeat(np.maximum.reduceat(values, starts), lengths))
        return e / np.repeat(np.add.reduceat(e, starts), lengths)

    by_hand = native("segments_softmax")

    def converted(name: str) -> Any:
        return lambda inputs: by_hand[name](dict(zip(("values", "offsets"), with_offsets(*inputs.values()), strict=True)))

    contestants = {
        "native": converted("native"),
        "sequential": converted("sequential"),
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jp.segment_softmax(v, i, segments, indices_are_sorted=True)),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy),
    }
    return Case(MORE, "segment_softmax, segments of 0 to 40", n, make, contestants, close(1e-5))


def matrix_times_vector(n: int) -> Case:
    """A sparse matrix in CSR form, 20 numbers in a row on average, times a vector."""
    rows = n // 20

    def make(rng: np.random.Generator) -> Inputs:
        offsets = offsets_of(_random(rng, n))
        return {
            "data": rng.standard_normal(offsets[-1], np.float32),
            "columns": rng.integers(0, rows, offsets[-1], dtype=np.int32),
            "offsets": offsets,
            "x": rng.standard_normal(rows, np.float32),
        }

    def jaxprims(jp: Any, data: jax.Array, columns: jax.Array, offsets: jax.Array, x: jax.Array) -> jax.Array:
        return jp.segment_reduce((data, columns), jp.Offsets(offsets), jnp.add, map=lambda d, c: d * x[c])

    def with_ids(data: np.ndarray, columns: np.ndarray, offsets: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return data, columns, ids_of(offsets), x

    def xla(data: jax.Array, columns: jax.Array, ids: jax.Array, x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(data * x[columns], ids, rows, indices_are_sorted=True)

    def sparse(data: np.ndarray, columns: np.ndarray, offsets: np.ndarray, x: np.ndarray) -> tuple[Any, np.ndarray]:
        return arrays.module("scipy.sparse").csr_array((data, columns, offsets), (rows, rows)), x

    def tensors(t: Any, data: Any, columns: Any, offsets: Any, x: Any) -> Any:
        return t.sparse_csr_tensor(offsets, columns, data, (rows, rows), check_invariants=False) @ x

    contestants = {
        **native("csr_times_vector"),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla, with_ids),
        "numpy": arrays.numpy(lambda matrix, x: matrix @ x, sparse),
        "torch": arrays.torch(tensors),
        "futhark": futhark("csr_times_vector", file="segment"),
    }
    return Case(MORE, "CSR matrix times vector", n, make, contestants, close(1e-4))
