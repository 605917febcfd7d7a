"""An operator: a traced function of two elements, with its identity, what it is recognised as, and its better forms."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from ..ir.program import Builder, Program, dtype_name, from_bits, numpy_dtype, to_bits
from ..tracing.jaxprs import capturing, depending_on, structs, variables
from ..tracing.lanewise import one_lane
from ..tracing.lower import Unsupported, hoist, lower_elementwise, to_program
from ..tracing.varying import axes_of, element_aval, vary
from . import classify
from .representation import Representation, represent
from .traced import NO_PROGRAM, Traced, make_large, make_traced, slots_of

MAX_STRUCT_SLOTS = 32
"""A bin of more scalars than this is an array: its operator has to be vectorised (``map ⊕``) or run on plain XLA."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator on one bin, ready for a kernel: all of a bin's leaves, or one array-valued leaf, lane by lane.

    ``program`` maps two structs of slots to one; with ``lanes > 1`` the slots are those of one lane.
    """

    traced: Traced  # (a's leaves, b's leaves) -> leaves, on whole bins
    program: Program
    lanes: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]
    name: str | None
    identity: tuple[int, ...] | None  # bits, by slot
    start: Program | None = None  # () -> an identity that is known when the call runs, by slot, of arrays that it captures

    def __repr__(self) -> str:
        return self.name or repr(self.traced)

    @property
    def large(self) -> bool:
        """Are its elements arrays in memory, not scalars?"""
        return self.traced.arrays is not None

    @property
    def leaf_slots(self) -> tuple[tuple[str, int], ...]:
        """Dtype of a scalar and number of slots (in a lane), by leaf."""
        return tuple((scalar_name(d), slots_of(s, d) // self.lanes) for s, d in zip(self.shapes, self.dtypes, strict=True))

    def represent(
        self, position: int | None = None, keyed: bool = False, unfinished: bool = False, in_order: bool = False
    ) -> Representation:
        """What working copies hold. ``position``: the slot that is the element's own position; ``keyed``: floats may be integers
        of the same order; ``unfinished``: no copy is a result yet; ``in_order``: none begins with what lies in a result."""
        dtypes = tuple(t for t, n in self.leaf_slots for _ in range(n))
        if self.large:
            return Representation(dtypes, self.program, self.identity)
        return represent(self.program, dtypes, self.identity, position, keyed, unfinished, in_order)

    @functools.cached_property
    def leaf_names(self) -> tuple[str | None, ...]:
        """For each leaf the name of what the operator does to it alone, where it does and that has one."""
        if len(self.shapes) == 1:
            return (self.name,)
        alone = {group.leaves: group.name for group in self.derivative_groups}
        return tuple(alone.get((k,)) for k in range(len(self.shapes)))

    @functools.cached_property
    def derivative_groups(self) -> tuple[DerivativeGroup, ...]:
        """Leaves that depend on each other only, with the rule that serves them."""
        if self.large:
            return (DerivativeGroup(tuple(range(len(self.shapes))), "general", None),)
        if self.lanes > 1:
            return (_group((0,), [self.program], self.traced),)
        owner = [k for k, (_, n) in enumerate(self.leaf_slots) for _ in range(n)]
        groups: list[tuple[set[int], list[Program]]] = []
        for slots in classify.parts(self.program):
            leaves, programs = {owner[s] for s in slots}, [classify.restrict(self.program, slots)]
            for other in [g for g in groups if g[0] & leaves]:
                groups.remove(other)
                leaves |= other[0]
                programs += other[1]
            groups.append((leaves, programs))
        return tuple(_group(tuple(sorted(leaves)), programs, self.traced) for leaves, programs in groups)

    @property
    def compares(self) -> bool:
        """Do its derivatives compare values with what they were combined to?"""
        return any(g.kind in ("select", "arg") for g in self.derivative_groups)


@dataclasses.dataclass(frozen=True)
class DerivativeGroup:
    """Leaves of an operator that depend on each other only; ``kind`` is ``classify.derivative_class``'s, ``name`` the
    operator's."""

    leaves: tuple[int, ...]
    kind: str
    name: str | None


