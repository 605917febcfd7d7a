"""From slices to elements.

An operator is given on *slices*: leaves with the axis removed. Kernels want it on *elements*: the part of a slice that it looks
at as a whole, the same for each of the slice's leading ("lane") axes. For ``jnp.add`` on slices of any shape an element is a
scalar; for ``a @ b`` on slices [B, 2, 2] a 2 x 2 matrix. That it treats all lanes alike is proved, not assumed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from ..arguments.warnings import FallbackWarning, warn_user
from ..ir.program import Builder, Program, same_program
from ..operators import classify
from ..operators.operator import MAX_STRUCT_SLOTS, Operator, check_dtypes, large_operator, make_operators, passing
from ..operators.traced import make_large, make_traced, slots_of
from ..primitives.ordered.call import places_of, scattered
from ..tracing import lanewise
from ..tracing.lower import Unsupported, hoist, lower_elementwise, to_program
from ..tracing.nests import to_arrays
from ..tracing.varying import element_aval
from .along_axis import Elements, flat_map
from .histogram import checked_identity, warn_identity
from .operator import trace_operator
from .ordered import Ordered

MAX_PROOF = 20_000
"""Where no rule says that lanes are treated alike, Programs of at most so many instructions, all lanes together, are compared."""

MAX_LARGE_SLOTS = 8192
"""Scalars of an element that is combined in memory: several of them are in the first-level cache, or in the second."""

_DIFFERENTLY = "that treats the axes of a slice differently"


def find_form(call: Ordered, map: Any, whole: int, rows: bool) -> None:
    """Operator and map on elements (``whole``: on slices, arrays if they have more scalars; ``rows``: if they have any).
    Raises Unsupported where there is no kernel for the operator."""
    check_dtypes([*call.values.dtypes, *(d for _, d in call.elements.slices())])
    given, concrete = checked_identity(call.monoid, call.values)
    mapped = _find_lanes(call, map, given if concrete else None, whole, rows)
    assert call.operator is not None
    if given is not None and concrete and not call.captured and call.operator.identity is not None:
        wrong = classify.wrong_identity(call.operator.program, call.operator.identity)
        if wrong is not None:
            warn_identity(wrong)
    call.identity = given
    if not mapped:
        # map by XLA: its results are the elements
        values = [jnp.moveaxis(v, 0, call.elements.at) for v in call.plain_values()]
        before = call.elements
        call.elements = Elements(values, call.values.tree, before.name, before.at)
        call.elements.axis, call.elements.rank = before.axis, before.rank
        call.mapped = None
        _map_on_elements(call, None)


def _find_lanes(call: Ordered, map: Any, identity: list[Any] | None, whole: int, rows: bool) -> bool:
    """The operator on elements, with as many axes of lanes as may be; fewer where map mixes these, if an element is then still
    one of scalars. Is map on such elements, too?"""
    at, shapes = call.elements.at, call.values.shapes
    most = 0 if whole else min(len(s) for s in shapes)
    failure: Unsupported | None = None
    first: tuple[int, Operator, list[Any]] | None = None
    for lanes in [k for k in range(most, -1, -1) if len({s[:k] for s in shapes}) == 1]:
        if lanes < most and not any(shapes):
            continue
        if first is not None and (lanes < at or _slots(call, lanes) > MAX_STRUCT_SLOTS):
            break
        try:
            operator, captured = _operator_on_elements(call, lanes, identity, 0 if rows else whole or MAX_STRUCT_SLOTS)
        except Unsupported as e:
            failure = e
            continue
        if lanes < at:
            call.elements.moved_to_front()
        call.lanes, call.operator, call.captured = lanes, operator, captured
        first = first or (lanes, operator, captured)
        try:
            if _map_on_elements(call, map):
                return True
        except Unsupported as e:
            warn_user(f"map cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning)
            break
    if first is None:
        assert failure is not None
        raise failure
    call.lanes, call.operator, call.captured = first
    return False


def _slots(call: Ordered, lanes: int) -> int:
    """Scalars of an element."""
    return sum(slots_of(s[lanes:], d) for s, d in zip(call.values.shapes, call.values.dtypes, strict=True))


def _operator_on_elements(call: Ordered, lanes: int, identity: list[Any] | None, most: int) -> tuple[Operator, list[Any]]:
    """As one of scalars, if these are no more than ``most``."""
    shapes, dtypes = call.values.shapes, call.values.dtypes
    inside = [s[lanes:] for s in shapes]
    slots = _slots(call, lanes)
    if slots > MAX_LARGE_SLOTS:
        raise Unsupported("operator", f"an element of {slots} scalars; {MAX_LARGE_SLOTS} is the most")
    if slots == 0:
        raise Unsupported("operator", "elements without scalars")
    outer = shapes[0][:lanes]
    closed = call.closed
    if outer:
        closed = _probed(call, inside)
        if slots > most:
            _prove_large(closed, call.closed, outer)
            return large_operator(closed)
        _prove(closed, call.closed, outer, inside * 2, [*dtypes, *dtypes])
    if slots > most:
        return large_operator(closed)
    uniform = None
    if identity is not None:
        rows = [_rows(v, s, lanes) for v, s in zip(identity, shapes, strict=True)]
        if all(_all_alike(r) for r in rows):  # else it is passed as a start value
            uniform = [r[0] if len(r) else np.zeros(r.shape[1:], r.dtype) for r in rows]
    ((_, operator, captured),), _ = make_operators(closed, uniform, most=most)
    return operator, captured


def _probed(call: Ordered, shapes: list[tuple[int, ...]]) -> ClosedJaxpr:
    """The operator on an element. What it raises there is no error of the call's, on whose slices it was traced already."""
    try:
        closed = trace_operator(call.monoid, call.values, shapes, call.axes)
    except Exception:
        raise Unsupported("operator", _DIFFERENTLY) from None
    if [(tuple(o.shape), np.dtype(o.dtype)) for o in closed.out_avals] != list(zip(shapes, call.values.dtypes, strict=True)):
        raise Unsupported("operator", _DIFFERENTLY)
    return closed


