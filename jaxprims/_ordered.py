"""What scans and reductions have in common: elements along an axis, an operator on them, both checked and brought into the form
that kernels take.

The operator is given on *slices*: leaves with the axis removed. Kernels want it on *elements*: the part of a slice that it looks
at as a whole, the same for each of the slice's leading ("lane") axes. For ``jnp.add`` on slices of any shape an element is a
scalar; for ``a @ b`` on slices [B, 2, 2] a 2 x 2 matrix.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ._bins import as_array, called, positions
from ._element import takes
from ._histogram import checked_identity
from ._monoid import Monoid, as_monoid
from ._warnings import FallbackWarning, IdentityWarning
from .frontend import classify
from .frontend.lower import Unsupported, hoist, lower_elementwise, to_program
from .frontend.operator import (
    MAX_STRUCT_SLOTS,
    Operator,
    Traced,
    identity_leaves,
    make_operators,
    make_traced,
    scalar_name,
    slots_of,
    trace,
)
from .frontend.program import Builder, Program, same_program
from .frontend.varying import Axes, axes_of, element_aval, vary

PROOF_LANES = 2
"""An operator treats lanes alike if it does so on arrays of so many of them."""


@dataclasses.dataclass
class Elements:
    """Arrays along an axis; or along several, which count as one, row-major. ``given`` leaves out positions."""

    leaves: list[Any]
    tree: Any
    name: str
    axis: Any
    several: bool = False  # may axis be a tuple, or None for all?
    given: list[Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.is_position = [leaf is positions for leaf in self.leaves]
        self.given = [as_array(leaf, self.name) for leaf in self.leaves if leaf is not positions]
        if not self.given:
            raise ValueError(f"{self.name}: at least one array is needed to know the number of elements, got none")
        for x in self.given:
            if x.dtype == jax.dtypes.float0 or jnp.issubdtype(x.dtype, jax.dtypes.extended):
                raise TypeError(f"{self.name} must be numbers, got {x.dtype}")
        axes = [self._axes_of(x) for x in self.given]
        sizes = {tuple(x.shape[a] for a in own) for x, own in zip(self.given, axes, strict=True)}
        if len(sizes) > 1:
            shown = ", ".join(str(x.shape) for x in self.given)
            what = "one shape" if self.axis is None else f"one length along axis {self.axis}"
            raise ValueError(f"{self.name} must have {what}, got shapes {shown}")
        self.n, self.rank = math.prod(sizes.pop()), len(axes[0])
        if not axes[0]:
            self.given, axes = [x[None] for x in self.given], [(0,)]
        if len(set(axes)) > 1:
            self.given = [self.in_front(x, own) for x, own in zip(self.given, axes, strict=True)]
            axes = [(0,)]
        self.axes = axes[0]
        self.position_dtype = np.dtype(np.int32 if not isinstance(self.n, int) or self.n <= 2**31 else np.int64)
        if self.position_dtype == np.int64 and any(self.is_position) and not jax.config.jax_enable_x64:
            raise ValueError(f"{self.name}: positions pass 2^31 here: jax_enable_x64 is needed")

    def _axes_of(self, x: Any) -> tuple[int, ...]:
        if not self.several:
            return (normal_axis(self.axis, x.ndim, self.name),)
        return tuple(range(x.ndim)) if self.axis is None else normal_axes(self.axis, x.ndim, self.name)

    @property
    def at(self) -> int:
        """Axes before the (last) axis that remain."""
        return self.axes[-1] + 1 - len(self.axes)

    def slices(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of every leaf's slice; a position has the others' shape, if they have one."""
        shapes = [tuple(d for k, d in enumerate(x.shape) if k not in self.axes) for x in self.given]
        common = shapes[0] if len(set(shapes)) == 1 else ()
        rest = iter(zip(shapes, self.given, strict=True))
        out = []
        for p in self.is_position:
            if p:
                out.append((common, self.position_dtype))
            else:
                shape, x = next(rest)
                out.append((shape, np.dtype(x.dtype)))
        return out

    def as_arguments(self, map: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """map's arguments: the members of a tuple or list one by one, if it takes that many."""
        structured = jax.tree.unflatten(self.tree, leaves)
        return tuple(structured) if type(structured) in (tuple, list) and takes(map, len(structured)) else (structured,)

    def in_front(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The array with these axes as one, the first."""
        moved = jnp.moveaxis(x, axes, range(len(axes)))
        return moved if len(axes) == 1 else moved.reshape(self.n, *moved.shape[len(axes) :])

    def removed(self, ndim: int) -> tuple[int, ...]:
        """Where the axes were, in a result with ``ndim`` axes that is to have them again."""
        if self.axis is None:
            return tuple(range(self.rank))
        named = len(self.axis) if isinstance(self.axis, tuple) else 1
        return normal_axes(self.axis, ndim + named, self.name) if named else ()

    def moved_together(self) -> None:
        """The axes become neighbours, where the last one is."""
        there = tuple(range(self.at, self.at + len(self.axes)))
        self.given = [jnp.moveaxis(x, self.axes, there) for x in self.given]
        self.axes = there

    def moved_to_front(self) -> None:
        """The axis becomes the first one."""
        self.given = [self.in_front(x, self.axes) for x in self.given]
        self.axes = (0,)

    def on_slices(self, axes: Axes) -> list[Any]:
        """Every leaf, positions too, with the axis first."""
        rest = iter(self.given)
        out = []
        for p, (shape, dtype) in zip(self.is_position, self.slices(), strict=True):
            if p:
                out.append(vary(jax.lax.broadcasted_iota(dtype, (self.n, *shape), 0), axes))
            else:
                out.append(self.in_front(next(rest), self.axes))
        return out


def normal_axes(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """An axis or a tuple of them, ascending."""
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(sorted(normal_axis(a, ndim, name) for a in given))
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis {axis} names an axis twice for {name} with {ndim} axes")
    return axes


def normal_axis(axis: Any, ndim: int, name: str) -> int:
    if isinstance(axis, (bool, np.bool_)) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis must be an integer, got {axis!r}")
    a = axis.__index__()
    if ndim == 0:
        raise ValueError(f"{name}: every leaf needs an axis to go along, got a scalar")
    if not -ndim <= a < ndim:
        raise ValueError(f"axis {a} is out of range for {name} with {ndim} axes")
    return a % ndim


@dataclasses.dataclass
class Values:
    """What is combined: map's results, or the elements themselves. On slices."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]


@dataclasses.dataclass
class Ordered:
    """A call of the ordered family, checked. ``operator`` is None where plain XLA has to do."""

    elements: Elements
    values: Values
    monoid: Monoid
    closed: ClosedJaxpr  # the operator on slices
    mapped: ClosedJaxpr | None  # map on slices
    axes: Axes
    identity: list[Any] | None  # given, or the operator's own; on slices
    lanes: int = 0  # leading axes of a slice that are lanes
    f: Traced | None = None
    f_captured: list[Any] = dataclasses.field(default_factory=list)
    operator: Operator | None = None
    captured: list[Any] = dataclasses.field(default_factory=list)

    @property
    def positions(self) -> tuple[np.dtype | None, ...]:
        return tuple(self.elements.position_dtype if p else None for p in self.elements.is_position)

    @property
    def rank(self) -> int:
        """Batch axes: those before the scanned one."""
        return self.elements.at

    @property
    def inner_rank(self) -> int:
        return self.lanes - self.elements.at

    @property
    def own_identity(self) -> bool:
        """Do kernels hold the identity to be used? They cannot if it is only known at run time or differs from lane to lane."""
        if self.operator is None or self.operator.identity is None:
            return False
        given = self.identity or ()
        if any(isinstance(i, jax.core.Tracer) for i in given):
            return False
        return all(bool(np.all(a == b)) for a, b in zip(given, identity_leaves(self.operator), strict=False))

    def start_leaves(self, init: Any, name: str = "init") -> list[Any]:
        """A value like the operator's, given by the user, as arrays of the slices' shapes."""
        leaves, tree = jax.tree.flatten(init)
        if tree != self.values.tree:
            raise TypeError(f"{name} must have the values' structure, {self.values.tree}, got {tree}")
        out = []
        for leaf, shape, dtype in zip(leaves, self.values.shapes, self.values.dtypes, strict=True):
            x = as_array(leaf, name)
            if not jax.typeof(x).weak_type and x.dtype != dtype:
                raise TypeError(f"{name} must have the values' dtype, {dtype}, got {x.dtype}")
            if jnp.result_type(x.dtype, dtype) != dtype and not np.can_cast(x.dtype, dtype, "same_kind"):
                raise TypeError(f"{name} must have the values' dtype, {dtype}, got {x.dtype}")
            try:
                out.append(vary(jnp.broadcast_to(x.astype(dtype), shape), self.axes))
            except ValueError:
                raise ValueError(f"{name} must broadcast to a slice's shape {shape}, got {x.shape}") from None
        return out

    def plain_operator(self) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The operator for scan_xla: on many pairs of slices."""
        fn = jax.vmap(jaxpr_as_fun(self.closed))
        return lambda a, b: list(fn(*a, *b))

    def plain_values(self) -> list[Any]:
        """What is combined, with the axis first."""
        full = self.elements.on_slices(self.axes)
        return list(full if self.mapped is None else jax.vmap(jaxpr_as_fun(self.mapped))(*full))

    def restored(self, leaves: Sequence[Any], at: int) -> Any:
        """Results with the axis at ``at`` as a pytree, the axis where it was asked for."""
        axis = self.elements.axis
        out = [jnp.moveaxis(x, at, normal_axis(axis, x.ndim, "xs")) for x in leaves]
        return jax.tree.unflatten(self.values.tree, out)


def ordered(xs: Any, op: Any, axis: Any, identity: Any, map: Any, name: str = "xs", several: bool = False) -> Ordered:
    """Checks the arguments and finds the form for kernels. ``several``: axis may be a tuple, or None for all."""
    monoid = as_monoid(op, identity)
    if map is not None and not callable(map):
        raise TypeError(f"map must be a function of one element, got {map!r}")
    leaves, tree = jax.tree.flatten(xs, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError(f"{name} must hold at least one array, got none")
    elements = Elements(leaves, tree, name, axis, several)
    axes = axes_of(x for x in [*elements.given, *jax.tree.leaves(monoid.identity)] if isinstance(x, jax.Array))
    while True:
        call = _traced(elements, monoid, map, axes)
        seen = axes | axes_of([*call.closed.consts, *(call.mapped.consts if call.mapped is not None else ())])
        if seen == axes:
            break
        axes = seen  # inside shard_map, and a captured array varies over more than the operands: once more, for all of them
    elements.given = [vary(x, axes) for x in elements.given]
    if any(0 in s for s in call.values.shapes):
        return call  # nothing to combine
    try:
        _find_form(call, map)
    except Unsupported as e:
        call.operator = None
        warnings.warn(f"op cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning, stacklevel=4)
    return call


def _traced(elements: Elements, monoid: Monoid, map: Any, axes: Axes) -> Ordered:
    avals = [element_aval(s, d, axes) for s, d in elements.slices()]
    mapped, values = None, Values(elements.tree, tuple(a.shape for a in avals), tuple(np.dtype(a.dtype) for a in avals))
    if map is not None:
        flat, found = _flat_map(elements, map, axes)
        mapped = jax.make_jaxpr(flat)(*avals)
        outs = mapped.out_avals
        values = Values(found[0], tuple(tuple(a.shape) for a in outs), tuple(np.dtype(a.dtype) for a in outs))
    closed = _trace_operator(monoid, values, values.shapes, axes)
    for s, d, o in zip(values.shapes, values.dtypes, closed.out_avals, strict=True):
        if tuple(o.shape) != s or np.dtype(o.dtype) != d:
            raise TypeError(f"op must keep shape and dtype: on {d}{list(s)} it returned {o.dtype}{list(o.shape)}")
    return Ordered(elements, values, monoid, closed, mapped, axes, None)


def _flat_map(elements: Elements, map: Callable[..., Any], axes: Axes) -> tuple[Callable[..., list[Any]], list[Any]]:
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        got, tree = jax.tree.flatten(called("map", map, *elements.as_arguments(map, leaves)), is_leaf=lambda x: x is None)
        if not got:
            raise TypeError("map must return at least one number, got none")
        found[:] = [tree]
        return [vary(_number(x), axes) for x in got]

    return flat, found


def _number(x: Any) -> Any:
    a = as_array(x, "map's result")
    if a.dtype == jax.dtypes.float0 or jnp.issubdtype(a.dtype, jax.dtypes.extended):
        raise TypeError(f"map's result must be numbers, got {a.dtype}")
    return a


def _trace_operator(monoid: Monoid, values: Values, shapes: Sequence[tuple[int, ...]], axes: Axes) -> ClosedJaxpr:
    avals = [element_aval(s, d, axes) for s, d in zip(shapes, values.dtypes, strict=True)]
    n = len(avals)

    def flat(*leaves: Any) -> list[Any]:
        a, b = jax.tree.unflatten(values.tree, leaves[:n]), jax.tree.unflatten(values.tree, leaves[n:])
        got, tree = called("op", lambda: jax.tree.flatten(monoid.op(a, b), is_leaf=lambda x: x is None))
        if tree != values.tree:
            raise TypeError(f"op must return the structure of its arguments, {values.tree}, got {tree}")
        return [vary(as_array(x, "op's result"), axes) for x in got]

    return trace(monoid.op, [*avals, *avals], ("op", values.tree), flat)


# --- from slices to elements --------------------------------------------------------------------------------------------------


def _find_form(call: Ordered, map: Any) -> None:
    """Operator and map on elements. Raises Unsupported where there is no kernel for the operator."""
    for d in (*call.values.dtypes, *(d for _, d in call.elements.slices())):
        try:
            scalar_name(d)
        except KeyError:
            raise Unsupported("convert_element_type", f"kernels have no arithmetic on {d.name}") from None
    given, concrete = checked_identity(call.monoid, call.values)
    at = call.elements.at
    shapes = call.values.shapes
    most = min(map_len(shapes))
    failure: Unsupported | None = None
    for lanes in [k for k in range(most, -1, -1) if len({s[:k] for s in shapes}) == 1]:
        if lanes < most and not any(shapes):
            continue
        try:
            operator, captured = _operator_on_elements(call, lanes, given if concrete else None)
        except Unsupported as e:
            failure = e
            continue
        if lanes < at:
            call.elements.moved_to_front()
        call.lanes, call.operator, call.captured = lanes, operator, captured
        break
    else:
        assert failure is not None
        raise failure
    if given is not None and concrete and not call.captured and call.operator.identity is not None:
        wrong = classify.wrong_identity(call.operator.program, call.operator.identity)
        if wrong is not None:
            warnings.warn(f"identity is not op's neutral element: {wrong}", IdentityWarning, stacklevel=5)
    call.identity = given
    if not _map_on_elements(call, map):
        # map by XLA: its results are the elements
        values = [jnp.moveaxis(v, 0, call.elements.at) for v in call.plain_values()]
        before = call.elements
        call.elements = Elements(values, call.values.tree, before.name, before.at)
        call.elements.axis, call.elements.rank = before.axis, before.rank
        call.mapped = None
        _map_on_elements(call, None)


def map_len(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [len(s) for s in shapes]


def _operator_on_elements(call: Ordered, lanes: int, identity: list[Any] | None) -> tuple[Operator, list[Any]]:
    shapes, dtypes = call.values.shapes, call.values.dtypes
    inside = [s[lanes:] for s in shapes]
    slots = sum(slots_of(s, d) for s, d in zip(inside, dtypes, strict=True))
    if slots > MAX_STRUCT_SLOTS:
        raise Unsupported("operator", f"an element of {slots} scalars; {MAX_STRUCT_SLOTS} is the most")
    if slots == 0:
        raise Unsupported("operator", "elements without scalars")
    outer = shapes[0][:lanes]
    closed = call.closed
    if outer:
        try:
            closed = _trace_operator(call.monoid, call.values, inside, call.axes)
        except (TypeError, ValueError):
            raise Unsupported("operator", "that treats the axes of a slice differently") from None
        if [tuple(o.shape) for o in closed.out_avals] != inside:
            raise Unsupported("operator", "that treats the axes of a slice differently")

        def smaller() -> ClosedJaxpr:
            small = (PROOF_LANES,) * len(outer)
            return _trace_operator(call.monoid, call.values, [(*small, *s) for s in inside], call.axes)

        _prove(closed, call.closed, outer, smaller, inside * 2, [*dtypes, *dtypes])
    uniform = None
    if identity is not None:
        rows = [np.broadcast_to(v, s).reshape(-1, *s[lanes:]) for v, s in zip(identity, shapes, strict=True)]
        if all(_all_alike(r) for r in rows):  # else it is passed as a start value
            uniform = [r[0] if len(r) else np.zeros(r.shape[1:], r.dtype) for r in rows]
    ((_, operator, captured),), _ = make_operators(closed, uniform)
    return operator, captured


def _all_alike(rows: np.ndarray) -> bool:
    """Have all rows the same bits?"""
    return len({row.tobytes() for row in rows}) <= 1


def _prove(
    element: ClosedJaxpr,
    whole: ClosedJaxpr,
    outer: tuple[int, ...],
    smaller: Callable[[], ClosedJaxpr],
    inside: Sequence[tuple[int, ...]],
    dtypes: Sequence[Any],
) -> None:
    """Raises Unsupported unless a function on slices does on every lane what ``element`` does."""
    _, inner = hoist(element)
    program = to_program(inner.jaxpr)
    if all(s == () for s in inside):
        lane = lower_elementwise(hoist(whole)[1].jaxpr, outer)
        if lane is None or not same_program(lane, program):
            raise Unsupported("operator", "that is not elementwise on its slices")
        return
    small = to_program(hoist(smaller())[1].jaxpr)
    if not same_program(small, _repeated(program, [slots_of(s, d) for s, d in zip(inside, dtypes, strict=True)], len(outer))):
        raise Unsupported("operator", "that treats the axes of a slice differently")


def _repeated(program: Program, counts: Sequence[int], axes: int) -> Program:
    """The program on PROOF_LANES lanes along each of so many axes, leaves one after the other as in memory."""
    lanes = PROOF_LANES**axes
    params: list[str] = []
    places: list[list[int]] = [[] for _ in range(lanes)]
    at = 0
    for n in counts:
        for lane in range(lanes):
            places[lane] += range(len(params) + lane * n, len(params) + (lane + 1) * n)
        params += list(program.params[at : at + n]) * lanes
        at += n
    b = Builder(params)
    rows = [b.inline(program, [b.arg(k) for k in mine]) for mine in places]
    results: list[int] = []
    at = 0
    for n in counts if sum(counts) == len(program.results) else counts[: len(counts) // 2]:
        for row in rows:
            results += row[at : at + n]
        at += n
    return b.finish(results)


@functools.lru_cache(maxsize=512)
def pass_on(avals: tuple[Any, ...]) -> Traced:
    """The function that returns its arguments."""
    jaxpr = jax.make_jaxpr(lambda *xs: list(xs))(*avals).jaxpr
    return make_traced(jaxpr, to_program(jaxpr))


def _map_on_elements(call: Ordered, map: Any) -> bool:
    """f, on elements; False where map cannot be compiled, or not lane by lane."""
    slices, lanes = call.elements.slices(), call.lanes
    inside = [s[lanes:] for s, _ in slices]
    avals = [element_aval(s, d, call.axes) for s, (_, d) in zip(inside, slices, strict=True)]
    outer = call.values.shapes[0][:lanes]
    if map is None:
        call.f, call.f_captured = pass_on(tuple(avals)), []
        return True
    if any(s[:lanes] != outer for s, _ in slices):
        return False
    assert call.mapped is not None
    flat, _ = _flat_map(call.elements, map, call.axes)
    wanted = [s[lanes:] for s in call.values.shapes]
    try:
        closed = jax.make_jaxpr(flat)(*avals) if outer else call.mapped
        if [tuple(o.shape) for o in closed.out_avals] != wanted:
            return False
        if outer and all(s == () for s in (*inside, *wanted)):
            lane = lower_elementwise(hoist(call.mapped)[1].jaxpr, outer)
            if lane is None or not same_program(lane, to_program(hoist(closed)[1].jaxpr)):
                return False
        elif outer:
            return False
        pre, inner = hoist(closed)
        call.f = make_traced(inner.jaxpr, to_program(inner.jaxpr))
        call.f_captured = list(pre(*closed.consts))
    except Unsupported as e:
        warnings.warn(f"map cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning, stacklevel=6)
        return False
    except (TypeError, ValueError):
        if not outer:
            raise
        return False
    return True
