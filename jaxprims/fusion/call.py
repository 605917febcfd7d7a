"""``fused_p``: a whole function as a jax primitive, so that derivatives and batches are taken of the function as it was written,
and fused again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr, dce_rules

from ..arguments.checks import is_too_wide
from ..primitives.tangents import is_inexact, replaced, taylor_by
from ..targets.operations import EACH
from ..tracing.jaxprs import depending_on, equations_in, interpret, opened, run_equation, with_arguments
from ..tracing.varying import is_whole
from .bodies import with_fused_bodies
from .by_rows import reduced_by_rows
from .drawn import drawn_by_position
from .extremes import found_by_value
from .graph import Graph, flat_graph
from .intervals import Interval, interval, intervals
from .invariants import before_loop
from .linearize import divided
from .one_hots import by_index
from .picks import added_by_place, picked_first
from .positions import of_positions
from .recurrences import as_recurrence
from .rewrite import Rewritten, rewritten
from .searches import by_place
from .simplified import simplified
from .stencils.steps import as_steps
from .sums import added_in_turn
from .trees import scanned_in_order, with_rule
from .unflattened import unflattened

fused_p = Primitive("fused")
fused_p.multiple_results = True


class Fused:
    """A function of arrays, traced; what became of it; and the functions that transformations make of it, each made once.

    ``named``: the primitive's parameter that stands for it, as long as somebody needs that. ``with_rules``: derivatives will be
    taken of what became of it, and functions with rules of their own for them stay calls. ``in_loop``: it is a loop's body.
    """

    def __init__(self, closed: ClosedJaxpr, with_rules: bool = False, in_loop: bool = False):
        self.closed, self.with_rules, self.in_loop = closed, with_rules, in_loop
        self.named: weakref.ref[ClosedJaxpr] | None = None
        self.made: dict[Any, Any] = {}
        self.inside: list[str] = []  # what became of loops and branches
        self.changed = False  # are any of them other than they were written?
        self.only_forward = ""  # why it has no transpose

    @property
    def function(self) -> Callable[..., list[Any]]:
        """As it was written."""
        return jaxpr_as_fun(self.closed)

    @functools.cached_property
    def derived(self) -> Callable[..., list[Any]]:
        """What derivatives are taken of: with scans that have rules for them in place of those that JAX traces to trees."""
        graph = flat_graph(self.closed, with_rule, with_rules=True)
        return jaxpr_as_fun(scanned_in_order(graph, with_names=False) or ClosedJaxpr(graph.jaxpr, graph.consts))

    @property
    def avals(self) -> list[Any]:
        return [v.aval for v in self.closed.jaxpr.invars]

    @functools.cached_property
    def stays(self) -> bool:
        """Has it to be where it was written: of effects, or of what a primitive cannot hold?"""
        return bool(self.closed.effects) or has_to_stay(self.closed.jaxpr)

    @functools.cached_property
    def needed(self) -> ClosedJaxpr:
        """Without what nobody wants of its loops either: JAX leaves that out of a program, but not of what a primitive holds."""
        if self.with_rules:
            return self.closed
        jaxpr, _ = dce_jaxpr(self.closed.jaxpr, [True] * len(self.closed.jaxpr.outvars), instantiate=True)
        return self.closed if _made(jaxpr) == _made(self.closed.jaxpr) else ClosedJaxpr(jaxpr, self.closed.consts)

    @functools.cached_property
    def graph(self) -> Graph:
        plain = flat_graph(self.needed, with_rules=self.with_rules)
        for earlier in _EARLIER:
            found_earlier = earlier(plain)
            if found_earlier is None:
                continue
            plain = flat_graph(found_earlier, with_rules=self.with_rules)
            if earlier in _SAID:
                self.inside.append(_SAID[earlier])
                self.changed = True
        known = intervals(plain)
        instead = {id(e): self._instead(plain, e, [interval(v, known) for v in e.invars]) for e in plain.eqns}
        placed = added_by_place(plain)
        self.changed |= bool(placed)  # XLA would write zeros, add to some of them, and read all
        found = found_by_value(plain) | placed
        instead |= {id(plain.eqns[k]): instead_of_it for k, instead_of_it in found.items()}
        if any(instead.values()):
            plain = flat_graph(ClosedJaxpr(plain.jaxpr, plain.consts), lambda eqn: instead.get(id(eqn)), self.with_rules)
        return dataclasses.replace(plain, in_loop=self.in_loop)

    def _instead(self, graph: Graph, eqn: JaxprEqn, given: Sequence[Interval]) -> Callable[..., list[Any]] | None:
        """What is done in place of an equation, of whose operands is known between which numbers they lie."""
        found = as_recurrence(graph, eqn, given)
        if found is not None:
            self.inside.append(f"scan of {eqn.params['length']} steps: linear recurrences, each a kernel")
        elif (steps := as_steps(eqn, self.with_rules)) is not None:
            self.inside.append(steps[0])
            found = steps[1]
        else:
            return self._with_bodies(eqn)
        self.changed |= found is not None
        return found

    def _with_bodies(self, eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
        """The equation with its functions fused; a loop behind what no step of it changes."""
        moved = before_loop(eqn, self.with_rules)
        loop = eqn if moved is None else next(e for e in moved.jaxpr.eqns if e.primitive is eqn.primitive)
        found = with_fused_bodies(loop, lambda body: self._body(eqn, body), self.with_rules)
        self.changed |= found is not None
        if moved is None:
            return found

        def equation(e: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
            return found(*operands) if found is not None and e is loop else run_equation(e, operands)

        return lambda *operands: interpret(moved.jaxpr, moved.consts, operands, equation)

    def _body(self, eqn: JaxprEqn, body: ClosedJaxpr) -> ClosedJaxpr | None:
        """What a loop or branch does, fused; None if there is nothing in it to be fused."""
        fused = Fused(body, self.with_rules, in_loop=self.in_loop or eqn.primitive.name in ("scan", "while"))
        found = fused.rewritten.closed
        self.inside += [f"in {eqn.primitive.name}: {line}" for line in fused.in_words()]
        same = not found.consts and [str(a) for a in found.out_avals] == [str(a) for a in body.out_avals]
        return found if same and (fused.rewritten.kernels or fused.rewritten.multiplies or fused.changed) else None

    def in_words(self) -> list[str]:
        """What became of the function: a line for each site."""
        return [*self.rewritten.in_words(), *self.inside]

    @functools.cached_property
    def rewritten(self) -> Rewritten:
        try:
            found = rewritten(self.graph)
            unchanged = not (found.kernels or found.multiplies or self.changed)  # in another order XLA might fuse it worse
            return dataclasses.replace(found, closed=self.needed) if unchanged else found
        except Exception as e:  # no program fails because somebody wanted it faster
            return Rewritten(self.closed, (), (("everything", f"a fault in fuse: {type(e).__name__}: {e}"),))

    @functools.cached_property
    def in_place(self) -> Callable[..., list[Any]]:
        """What became of it, where it stands: with its effects, in their order, and references among its arguments."""
        return Fused(self.closed, with_rules=True).rewritten.as_it_stands

    @functools.cached_property
    def compiled(self) -> Callable[..., list[Any]]:
        return jax.jit(jaxpr_as_fun(self.rewritten.closed))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


_EARLIER = (
    scanned_in_order,
    drawn_by_position,
    simplified,
    of_positions,
    by_index,
    unflattened,
    added_in_turn,
    picked_first,
    by_place,
    reduced_by_rows,
)
"""What is done with a graph, one after the other, before its kernels are planned."""

_SAID = {
    scanned_in_order: "associative_scan: each a scan, not a tree of slices",
    by_index: "one-hot arrays: none is made, but updates and reads by index",
}

_KNOWN: weakref.WeakKeyDictionary[ClosedJaxpr, Fused] = weakref.WeakKeyDictionary()
"""By the primitive's parameter. JAX's caches hold jaxprs weakly, and others not: captured arrays are to live no longer."""


def fused_of(jaxpr: ClosedJaxpr) -> Fused:
    """What a parameter of the primitive stands for."""
    if jaxpr not in _KNOWN:  # somebody has made it of another
        _KNOWN[jaxpr] = Fused(ClosedJaxpr(*opened(jaxpr)))
    return _KNOWN[jaxpr]


def _made(jaxpr: Jaxpr) -> int:
    """How many variables, in calls and loops, too."""
    return sum(len(e.outvars) for e in equations_in(jaxpr))


def has_to_stay(jaxpr: Jaxpr) -> bool:
    """Is there a ``shard_map`` in it, which has to be lowered where it stands? Or a sharding, which ``vmap`` may name another
    axis of, what is done along a named axis, or a primitive that has a backward pass alone?"""
    return any(map(_has_to_stay, equations_in(jaxpr)))


def _has_to_stay(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name in ("shard_map", "sharding_constraint") or "axis_name" in eqn.params:  # which a permutation has no effect for
        return True
    return name == "call_hi_primitive" and not _has_tangents(eqn)


def _has_tangents(eqn: JaxprEqn) -> bool:
    """Has it a linear function of them?"""
    avals = [v.aval for v in eqn.invars]
    moving = [k for k, aval in enumerate(avals) if is_inexact(aval.dtype)]

    def pushed(*xs: Any) -> Any:
        mine = [xs[k] for k in moving]
        _, linear = jax.linearize(lambda *mine: eqn.primitive.bind(*replaced(xs, moving, mine), **eqn.params), *mine)
        return linear(*mine)

    try:
        jax.eval_shape(pushed, *avals)
    except (NotImplementedError, TypeError):  # no rule, or that of a backward pass
        return False
    return True


def has_other_types(jaxpr: Jaxpr) -> bool:
    """Is there anything in it that is more than an array, or a reference to one: a token, or one whose type says where its parts
    are, that they are still to be added, or that it is of ``jax_enable_x64``, which is not set?"""
    made = (*jaxpr.constvars, *jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars))
    types = [getattr(v.aval, "inner_aval", v.aval) for v in made]
    known = (isinstance(t, jax.core.ShapedArray) and is_whole(t) and not is_too_wide(t.dtype) for t in types)
    return not all(known) or any(has_other_types(j) for e in jaxpr.eqns for j in jaxprs_in_params(e.params))


def bind(call: Fused, args: Sequence[Any]) -> list[Any]:
    if call.stays:  # as of a rule that a transformation has come upon
        return call.in_place(*args)
    return list(fused_p.bind(*args, jaxpr=_named(call)))


def _named(call: Fused) -> ClosedJaxpr:
    """The primitive's parameter that stands for it."""
    jaxpr = None if call.named is None else call.named()
    if jaxpr is None:  # of its own: what it stands for must not hold it
        plain, consts = opened(call.closed)
        # newer JAX: not marked as one to be expanded before it is lowered
        jaxpr = ClosedJaxpr(with_arguments(plain, plain.constvars, plain.invars), consts)
        call.named, _KNOWN[jaxpr] = weakref.ref(jaxpr), call
    return jaxpr


