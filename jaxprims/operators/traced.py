"""A user's function, traced: its Program for the kernels, its jaxpr for everything that JAX does itself (derivatives, fallbacks).

Two traced functions are equal when their Programs are, so that a lambda written in a loop does not compile anew. Those that
carry differentiation rules of their own (``custom_jvp``, ``stop_gradient``), which a Program does not show, are equal if their
jaxprs are, and those of the rules.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..ir.arrays import ArrayProgram
from ..ir.program import Program, from_bits
from ..tracing.jaxprs import RULES, VJPS, capturing, equations_in, run_equation, structs, without_mesh
from ..tracing.lower import to_program
from ..tracing.names import is_fixed
from ..tracing.nests import to_arrays
from ..tracing.varying import Axes, axes_of, under_no_mesh, vary

_RULES = RULES | {"stop_gradient"}


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A traced function of flat arguments; captured arrays are its first arguments (``captured`` of them)."""

    jaxpr: Jaxpr
    program: Program
    key: Any
    arrays: ArrayProgram | None = None  # in place of the Program, where values have too many scalars

    @functools.cached_property
    def has_rules(self) -> bool:
        """Does it carry differentiation rules of its own?"""
        return _has_rules(self.jaxpr)

    @functools.cached_property
    def has_own_rules(self) -> bool:
        """Rules that are not those of jax.numpy's functions, which say what is known of these?"""
        return self.has_rules and _has_own_rules(self)

    @functools.cached_property
    def has_vjps(self) -> bool:
        """Rules of which there is no forward mode?"""
        return self.has_rules and any(eqn.primitive.name in VJPS for eqn in _rules_of(self.jaxpr))

    @property
    def captured(self) -> int:
        return len(self.jaxpr.constvars)

    def positive(self, results: Iterable[int]) -> frozenset[int]:
        """Which of these results, by their place among them, are a positive constant, wherever they are arrays."""
        if self.arrays is not None:
            return frozenset()
        counts = [slots_of(v.aval.shape, v.aval.dtype) for v in self.jaxpr.outvars]
        body, out = self.program.body, set()
        for place, k in enumerate(results):
            first = sum(counts[:k])
            made = [body[r] for r in self.program.results[first : first + counts[k]]]
            if made and all(i.op == "const" and from_bits(i.attr, i.dtype) > 0 for i in made):
                out.add(place)
        return frozenset(out)

    @functools.cached_property
    def _axes(self) -> Axes:
        return axes_of(v.aval for v in (*self.jaxpr.constvars, *self.jaxpr.invars))

    @functools.cached_property
    def elsewhere(self) -> Jaxpr:
        """For what does not vary over devices."""
        return without_mesh(self.jaxpr) if self._axes else self.jaxpr

    def __call__(self, captured: Sequence[Any], *args: Any) -> list[Any]:
        given, jaxpr = [*captured, *args], self.elsewhere
        if axes_of(given):
            given, jaxpr = [vary(x, self._axes) for x in given], self.jaxpr
        out = jaxpr_as_fun(ClosedJaxpr(jaxpr, given[: len(captured)]))(*given[len(captured) :])
        # a number of Python that the function returns is no array
        return [jnp.asarray(x, v.aval.dtype) if isinstance(v, Literal) else x for x, v in zip(out, jaxpr.outvars, strict=True)]

    def __repr__(self) -> str:
        if self.arrays is not None:
            return f"{len(self.jaxpr.eqns)} operations on large elements"
        params, results = ", ".join(self.program.params), ", ".join(self.program.result_dtypes)
        return f"({params}) -> ({results})" if len(params) + len(results) < 200 else f"{len(self.program.params)} slots"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def slots_of(shape: Sequence[int], dtype: Any) -> int:
    """Scalars in an array."""
    return int(np.prod(shape, dtype=np.int64)) * (2 if np.dtype(dtype).kind == "c" else 1)


def _has_rules(jaxpr: Jaxpr) -> bool:
    return next(_rules_of(jaxpr), None) is not None