def _group(leaves: tuple[int, ...], programs: Sequence[Program], traced: Traced) -> DerivativeGroup:
    if traced.has_own_rules:  # only the general rule goes through them
        return DerivativeGroup(leaves, "general", None)
    kinds = {(classify.derivative_class(p), classify.recognise(p)) for p in programs}
    kind, name = kinds.pop() if len(kinds) == 1 else ("general", None)
    # jax.numpy's own functions of class "result" (logaddexp ...) carry rules that say the same
    if (len(leaves) > 1 and kind != "arg") or (traced.has_rules and kind != "result"):
        kind = "general"
    return DerivativeGroup(leaves, kind, name)


def scalar_name(dtype: Any) -> str:
    """The Program's dtype of a leaf's scalars: of its parts, if it is complex. KeyError if kernels do not know it."""
    d = np.dtype(dtype)
    return {"complex64": "f32", "complex128": "f64"}.get(d.name) or dtype_name(d)


def check_dtypes(dtypes: Iterable[Any]) -> None:
    """Raises Unsupported where kernels do not know one."""
    for d in dtypes:
        try:
            scalar_name(d)
        except KeyError:
            raise Unsupported("convert_element_type", f"kernels have no arithmetic on {np.dtype(d).name}") from None


def leaf_bits(value: Any, shape: tuple[int, ...], dtype: Any) -> list[int]:
    """The bits of each slot of a leaf."""
    flat = np.broadcast_to(np.asarray(value), shape).astype(dtype).reshape(-1)
    parts = np.stack([flat.real, flat.imag], -1).reshape(-1) if flat.dtype.kind == "c" else flat
    name = scalar_name(dtype)
    return [to_bits(x, name) for x in parts]


def identity_leaves(op: Operator) -> list[np.ndarray]:
    """The identity as arrays of the leaves' shapes (one lane's, broadcast, where the operator is vectorised)."""
    assert op.identity is not None
    out, at = [], 0
    for (name, n), shape, dtype in zip(op.leaf_slots, op.shapes, op.dtypes, strict=True):
        scalars = np.array([from_bits(b, name) for b in op.identity[at : at + n]], numpy_dtype(name))
        at += n
        if np.dtype(dtype).kind == "c":
            scalars = scalars[0::2] + 1j * scalars[1::2]
        out.append(np.broadcast_to(scalars.reshape(shape if op.lanes == 1 else ()), shape).astype(dtype))
    return out


def make_operators(
    closed: ClosedJaxpr, identity: list[np.ndarray] | None, rows: bool = False, most: int = MAX_STRUCT_SLOTS
) -> tuple[list[tuple[tuple[int, ...], Operator, list[Any]]], bool]:
    """The operator of one histogram, in as many parts as kernels need: (leaves, operator, captured arrays) for each. ``rows``:
    one array-valued leaf is updated lane by lane where that can be, however short it is. ``most``: scalars of a struct.

    Second: does every part have an identity? Raises Unsupported where plain XLA has to do.
    """
    n = len(closed.out_avals)
    shapes = tuple(tuple(a.shape) for a in closed.out_avals)
    dtypes = tuple(np.dtype(a.dtype) for a in closed.out_avals)
    check_dtypes(dtypes)
    slots = sum(slots_of(s, d) for s, d in zip(shapes, dtypes, strict=True))
    if rows and n == 1 and np.prod(shapes[0], dtype=np.int64) > 1 and slots <= MAX_STRUCT_SLOTS:
        try:
            return _lane_by_lane(closed, shapes, dtypes, identity)
        except Unsupported:
            pass  # as a struct
    if slots <= most:
        pre, inner = hoist(closed)
        captured = list(pre(*closed.consts))
        program = to_program(inner.jaxpr)
        op = _operator(make_traced(inner.jaxpr, program), program, 1, shapes, dtypes, identity)
        return [(tuple(range(n)), op, captured)], op.identity is not None
    return _lane_by_lane(closed, shapes, dtypes, identity)