def _rows(value: np.ndarray, shape: tuple[int, ...], lanes: int) -> np.ndarray:
    """What it has for each of the lanes that it tells apart, whose number may be symbolic."""
    own = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    return np.broadcast_to(own, own.shape[:lanes] + shape[lanes:]).reshape(-1, *shape[lanes:])


def _all_alike(rows: np.ndarray) -> bool:
    """Have all rows the same bits?"""
    return len({row.tobytes() for row in rows}) <= 1


def _prove(
    element: ClosedJaxpr, whole: ClosedJaxpr, outer: tuple[int, ...], inside: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
) -> None:
    """Raises Unsupported unless a function on slices does on every lane what ``element`` does."""
    _, inner = hoist(element)
    program = to_program(inner.jaxpr)
    if all(s == () for s in inside):
        if not _on_numbers(whole, element, program, outer):
            raise Unsupported("operator", "that is not elementwise on its slices")
        return
    try:
        one = lanewise.one_lane(whole, outer)
        if same_program(to_program(hoist(one)[1].jaxpr), program) and _captures_alike(one, element):
            return
    except Unsupported:
        pass
    lanes = math.prod(outer)
    if lanes * len(program.body) <= MAX_PROOF and _captures_alike(whole, element):
        all_lanes = _repeated(program, [slots_of(s, d) for s, d in zip(inside, dtypes, strict=True)], lanes)
        if same_program(to_program(hoist(whole)[1].jaxpr), all_lanes):
            return
    raise Unsupported("operator", _DIFFERENTLY)


def _prove_large(element: ClosedJaxpr, whole: ClosedJaxpr, outer: tuple[int, ...]) -> None:
    one = lanewise.one_lane(whole, outer)
    if to_arrays(hoist(one)[1].jaxpr) != to_arrays(hoist(element)[1].jaxpr) or not _captures_alike(one, element):
        raise Unsupported("operator", _DIFFERENTLY)


def _on_numbers(whole: ClosedJaxpr, element: ClosedJaxpr, program: Program, outer: tuple[int, ...]) -> bool:
    """Does a function on slices do on every number what ``element``, whose Program this is, does?"""
    lane = lower_elementwise(hoist(whole)[1].jaxpr, outer)
    return lane is not None and same_program(lane, program) and _captures_alike(whole, element)


def _captures_alike(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Are the captured arrays of two Programs, which know them by number, the same?"""
    if not one.consts and not other.consts and not hoist(one)[1].consts and not hoist(other)[1].consts:
        return True
    made = []
    for closed in (one, other):
        outside = jax.make_jaxpr(hoist(closed)[0])(*closed.consts)
        made.append((str(outside.jaxpr), [*closed.consts, *outside.consts]))
    (text, arrays), (other_text, other_arrays) = made
    return text == other_text and len(arrays) == len(other_arrays) and all(map(_one_array, arrays, other_arrays))


def _one_array(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _repeated(program: Program, counts: Sequence[int], lanes: int) -> Program:
    """The program on so many lanes, leaves one after the other as in memory."""
    ends = [0, *itertools.accumulate(counts)]
    b = Builder([t for first, last in itertools.pairwise(ends) for t in program.params[first:last] * lanes])
    rows = [b.inline(program, [b.arg(k) for k in mine]) for mine in places_of(counts, lanes)]
    results = counts if sum(counts) == len(program.results) else counts[: len(counts) // 2]
    return b.finish(scattered(places_of(results, lanes), rows))


def _map_on_elements(call: Ordered, map: Any) -> bool:
    """f, on elements; False where map is not one of these. Raises Unsupported where it cannot be compiled."""
    slices, lanes = call.elements.slices(), call.lanes
    inside = [s[lanes:] for s, _ in slices]
    if any(s and p for s, p in zip(inside, call.elements.is_position, strict=True)):
        return False  # a position for each number of an element: kernels have one
    avals = [element_aval(s, d, call.axes) for s, (_, d) in zip(inside, slices, strict=True)]
    outer = call.values.shapes[0][:lanes]
    if map is None:
        elements = tuple((s, d) for s, (_, d) in zip(inside, slices, strict=True))
        call.f, call.f_captured = passing(elements, call.operator is not None and call.operator.large), []
        return True
    if any(s[:lanes] != outer for s, _ in slices):
        return False
    assert call.mapped is not None
    flat, _ = flat_map(call.elements, map, call.axes)
    wanted = [s[lanes:] for s in call.values.shapes]
    closed = call.mapped
    if outer:
        try:
            closed = jax.make_jaxpr(flat)(*avals)
        except Exception:  # of map on other shapes than the call's
            return False
    if [tuple(o.shape) for o in closed.out_avals] != wanted:
        return False
    if outer and all(s == () for s in (*inside, *wanted)):
        if not _on_numbers(call.mapped, closed, to_program(hoist(closed)[1].jaxpr), outer):
            return False
    elif outer:
        return False
    pre, inner = hoist(closed)
    large = call.operator is not None and call.operator.large
    call.f = make_large(inner.jaxpr) if large else make_traced(inner.jaxpr)
    call.f_captured = list(pre(*closed.consts))
    return True
