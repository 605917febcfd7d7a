"""Arithmetic that XLA on CPUs writes in another form before it compiles, in that form: kernels have the same bits, and integers
that are made of them are the same.

A quotient by a constant, or by what many elements share, is a product with its reciprocal; constants that follow each other are
multiplied, or added, before, where the installed XLA does so; squares and cubes are products; a product with a mask is a choice,
which does not see what is infinite where the mask is false; a fold by a function that has a primitive is that primitive; a
reduction along axes of one number is that number, and what is multiplied as matrices with a single number is a product of
numbers; what is converted to f32 straight after arithmetic in bf16 is not rounded between (a function that
takes time is made once, in f32, for who wants it rounded, too).

What is returned negated, and wanted otherwise too (the gradients of a difference), is made of the result: that is there, however
dear it was, and XLA removes two negations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..primitives.avals import typed
from ..primitives.ordered.scan_xla import OPERATIONS
from ..tracing import elementwise
from ..tracing.jaxprs import run_equation
from ..tracing.labels import REDUCTIONS
from .body import DEAR, operations
from .folds import FOLDS, fold_of
from .graph import Graph, with_equations
from .sites import extreme

_OF_BITS = frozenset(("convert_element_type", "bitcast_convert_type", "reduce_precision", "nextafter"))
"""What is not the same function in f32."""

Rule = Callable[[Callable[[Any], Any]], Any]
"""An equation's result, from the values of atoms before it."""


def simplified(graph: Graph) -> ClosedJaxpr | None:
    """The function in these forms; None if it has them already."""
    rules = {id(e): rule for e in graph.eqns if len(e.outvars) == 1 and (rule := _rule(graph, e)) is not None}
    returned = _returned_negated(graph)
    if not (rules or returned):
        return None
    negated: dict[Any, Any] = {}
    dear, wide = _dear_halves(graph, rules), dict[Any, Any]()

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        if eqn.primitive.name == "neg" and any(eqn.invars[0] is v for v in negated):
            return [negated[eqn.invars[0]]]
        if eqn.outvars and eqn.outvars[0] in dear:
            wide[eqn.outvars[0]] = dear[eqn.outvars[0]](value)
            out = [typed(wide[eqn.outvars[0]].astype(jnp.bfloat16), eqn.outvars[0].aval)]
        elif eqn.primitive.name == "convert_element_type" and id(eqn) in rules and eqn.invars[0] in wide:
            out = [typed(wide[eqn.invars[0]], eqn.outvars[0].aval)]
        elif (rule := rules.get(id(eqn))) is None:
            out = run_equation(eqn, operands)
        else:
            aval = eqn.outvars[0].aval
            out = [typed(jnp.broadcast_to(rule(value), aval.shape), aval)]
        if eqn.outvars and eqn.outvars[0] in returned:
            negated[eqn.outvars[0]] = lax.neg(out[0])
            out = [lax.neg(negated[eqn.outvars[0]])]
        return out

    return with_equations(graph, equation, negated, wide)


def _dear_halves(graph: Graph, rules: Mapping[int, Rule]) -> dict[Any, Rule]:
    """Functions of bf16 that are wanted before they are rounded and after: in f32, once."""
    unrounded = {e.invars[0]: rules[id(e)] for e in graph.eqns if e.primitive.name == "convert_element_type" and id(e) in rules}
    return {
        v: rule for v, rule in unrounded.items() if len(graph.users[v]) > 1 and operations(graph.eqns[graph.producer[v]]) >= DEAR
    }


def _returned_negated(graph: Graph) -> set[Any]:
    """What is made, wanted by several, and returned, but for its sign."""
    out = graph.jaxpr.outvars
    mine = (e.invars[0] for e in graph.eqns if e.primitive.name == "neg" and e.outvars[0] in out)
    return {v for v in mine if graph.made_by(v) is not None and v not in out and v.aval.ndim and len(graph.users[v]) > 1}