def started(op: Operator, captured: Sequence[Any], identity: Sequence[Any]) -> tuple[Operator, list[Any]]:
    """An operator without identity, with one that is known when the call runs: an array for each leaf, which it captures."""
    if op.identity is not None or op.lanes > 1 or op.large:
        return op, list(captured)
    n, rows = len(captured), []
    for x, shape, dtype in zip(identity, op.shapes, op.dtypes, strict=True):
        flat = jax.lax.stop_gradient(jnp.broadcast_to(jnp.asarray(x, dtype), shape).reshape(-1))
        rows.append(jnp.stack([flat.real, flat.imag], -1).reshape(-1) if dtype.kind == "c" else flat)

    def flat_op(*xs: Any) -> list[Any]:
        return op.traced(xs[:n], *xs[n + len(rows) :])

    avals = [*op.traced.jaxpr.constvars, *rows, *op.traced.jaxpr.invars]
    jaxpr = jax.make_jaxpr(flat_op)(*structs(avals)).jaxpr
    m = n + len(rows)
    b = Builder(())
    slots = [b.emit("load", t, b.const(s, "s32"), attr=n + k) for k, (t, count) in enumerate(op.leaf_slots) for s in range(count)]
    traced = make_traced(capturing(jaxpr, m), op.program)
    return dataclasses.replace(op, traced=traced, start=b.finish(slots)), [*captured, *rows]


def narrowed(op: Operator, shape: tuple[int, ...]) -> Operator:
    """An operator that is vectorised over its lanes, and captures nothing, on an array of them of this shape."""
    if shape == op.shapes[0]:
        return op
    fn = jaxpr_as_fun(one_lane(ClosedJaxpr(op.traced.jaxpr, []), op.shapes[0]))
    for _ in shape:
        fn = jax.vmap(fn)
    jaxpr = jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, d) for d in op.dtypes * 2)).jaxpr
    return dataclasses.replace(op, traced=make_traced(jaxpr, op.program), lanes=math.prod(shape), shapes=(shape,))


def large_operator(closed: ClosedJaxpr) -> tuple[Operator, list[Any]]:
    """The operator on elements of any number of scalars, and the arrays that it captures. Its identity is not known."""
    pre, inner = hoist(closed)
    shapes, dtypes = [tuple(a.shape) for a in closed.out_avals], [np.dtype(a.dtype) for a in closed.out_avals]
    return of_arrays(inner.jaxpr, shapes, dtypes), list(pre(*closed.consts))


def of_arrays(jaxpr: Jaxpr, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype]) -> Operator:
    return Operator(make_large(jaxpr), NO_PROGRAM, 1, tuple(shapes), tuple(dtypes), None, None)


def _lane_by_lane(
    closed: ClosedJaxpr, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[np.dtype, ...], identity: list[np.ndarray] | None
) -> tuple[list[tuple[tuple[int, ...], Operator, list[Any]]], bool]:
    """:func:`make_operators` where each leaf is a part."""
    n = len(shapes)
    out: list[tuple[tuple[int, ...], Operator, list[Any]]] = []
    for k in range(n):
        one = closed if n == 1 else _restricted(closed, k, n)
        pre, inner = hoist(one)
        lane = lower_elementwise(inner.jaxpr, shapes[k])
        flat = None if identity is None else np.broadcast_to(identity[k], shapes[k]).reshape(-1)
        if lane is None:
            raise Unsupported("operator", f"an operator on bins of shape {shapes[k]} that is not elementwise")
        if flat is not None and not (_bits_of(flat) == _bits_of(flat[:1])).all():
            raise Unsupported("operator", "an identity that differs from lane to lane of an array-valued bin")
        lanes = int(np.prod(shapes[k], dtype=np.int64))
        given = None if flat is None else [flat[:1].reshape(())]
        op = _operator(make_traced(inner.jaxpr, lane), lane, lanes, shapes[k : k + 1], dtypes[k : k + 1], given)
        out.append(((k,), op, list(pre(*one.consts))))
    return out, all(op.identity is not None for _, op, _ in out)


def _bits_of(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8).reshape(a.size, -1)


def _operator(
    traced: Traced,
    program: Program,
    lanes: int,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[np.dtype, ...],
    identity: list[np.ndarray] | None,
) -> Operator:
    name = classify.recognise(program)
    if identity is None:
        bits = classify.identity_of(program, name)
    else:
        one = [() if lanes > 1 else s for s in shapes]
        bits = tuple(b for v, s, d in zip(identity, one, dtypes, strict=True) for b in leaf_bits(v, s, d))
    # no name where a user's rule says another derivative than that has
    return Operator(traced, program, lanes, shapes, dtypes, None if traced.has_own_rules else name, bits)


