"""Random operators, shapes, axes and options of scans and reductions against the sequential loop.

Operators work on integers, which wrap, so every one is associative to the bit; most do not commute. The same Python runs on
``jax.numpy`` and on NumPy. More examples: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_ordered_properties.py``.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from odd_operators import matrix

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("strict")

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def xp_of(*xs: Any) -> Any:
    return jnp if any(isinstance(x, jax.Array) for x in xs) else np


@dataclasses.dataclass(frozen=True)
class Base:
    """An operator on ``leaves`` integers of one dtype, with its identity."""

    name: str
    leaves: int
    op: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    identity: tuple[int, ...] | None


def keep(which: Any, x: Any, y: Any) -> Any:
    return xp_of(which, x, y).where(which, x, y)


BASES = (
    Base("add", 1, lambda a, b: (a[0] + b[0],), (0,)),
    Base("xor", 1, lambda a, b: (a[0] ^ b[0],), (0,)),
    Base("max", 1, lambda a, b: (xp_of(a[0]).maximum(a[0], b[0]),), None),
    Base("mul", 1, lambda a, b: (a[0] * b[0],), (1,)),
    Base("last", 1, lambda a, b: (keep(b[0] == 0, a[0], b[0]),), (0,)),
    Base("first", 1, lambda a, b: (a[0],), None),
    Base("affine", 2, lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1]), (1, 0)),
    Base("matrix", 4, matrix, (1, 0, 0, 1)),
    Base("restart", 2, lambda a, b: (a[0] | b[0], keep(b[0] % 2 == 1, b[1], a[1] + b[1])), None),
)


@dataclasses.dataclass(frozen=True)
class Operator:
    """Several bases side by side."""

    parts: tuple[tuple[Base, str], ...]

    def __repr__(self) -> str:
        return " x ".join(f"{base.name} on {dtype}" for base, dtype in self.parts)

    def op(self, a: Any, b: Any) -> Any:
        return [tuple(base.op(p, q)) for (base, _), p, q in zip(self.parts, a, b, strict=True)]

    def sample(self, rng: np.random.Generator, *shape: int) -> Any:
        def draw(dtype: str) -> np.ndarray:
            info = np.iinfo(dtype)
            values = rng.integers(info.min, int(info.max) + 1, shape).astype(dtype)
            return np.where(rng.random(shape) < 0.3, np.zeros((), dtype), values)

        return [tuple(draw(dtype) for _ in range(base.leaves)) for base, dtype in self.parts]

    def identity(self) -> Any:
        if any(base.identity is None for base, _ in self.parts):
            return None
        return [tuple(np.array(i, dtype) for i in base.identity or ()) for base, dtype in self.parts]


operators = st.lists(st.tuples(st.sampled_from(BASES), st.sampled_from(DTYPES)), min_size=1, max_size=3).map(
    lambda parts: Operator(tuple(parts))
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], int]:
    """A shape and an axis; the axis may be long, the others are short."""
    rank = draw(st.integers(1, 4))
    axis = draw(st.integers(0, rank - 1))
    shape = [draw(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 40])) if rank < 4 else draw(st.integers(1, 5)) for _ in range(rank)]
    shape[axis] = draw(st.one_of(st.integers(0, 70), st.sampled_from([255, 256, 257, 1023, 1025, 3000])))
    return tuple(shape), axis


def equal(got: Any, wanted: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(g), w)
        assert g.dtype == w.dtype


@examples(7)
@given(operators, shapes(), st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_scan(
    operator: Operator, where: tuple[tuple[int, ...], int], seed: int, exclusive: bool, reverse: bool, init: bool, cut: bool
) -> None:
    shape, axis = where
    rng = np.random.default_rng(seed)
    x = operator.sample(rng, *shape)
    start = operator.sample(rng, *shape[:axis], *shape[axis + 1 :]) if init else None
    identity = operator.identity()
    exclusive = exclusive and (init or identity is not None)
    starts = rng.random(shape[axis]) < rng.choice([0, 0.02, 0.3, 1]) if cut else None
    options: dict[str, Any] = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "identity": identity}
    got = jax.jit(lambda x, s: jp.scan(x, operator.op, init=s, segment_starts=starts, **options))(x, start)
    equal(got, references.scan(x, operator.op, init=start, starts=starts, **options))


@examples(7)
@given(operators, shapes(), st.integers(0, 2**32 - 1), st.booleans())
def test_reduce(operator: Operator, where: tuple[tuple[int, ...], int], seed: int, init: bool) -> None:
    shape, axis = where
    rng = np.random.default_rng(seed)
    x = operator.sample(rng, *shape)
    slices = (*shape[:axis], *shape[axis + 1 :])
    start = operator.sample(rng, *slices) if init else None
    identity = operator.identity()
    if shape[axis] == 0 and not init:
        if identity is None:
            return
        wanted = jax.tree.map(lambda i: np.broadcast_to(i, slices), identity)
    else:
        full = references.scan(x, operator.op, axis, init=start)
        wanted = start if shape[axis] == 0 else jax.tree.map(lambda y: np.take(y, -1, axis), full)
    equal(jax.jit(lambda x, s: jp.reduce(x, operator.op, axis=axis, identity=identity, init=s))(x, start), wanted)


@examples(7)
@given(
    operators,
    st.integers(0, 3000),
    st.integers(1, 60),
    st.sampled_from([(), (3,), (20,)]),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_segment_reduce(operator: Operator, n: int, count: int, inner: tuple[int, ...], seed: int, by_ids: bool) -> None:
    rng = np.random.default_rng(seed)
    x = operator.sample(rng, n, *inner)
    identity = operator.identity()
    if identity is None:
        identity = operator.sample(rng, *inner)  # what empty segments are to hold
    offsets = np.sort(rng.integers(0, n + 1, count + 1)).astype(np.int32)
    if by_ids:
        offsets[0], offsets[-1] = 0, n
    cut: Any = np.repeat(np.arange(count, dtype=np.int32), np.diff(offsets)) if by_ids else jp.Offsets(offsets)
    starts = np.zeros(n, bool)
    starts[offsets[:-1][offsets[:-1] < n]] = True
    full = references.scan(x, operator.op, starts=starts)

    def wanted(y: np.ndarray, i: np.ndarray) -> np.ndarray:
        out = np.broadcast_to(i, (count, *inner)).copy()
        for s in range(count):
            if offsets[s + 1] > offsets[s]:
                out[s] = y[offsets[s + 1] - 1]
        return out

    run = jax.jit(lambda x, c: jp.segment_reduce(x, c, operator.op, num_segments=count if by_ids else None, identity=identity))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.IdentityWarning)
        got = run(x, cut)
    equal(got, jax.tree.map(wanted, full, identity))