@np.errstate(all="ignore")
def _rule(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    name, out = eqn.primitive.name, eqn.outvars[0]
    if name == "convert_element_type":
        return _unrounded(graph, eqn)
    if name in REDUCTIONS and all(eqn.invars[0].aval.shape[axis] == 1 for axis in eqn.params["axes"]):
        return lambda value: lax.squeeze(value(eqn.invars[0]), eqn.params["axes"])
    if name in FOLDS:
        return _known_fold(graph, eqn)
    if name == "slice":
        return _last(graph, eqn)
    if name == "cumsum":
        return _of_the_first(graph, eqn)
    if (
        name == "dot_general"
        and any(v.aval.ndim == 0 for v in eqn.invars)
        and len({v.aval.dtype for v in (*eqn.invars, out)}) == 1
    ):
        return lambda value: jnp.multiply(*map(value, eqn.invars))
    if name == "pow":
        return _power(graph, eqn)
    if name not in ("add", "sub", "mul", "div") or not jnp.issubdtype(out.aval.dtype, jnp.floating):
        return None
    combine = np.add if name in ("add", "sub") else np.multiply
    base, constants = _chain(graph, out, combine)
    if len(constants) > 1 and _xla_combines():
        total = _combined(constants, combine)
        return lambda value: (jnp.add if combine is np.add else jnp.multiply)(value(base), total)
    return {"div": _quotient, "mul": _choice}.get(name, lambda *_: None)(graph, eqn)


_CUMULATIVE = {"cumsum": lax.reduce_sum, "cumprod": lax.reduce_prod}


def _last(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    """Of what is cumulative the last alone: a reduction."""
    (x,), made, p = eqn.invars, graph.made_by(eqn.invars[0]), eqn.params
    if made is None or made.primitive.name not in _CUMULATIVE or len(graph.users[x]) > 1 or p["strides"] is not None:
        return None
    axis, reduced = made.params["axis"], _CUMULATIVE[made.primitive.name]
    at = 0 if made.params["reverse"] else x.aval.shape[axis] - 1
    start, limit = list(p["start_indices"]), list(p["limit_indices"])
    if (start[axis], limit[axis]) != (at, at + 1):
        return None
    start[axis], limit[axis] = 0, 1

    def of_all(value: Callable[[Any], Any]) -> Any:
        out = lax.expand_dims(reduced(value(made.invars[0]), [axis]), [axis])
        return out if out.shape == eqn.outvars[0].aval.shape else lax.slice(out, start, limit)

    return of_all


def _of_the_first(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    """Sums of all up to each, where all but the first are zeros (the last one's derivative)."""
    (x,), made, axis = eqn.invars, graph.made_by(eqn.invars[0]), eqn.params["axis"]
    if made is None or made.primitive.name != "pad" or _constant(graph, made.invars[1]) != 0:
        return None
    first, n = made.invars[0], x.aval.shape[axis]
    around = (n - 1, 0, 0) if eqn.params["reverse"] else (0, n - 1, 0)
    config = [tuple(map(int, c)) for c in made.params["padding_config"]]
    alone = all(c == (around if k == axis else (0, 0, 0)) for k, c in enumerate(config))
    return (lambda value: value(first)) if alone and first.aval.shape[axis] == 1 else None


def _known_fold(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    """A fold by a function that has a primitive of its own, by that."""
    fold, p = fold_of(graph, eqn), eqn.params
    name = fold and fold.name
    if name is None or name not in OPERATIONS:
        return None
    if eqn.primitive.name == "reduce":
        reduced = getattr(lax, {"add": "reduce_sum", "mul": "reduce_prod"}.get(name, f"reduce_{name}"))
        return lambda value: reduced(value(eqn.invars[0]), p["dimensions"])
    if name not in ("add", "max", "min"):
        return None
    windows = (p[k] for k in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"))
    dtype = eqn.invars[0].aval.dtype
    start = np.asarray(0 if name == "add" else extreme("least" if name == "max" else "greatest", dtype), dtype)
    return lambda value: lax.reduce_window(value(eqn.invars[0]), start, getattr(lax, name), *windows)


@functools.cache
def _xla_combines() -> bool:
    """Does the installed XLA combine constants that follow each other? Newer ones leave them: 2^24 + 1 is rounded to 2^24."""
    x = np.float32(2**24)
    return bool(np.asarray(jax.jit(lambda x: x + 1 - 1).lower(x).compile()(x)) == x)  # also while something is traced


def _chain(graph: Graph, var: Any, combine: np.ufunc) -> tuple[Any, list[tuple[bool, Any]]]:
    """What constants are added to, or multiplied with, one after the other, and these, each with whether it was written as its
    inverse."""
    names = {"add": False, "sub": True} if combine is np.add else {"mul": False, "div": True}
    eqn = graph.made_by(var)
    if eqn is None or eqn.primitive.name not in names or var.aval.dtype == jnp.bfloat16:  # rounded between
        return var, []
    inverse, (x, y) = names[eqn.primitive.name], eqn.invars
    if not inverse and _constant(graph, x) is not None:
        x, y = y, x
    constant = _constant(graph, y)
    if constant is None or _constant(graph, x) is not None or (combine is np.multiply and _is_mask(graph, x)):
        return var, []
    base, before = _chain(graph, x, combine)
    if inverse:
        constant = -constant if combine is np.add else np.reciprocal(constant)
    return base, [*before, (inverse, constant)]


def _combined(links: Sequence[tuple[bool, Any]], combine: np.ufunc) -> Any:
    """All of them, at least one, in XLA's order, which halves show: it goes through them again and again, and combines each with
    the one before that it has not combined yet. The first time a difference is no sum yet, and a quotient's constant is not
    combined with another before it."""
    values: list[Any] = []
    is_free = False
    for inverse, constant in links:
        if is_free and not inverse:
            values[-1], is_free = combine(values[-1], constant), False
        else:
            values, is_free = [*values, constant], not inverse or combine is np.multiply
    while len(values) > 1:
        values = [functools.reduce(combine, values[k : k + 2]) for k in range(0, len(values), 2)]
    return values[0]


def _constant(graph: Graph, atom: Any) -> Any:
    """The number that all of it is, as a NumPy scalar; None if that is not known."""
    if isinstance(atom, Literal):
        return np.asarray(atom.val, atom.aval.dtype)[()] if np.ndim(atom.val) == 0 else None
    eqn = graph.made_by(atom)
    if eqn is not None and eqn.primitive.name == "sub" and atom.aval.dtype in (np.float32, np.float64):  # derivatives' exponents
        x, y = (_constant(graph, v) for v in eqn.invars)
        return None if x is None or y is None else x - y
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
        return None
    if atom.aval.dtype.kind in "biuc" and atom.aval.dtype != eqn.invars[0].aval.dtype:  # NumPy has others of what does not fit
        return None
    constant = _constant(graph, eqn.invars[0])
    return None if constant is None else constant.astype(atom.aval.dtype)


def _power(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    x, y = eqn.invars
    exponent = _constant(graph, y)
    return (lambda value: lax.integer_pow(value(x), int(exponent.real))) if exponent in (2, 3) else None


def _quotient(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    (x, y), out = eqn.invars, eqn.outvars[0].aval
    wide = jnp.float32 if out.dtype == jnp.bfloat16 else out.dtype
    constant, made = _constant(graph, y), graph.made_by(y)
    if constant is not None and np.any((constant != 0) & (np.abs(constant.astype(wide)) < jnp.finfo(wide).tiny)):
        return None  # XLA takes denormals for zero
    if constant is not None:
        inverse = np.reciprocal(constant.astype(wide))
        if _is_mask(graph, x):
            return functools.partial(_chosen, inverse, x)
        return lambda value: _widened(value(x)) * inverse
    if made is not None and (made.primitive.name != "broadcast_in_dim" or made.invars[0].aval.size >= y.aval.size):
        made = None  # it is not spread
    if made is None and y.aval.shape == out.shape:
        return None
    shared, *sizes = [y] if made is None else made.invars

    def product(value: Callable[[Any], Any]) -> Any:
        inverse = 1 / _widened(value(shared))
        if made is not None:
            inverse = made.primitive.bind(inverse, *map(value, sizes), **made.params)
        return _widened(value(x)) * inverse

    return product


def _widened(x: Any) -> Any:
    """bf16 in f32; XLA would not round what it makes just before, without being told to."""
    return lax.reduce_precision(lax.convert_element_type(x, jnp.float32), 8, 7) if x.dtype == jnp.bfloat16 else x


def _choice(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    """XLA's own, of a mask that is not spread: a product is zero where it is not set, whatever the other factor."""
    for x, mask in (eqn.invars[::-1], eqn.invars):
        spread = graph.name_of(graph.before(mask, ("convert_element_type",))) == "broadcast_in_dim"
        if _is_mask(graph, mask) and not spread and mask.aval.shape == eqn.outvars[0].aval.shape:
            return lambda value: _chosen(value(x), mask, value)
    return None


def _is_mask(graph: Graph, atom: Any) -> bool:
    """Of the types that XLA has arithmetic on."""
    made = graph.made_by(atom)
    if made is None or made.primitive.name != "convert_element_type" or atom.aval.dtype not in (np.float32, np.float64):
        return False
    return bool(made.invars[0].aval.dtype == np.bool_)


def _chosen(x: Any, mask: Any, value: Callable[[Any], Any]) -> Any:
    return jnp.where(value(mask) != 0, x, jnp.zeros_like(x))


def _unrounded(graph: Graph, eqn: JaxprEqn) -> Rule | None:
    made = graph.made_by(eqn.invars[0])
    if eqn.params["new_dtype"] != jnp.float32 or made is None or made.primitive.name not in elementwise.NAMES - _OF_BITS:
        return None
    if any(v.aval.dtype != jnp.bfloat16 for v in (*made.invars, *made.outvars)):
        return None
    if made.primitive.name == "div" and (quotient := _quotient(graph, made)) is not None:
        return quotient

    def wide(value: Callable[[Any], Any]) -> Any:
        return made.primitive.bind(*(lax.convert_element_type(value(v), jnp.float32) for v in made.invars), **made.params)

    return wide
