"""What a benchmark is made of: a Case (data), its contestants, and a prepared Run of one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Inputs = dict[str, np.ndarray]
Answer = tuple[np.ndarray, ...]


class Missing(Exception):
    """A contestant that this machine does not have; the text says why."""


def as_arrays(result: Any) -> Answer:
    """Whatever a contestant returned, as a flat tuple of NumPy arrays."""
    if isinstance(result, tuple | list):
        return tuple(a for part in result for a in as_arrays(part))
    array = np.asarray(result)
    if array.dtype.names:
        return tuple(array[name] for name in array.dtype.names)
    return (array,)


@dataclasses.dataclass(frozen=True)
class Run:
    """A contestant with its inputs in place. ``call`` is what is timed: it returns when the work is done."""

    call: Callable[[], Any]
    fetch: Callable[[Any], Answer] = as_arrays
    close: Callable[[], None] = lambda: None


Prepare = Callable[[Inputs], Run]
Check = Callable[[Answer, Answer], None]


def equal(expected: Answer, got: Answer) -> None:
    """The same values, whatever the dtypes."""
    _same_shapes(expected, got)
    for e, g in zip(expected, got, strict=True):
        np.testing.assert_array_equal(g, e)


def anything(expected: Answer, got: Answer) -> None:
    """What is timed has no answer that could be compared."""


def close(rtol: float) -> Check:
    """Within ``rtol``, of the largest magnitude in the array: sums in different orders, of values that may cancel."""

    def check(expected: Answer, got: Answer) -> None:
        _same_shapes(expected, got)
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_allclose(g, e, rtol=rtol, atol=rtol * float(np.abs(e).max(initial=0)))

    return check


def same_counts(tolerance: float) -> Check:
    """Histograms that may differ in a few values that lie on a bin's edge, up to ``tolerance`` of all."""

    def check(expected: Answer, got: Answer) -> None:
        _same_shapes(expected, got)
        for e, g in zip(expected, got, strict=True):
            moved = np.abs(g.astype(np.int64) - e.astype(np.int64)).sum()
            assert moved <= max(4, tolerance * e.sum()), f"{moved} counts of {e.sum()} differ"

    return check


def same_argmax(expected: Answer, got: Answer) -> None:
    """Equal (value, index) pairs wherever a bin has any: what an empty bin holds is each contestant's own affair."""
    _same_shapes(expected, got)
    lowest = -np.inf if expected[0].dtype.kind == "f" else np.iinfo(expected[0].dtype).min
    used = expected[0] != lowest
    equal(tuple(e[used] for e in expected), tuple(g[used] for g in got))


def _same_shapes(expected: Answer, got: Answer) -> None:
    shapes = [e.shape for e in expected], [g.shape for g in got]
    assert shapes[0] == shapes[1], f"shapes {shapes[1]}, expected {shapes[0]}"


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison: the same work by several contestants on the same input."""

    group: str
    name: str
    elements: int
    make: Callable[[np.random.Generator], Inputs]
    contestants: Mapping[str, Prepare]
    check: Check = equal
    targets: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How many times faster than these contestants jaxprims shall be."""
    seconds_over: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How many seconds jaxprims may take longer than these contestants."""
    beside: Mapping[str, Prepare] = dataclasses.field(default_factory=dict)
    """What takes turns with the contestants for comparison, but does other work: its answer is not looked at."""
    exact: Callable[[Inputs], Answer] | None = None
    """The answer in higher precision: each contestant's relative error is reported."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a plot needs to know, such as the number of bins."""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"