@fused_p.def_impl
def _run(*args: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    return list(fused_of(jaxpr).compiled(*args))


@fused_p.def_abstract_eval
def _abstract_eval(*avals: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    return [v.aval for v in jaxpr.jaxpr.outvars]


def _lowered(ctx: Any, *args: Any, jaxpr: ClosedJaxpr) -> Any:
    return mlir.lower_fun(fused_of(jaxpr).rewritten.as_it_stands, multiple_results=True)(ctx, *args)


mlir.register_lowering(fused_p, _lowered, **EACH)
taylor_by(fused_p, lambda *args, jaxpr: list(fused_of(jaxpr).function(*args)))


def _wanted(used: list[bool], *rest: Any) -> tuple[list[bool], JaxprEqn | None]:
    """The equation, which is last, of these results alone, and of the arguments that they need."""
    eqn: JaxprEqn = rest[-1]  # newer JAX: behind which arguments somebody looks at
    if not any(used):
        return [False] * len(eqn.invars), None
    call = fused_of(eqn.params["jaxpr"])

    def make() -> tuple[Fused, list[bool]]:
        jaxpr, needed = dce_jaxpr(call.closed.jaxpr, used)
        fused = Fused(ClosedJaxpr(jaxpr, call.closed.consts), call.with_rules)
        fused.only_forward = call.only_forward
        return fused, needed

    fused, needed = call.once(("wanted", *used), make)
    invars, outvars = itertools.compress(eqn.invars, needed), itertools.compress(eqn.outvars, used)
    return needed, eqn.replace(invars=list(invars), outvars=list(outvars), params={"jaxpr": _named(fused)})


dce_rules[fused_p] = _wanted


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, jaxpr: ClosedJaxpr) -> tuple[list[Any], list[Any]]:
    """What depends on nothing batched is none. The axis has its name, which rules in the function may want."""
    call, types = fused_of(jaxpr), [jax.typeof(x) for x in args]
    plain = call.closed.jaxpr
    if all(d is None for d in dims):
        return bind(call, args), [None] * len(plain.outvars)
    batched = depending_on(plain, [v for v, d in zip(plain.invars, dims, strict=True) if d is not None])
    outs = [0 if not isinstance(v, Literal) and v in batched else None for v in plain.outvars]
    how = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}

    def make() -> Fused:
        function = jax.vmap(call.function, in_axes=tuple(dims), out_axes=outs, **how)
        return Fused(jax.make_jaxpr(function)(*types))

    return bind(call.once(("batch", tuple(dims), *how.values()), make), args), outs