def _rules_of(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations with rules, and those in what these compute."""
    return (eqn for eqn in equations_in(jaxpr) if eqn.primitive.name in _RULES)


@functools.lru_cache(maxsize=512)
def _has_own_rules(traced: Traced) -> bool:
    with under_no_mesh():
        return not all(map(_is_numpys, _rules_of(traced.elsewhere)))


def _is_numpys(eqn: JaxprEqn) -> bool:
    """Is the rule that of a function of jax.numpy which operators are recognised as?"""
    if eqn.primitive.name != "custom_jvp_call" or eqn.params["symbolic_zeros"] or len(eqn.invars) != 2:
        return False
    args = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
    known = (jax.make_jaxpr(fn)(*args).jaxpr for fn in (jnp.logaddexp, jnp.logaddexp2))
    mine = _rule(eqn, 0)
    is_known = isinstance(mine[0], tuple)  # what it computes, not the function that does
    return is_known and any(mine == _rule(other, 0) for jaxpr in known for other in _rules_of(jaxpr))


class SameObject:
    """Compares by being the same object, which it keeps alive."""

    def __init__(self, thing: object):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def make_traced(jaxpr: Jaxpr, program: Program | None = None, arrays: ArrayProgram | None = None) -> Traced:
    """``program``: as the jaxpr says, which raises Unsupported where it cannot."""
    program = to_program(jaxpr) if program is None else program
    if not axes_of(v.aval for v in (*jaxpr.constvars, *jaxpr.invars)):
        jaxpr = without_mesh(jaxpr)  # what varies over devices is typed with them
    signature = tuple((v.aval.shape, str(v.aval.dtype)) for v in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars))
    own: Any = None
    if axes_of(v.aval for v in jaxpr.invars):
        own = SameObject(jaxpr)
    elif _has_rules(jaxpr):
        own = _structure(jaxpr)
    return Traced(jaxpr, program, (program, arrays, signature, own), arrays)


def _structure(jaxpr: Jaxpr, inside: int = 0) -> tuple[Any, ...]:
    """Equal for jaxprs that differ in the names of their variables only. ``inside``: so many rules it is of."""
    numbers: dict[Any, int] = {v: k for k, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}

    def atom(x: Any) -> Any:
        return (np.asarray(x.val, x.aval.dtype).tobytes(), str(x.aval)) if isinstance(x, Literal) else numbers[x]

    eqns = []
    for eqn in jaxpr.eqns:
        read = tuple(map(atom, eqn.invars))
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        rule = _RULE_PARAMETERS.get(eqn.primitive.name, ())
        params = tuple((k, _comparable(v, inside)) for k, v in sorted(eqn.params.items()) if k not in rule)
        made = tuple(str(v.aval) for v in eqn.outvars)
        eqns.append((eqn.primitive, read, made, params, _rule(eqn, inside) if rule else None))
    return (tuple(eqns), tuple(map(atom, jaxpr.outvars)))


_RULE_PARAMETERS = {
    "custom_jvp_call": ("jvp_jaxpr_fun",),
    "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees"),
}

NESTED = 2
"""So many rules inside each other are looked at. Most compute the function itself, which has the rule again."""


def _rule(eqn: JaxprEqn, inside: int) -> Any:
    """A function's own differentiation rule, as what it computes: JAX hands out another function for each trace. One inside
    ``NESTED`` others, which only a derivative of that order meets, is known by where it was written."""
    functions = tuple(eqn.params[k] for k in _RULE_PARAMETERS[eqn.primitive.name])
    if inside == NESTED:
        return tuple(str(f.debug_info.func_src_info) for f in functions if hasattr(f, "debug_info"))
    if eqn.params["symbolic_zeros"]:  # it may ask which tangents are none
        return functions
    moving = [k for k, v in enumerate(eqn.invars) if jnp.issubdtype(v.aval.dtype, jnp.inexact)]

    def derivative(given: list[Any], tangents: list[Any], cotangents: list[Any]) -> Any:
        def along(*xs: Any) -> list[Any]:
            every = list(given)
            for k, x in zip(moving, xs, strict=True):
                every[k] = x
            return [y for y in run_equation(eqn, every) if jnp.issubdtype(y.dtype, jnp.inexact)]

        primals = [given[k] for k in moving]
        if eqn.primitive.name == "custom_jvp_call":
            return jax.jvp(along, primals, tangents)
        made, pull = jax.vjp(along, *primals)
        return made, pull(cotangents)

    try:
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
        cotangents = [a for a in structs(eqn.outvars) if jnp.issubdtype(a.dtype, jnp.inexact)]
        closed = jax.make_jaxpr(derivative)(avals, [avals[k] for k in moving], cotangents)
        return (_structure(closed.jaxpr, inside + 1), tuple(map(SameObject, closed.consts)))
    except Exception:  # the user's own, who may never differentiate it
        return functions


def _comparable(x: Any, inside: int) -> Any:
    """A parameter of an equation: a jaxpr by its structure, what has a hash by that, anything else by being the same object."""
    if isinstance(x, ClosedJaxpr):
        return (_structure(x.jaxpr, inside), tuple(map(SameObject, x.consts)))
    if isinstance(x, Jaxpr):
        return _structure(x, inside)
    if isinstance(x, (tuple, list)):
        return tuple(_comparable(item, inside) for item in x)
    try:
        hash(x)
    except TypeError:
        return SameObject(x)
    return x


class _Alike:
    """A jaxpr that compares by its structure, and the types of its arguments."""

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.key = (tuple(str(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)), len(jaxpr.constvars), _structure(jaxpr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def traced_alike(jaxpr: Jaxpr) -> Traced:
    """Of scalars and small arrays; made once for jaxprs that are alike. Raises Unsupported."""
    return _traced_alike(_Alike(jaxpr))


@functools.lru_cache(maxsize=512)
def _traced_alike(alike: _Alike) -> Traced:
    return make_traced(alike.jaxpr)


def followed(f: Traced, then: Callable[..., list[Any]], *further: Any) -> Traced:
    """``then(f's results, *further arguments)`` as a function of f's arguments and further ones of these avals."""
    held, n = f.captured, len(f.jaxpr.invars)
    avals = structs((*f.jaxpr.constvars, *f.jaxpr.invars))
    made = jax.make_jaxpr(lambda *xs: then(f(xs[:held], *xs[held : held + n]), *xs[held + n :]))(*avals, *further)
    return traced_alike(capturing(made.jaxpr, held))


def make_large(jaxpr: Jaxpr) -> Traced:
    """Of arrays, which stay such."""
    return make_traced(jaxpr, NO_PROGRAM, to_arrays(jaxpr))


def together(f: Traced, n: int) -> ArrayProgram | None:
    """What a function of arrays makes of n elements that lie one after the other."""
    if n == 1:
        return f.arrays
    held, jaxpr = f.captured, f.elsewhere
    elements = (jax.ShapeDtypeStruct((n, *a.shape), a.dtype) for a in structs(jaxpr.invars))
    with under_no_mesh():
        every = jax.make_jaxpr(lambda *xs: jax.vmap(functools.partial(f, xs[:held]))(*xs[held:]))
        return to_arrays(capturing(every(*structs(jaxpr.constvars), *elements).jaxpr, held))


NO_PROGRAM = Program((), (), ())


_traces: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()


def trace(fn: Callable[..., Any], avals: Sequence[Any], key: Any, flat: Callable[..., Any]) -> ClosedJaxpr:
    """``jax.make_jaxpr(flat)(*avals)``, remembered under ``key`` for an ``fn`` that computes with nothing that may change.

    ``flat`` is ``fn`` with pytrees taken apart; ``key`` says how.
    """
    remembered = _traces.setdefault(fn, {}) if is_fixed(fn) and not axes_of(avals) else {}
    context = (bool(jax.config.jax_enable_x64), jax.sharding.get_abstract_mesh())  # which functions inside have noted
    full = (key, tuple((a.shape, str(a.dtype)) for a in avals), *context)
    if full not in remembered:
        closed = jax.make_jaxpr(flat)(*avals)
        if any(isinstance(c, jax.core.Tracer) for c in closed.consts):
            return closed
        remembered[full] = closed
    return remembered[full]