def _restricted(closed: ClosedJaxpr, k: int, n: int) -> ClosedJaxpr:
    """Leaf k of an operator on n leaves as an operator of its own; Unsupported if it looks at another leaf."""
    jaxpr = closed.jaxpr
    mine = {jaxpr.invars[k], jaxpr.invars[n + k]}
    foreign = depending_on(jaxpr, (v for v in jaxpr.invars if v not in mine))
    if not foreign.isdisjoint(variables(jaxpr.outvars[k : k + 1])):
        raise Unsupported("operator", "leaves of array-valued bins that depend on each other")

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        args = [vary(jnp.zeros(v.aval.shape, v.aval.dtype), axes_of([v.aval])) for v in jaxpr.invars]
        args[k], args[n + k] = a, b
        return jaxpr_as_fun(closed)(*args)[k]

    aval = jaxpr.invars[k].aval
    return jax.make_jaxpr(one)(*(element_aval(aval.shape, aval.dtype, axes_of([aval])),) * 2)


# --- ready-made ones ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def passing(elements: tuple[tuple[tuple[int, ...], Any], ...], large: bool = False) -> Traced:
    """The f that returns its arguments, elements of these shapes and dtypes, as they are."""
    jaxpr = jax.make_jaxpr(lambda *xs: list(xs))(*(jax.ShapeDtypeStruct(s, d) for s, d in elements)).jaxpr
    return make_large(jaxpr) if large else make_traced(jaxpr)


@functools.lru_cache(maxsize=512)
def simple_operator(op: Callable[..., Any], shape: tuple[int, ...], dtype: Any) -> Operator:
    """A function of ``jax.numpy`` as the operator on arrays of this shape, number by number."""
    one = jax.ShapeDtypeStruct(shape, dtype)
    ((_, operator, _),), _ = make_operators(jax.make_jaxpr(op)(one, one), None, rows=True)
    return operator


def wide(operator: Operator) -> Operator | None:
    """In f32, of one that combines halves and rounds what comes of all of them; None of any other."""
    known: dict[str | None, Callable[..., Any]] = {"add": jnp.add, "logaddexp": jnp.logaddexp}
    op = known.get(operator.name)
    if op is None or len(operator.shapes) != 1 or not rounds(operator):
        return None
    return simple_operator(op, operator.shapes[0], np.dtype(np.float32))


def rounds(operator: Operator) -> bool:
    """Is what combines of all elements rounded at the end?"""
    return operator.represent(in_order=True).finish is not None


def leaf_operators(operator: Operator, functions: Mapping[str | None, Callable[..., Any]]) -> list[Operator] | None:
    """What the operator does to each leaf by itself, if all of that is done by these ``functions`` (by their names), from the
    identities that they have alone."""
    if operator.identity is None or not all(name in functions for name in operator.leaf_names):
        return None
    leaves = zip(operator.leaf_names, operator.shapes, operator.dtypes, strict=True)
    own = [simple_operator(functions[name], shape, dtype) for name, shape, dtype in leaves]
    starts = zip(identity_leaves(operator), (identity_leaves(op)[0] for op in own), strict=True)
    return own if all(a.tobytes() == b.tobytes() for a, b in starts) else None


def on_lane(operator: Operator) -> Operator:
    """The operator of an array-valued bin on one of its lanes."""
    if operator.lanes == 1:
        return operator
    (shape,), (dtype,) = operator.shapes, operator.dtypes
    whole = operator.traced
    number = jax.ShapeDtypeStruct((), dtype)

    def lane(captured: Sequence[Any], a: Any, b: Any) -> Any:
        return whole(captured, jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape))[0][(0,) * len(shape)]

    captured = structs(whole.jaxpr.constvars)
    jaxpr = jax.make_jaxpr(lane)(captured, number, number).jaxpr
    n = len(captured)
    traced = make_traced(capturing(jaxpr, n), operator.program)
    return dataclasses.replace(operator, traced=traced, lanes=1, shapes=((),))