batching.fancy_primitive_batchers[fused_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr) -> tuple[list[Any], list[Any]]:
    """The results with what the tangents' linear function needs, and that function: one fused call each, so that it can be
    transposed."""
    call = fused_of(jaxpr)
    primals = [jnp.asarray(x) for x in primals]
    moving = tuple(k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero))
    outs = [k for k, v in enumerate(call.closed.jaxpr.outvars) if is_inexact(v.aval.dtype)]

    def of_moving(primals: Sequence[Any]) -> Callable[..., list[Any]]:
        return lambda *mine: call.derived(*replaced(primals, moving, mine))

    def both(primals: Sequence[Any], dots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        out, tangents_of = jax.linearize(of_moving(primals), *(primals[k] for k in moving))
        out_dots = tangents_of(*dots)
        return out, [out_dots[k] for k in outs]

    def pushed(primals: Sequence[Any], dots: Sequence[Any]) -> list[Any]:
        _, out_dots = jax.jvp(of_moving(primals), [primals[k] for k in moving], list(dots))
        return [out_dots[k] for k in outs]

    def make() -> tuple[Fused, Fused] | None:
        avals = call.avals
        given = avals, [avals[k] for k in moving]
        try:
            closed = jax.make_jaxpr(both)(*given)
            if Fused(closed).stays:
                return None
        except Exception as e:  # what JAX can only push forward, such as a reduce_window by any function, a rule's SymbolicZero
            linear = Fused(jax.make_jaxpr(pushed)(*given), with_rules=True)
            linear.only_forward = str(e)
            return call, linear
        forward, linear = divided(flat_graph(closed, with_rules=True), len(avals), len(call.closed.jaxpr.outvars))
        return Fused(forward), Fused(linear)

    dots, made = [tangents[k] for k in moving], call.once(("jvp", moving), make)
    if made is None:  # a rule with effects, which stay where they are
        out, out_dots = jax.jvp(lambda *mine: call.in_place(*replaced(primals, moving, mine)), [primals[k] for k in moving], dots)
        found = {k: out_dots[k] for k in outs}
    else:
        forward, linear = made
        results = bind(forward, primals)
        count = len(call.closed.jaxpr.outvars)
        out, residuals = results[:count], results[count:]
        found = dict(zip(outs, bind(linear, [*primals, *residuals, *dots]), strict=True))
    return out, [found[k] if k in found else ad.Zero(jax.typeof(x).to_tangent_aval()) for k, x in enumerate(out)]


ad.primitive_jvps[fused_p] = _jvp


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    call = fused_of(jaxpr)
    if call.only_forward:
        raise ValueError(call.only_forward)
    linear = tuple(k for k, x in enumerate(args) if ad.is_undefined_primal(x))
    given = tuple(k for k in range(len(args)) if k not in linear)
    moving = tuple(k for k, c in enumerate(cotangents) if not isinstance(c, ad.Zero))
    avals, outs = call.avals, [v.aval for v in call.closed.jaxpr.outvars]

    def transposed(known: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        def function(*xs: Any) -> list[Any]:
            every = [*known, *xs]
            order = (*given, *linear)
            results = call.function(*(every[order.index(k)] for k in range(len(args))))
            return [results[k] for k in moving]

        return list(jax.linear_transpose(function, *(avals[k] for k in linear))(list(cts)))

    def make() -> Fused:
        return Fused(jax.make_jaxpr(transposed)([avals[k] for k in given], [outs[k] for k in moving]))

    def flat(call: Fused) -> list[Any]:
        return bind(call, [*(args[k] for k in given), *(cotangents[k] for k in moving)])

    found = dict(zip(linear, flat(call.once(("transpose", linear, moving), make)), strict=True)) if moving else {}
    return [found.get(k, ad.Zero(avals[k].to_tangent_aval()) if k in linear else None) for k in range(len(args))]


ad.primitive_transposes[fused_p] = _transpose
