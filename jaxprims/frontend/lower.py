"""Jaxpr -> Program: each equation is looked up in a table of rules by its primitive's name.

========================  ===========================================================================
``elementwise``           arithmetic, comparisons, casts, bits; through ``complex`` and ``special`` what is no instruction
``arrays, reductions``    small arrays, split into scalars; captured arrays, loaded where they are indexed
``control``               scan, while, cond
``jaxprs``                calls, which are inlined
========================  ===========================================================================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from . import arrays, control, elementwise, reductions
from .emit import MAX_INSTRUCTIONS, MAX_SLOTS, Counter, Emitter, Unsupported
from .hoist import hoist
from .jaxprs import CALLS, IDENTITIES, called, opened
from .program import Program, numpy_dtype
from .values import Array, Value, View, check_shape, constants, scalar_dtypes

__all__ = ["MAX_INSTRUCTIONS", "MAX_SLOTS", "Unsupported", "hoist", "lower_elementwise", "to_program"]

RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(elementwise.NAMES, elementwise.elementwise),
    **arrays.RULES,
    **reductions.RULES,
    **control.RULES,
}
"""Primitive -> rule(lowering, equation, operands...) -> a value, or a list of them for several results."""


def to_program(jaxpr: Jaxpr) -> Program:
    """The Program of a jaxpr.

    ``constvars`` (captured arrays) are uniforms 0, 1, ...; parameters are the scalars of every invar and results those of every
    outvar, flattened in row-major order, a complex number as two (real, imaginary). Uniforms of complex numbers are loaded as
    such pairs: number ``2 i`` is the real part of element ``i``. Raises :class:`Unsupported`.
    """
    jaxpr, _ = opened(jaxpr)
    return _lower(jaxpr, None)


def lower_elementwise(jaxpr: Jaxpr, lanes_shape: tuple[int, ...]) -> Program | None:
    """The Program for one lane of an operator that acts on each element of arrays of ``lanes_shape`` by itself, else None.

    Invars are scalars or have that shape; in the Program each is one parameter (two for a complex one).
    """
    jaxpr, _ = opened(jaxpr)
    try:
        return _lower(jaxpr, tuple(lanes_shape))
    except Unsupported:
        return None


class Lowering(Emitter):
    """An emitter that evaluates jaxprs. With ``lanes``, arrays of that shape stand for one of their elements."""

    def __init__(self, params: Sequence[str], counter: Counter | None = None, lanes: tuple[int, ...] | None = None):
        super().__init__(params, counter)
        self.lanes = lanes

    def child(self, params: Sequence[str]) -> Self:
        return type(self)(params, self.counter, self.lanes)

    def shape(self, aval: Any) -> tuple[int, ...]:
        """The shape that a variable of this abstract value has here."""
        if self.lanes is None or aval.shape == ():
            return tuple(aval.shape)
        if tuple(aval.shape) != self.lanes:
            raise Unsupported("operator", f"not elementwise: an array of shape {aval.shape} beside {self.lanes}")
        return ()

    def evaluate(self, jaxpr: Jaxpr, captured: Sequence[Any], args: Sequence[Value]) -> list[Value]:
        """The values of the outvars; ``captured``: arrays, or views of them."""
        given = [c if isinstance(c, View) else constants(self, c, "captured array") for c in captured]
        env: dict[Any, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*given, *args), strict=True))

        def value(atom: Any) -> Value:
            return constants(self, np.asarray(atom.val, atom.aval.dtype), "literal") if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [value(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [value(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        name = eqn.primitive.name
        if name in CALLS:
            inner = called(eqn)
            if inner is not None:
                return self.evaluate(*inner, operands)
        if eqn.effects and name not in control.RULES:
            raise Unsupported(name, f"it has effects: {', '.join(sorted(map(str, eqn.effects)))}")
        if name in IDENTITIES:
            return operands
        rule = RULES.get(name)
        if rule is None:
            raise Unsupported(name)
        if self.lanes is not None and rule is not elementwise.elementwise and name not in control.RULES:
            return [self._lane(eqn, operands)]
        result = rule(self, eqn, *operands)
        return result if isinstance(result, list) else [result]

    def _lane(self, eqn: Any, operands: list[Value]) -> Value:
        """Of the other primitives, only a broadcast acts on each lane by itself."""
        if eqn.primitive.name == "broadcast_in_dim" and all(self.shape(v.aval) == () for v in (*eqn.invars, *eqn.outvars)):
            return operands[0]
        raise Unsupported(eqn.primitive.name, "not elementwise")

    def inline(self, function: Callable[..., Any], *xs: int) -> tuple[int, ...]:
        """The values of a function written in ``lax``, on scalars."""
        dtypes = tuple(self.dtype(x) for x in xs)
        scalars = [Array(numpy_dtype(t), (np.array(x, np.int64),)) for t, x in zip(dtypes, xs, strict=True)]
        results = self.evaluate(*_traced(function, dtypes, bool(jax.config.jax_enable_x64)), scalars)
        return tuple(r.scalar() for r in results if isinstance(r, Array))


@functools.lru_cache(maxsize=512)
def _traced(function: Callable[..., Any], dtypes: tuple[str, ...], x64: bool) -> tuple[Jaxpr, Sequence[Any]]:
    return opened(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct((), numpy_dtype(t)) for t in dtypes)))


def _lower(jaxpr: Jaxpr, lanes: tuple[int, ...] | None) -> Program:
    probe = Lowering((), lanes=lanes)
    params, shapes = [], []
    for v in jaxpr.invars:
        shape = check_shape(probe.shape(v.aval), "parameter")
        params += math.prod(shape) * list(scalar_dtypes(v.aval.dtype, "parameter"))
        shapes.append(shape)
    if len(params) > MAX_SLOTS:
        raise Unsupported("parameters", f"they have {len(params)} scalars; at most {MAX_SLOTS} are compiled")
    e = Lowering(params, lanes=lanes)
    uniforms: list[Value] = []
    for k, v in enumerate(jaxpr.constvars):
        scalar_dtypes(v.aval.dtype, "captured array")
        if lanes is not None and v.aval.shape != ():
            raise Unsupported("captured array", "it would have to be read lane by lane")
        uniforms.append(View.whole(v.aval.dtype, k, tuple(v.aval.shape)))
    like = [
        Array(np.dtype(v.aval.dtype), (np.zeros(s, np.int64),) * len(scalar_dtypes(v.aval.dtype, "parameter")))
        for v, s in zip(jaxpr.invars, shapes, strict=True)
    ]
    args = control.unflat(like, [e.builder.arg(k) for k in range(len(params))])
    results = e.evaluate(jaxpr, uniforms, args)
    return e.builder.finish(control.flat([arrays.loaded(e, r, "result") for r in results]))
