"""Jaxpr -> Program: each equation is looked up in a table of rules by its primitive's name.

========================  ===========================================================================
``elementwise``           arithmetic, comparisons, casts, bits; through ``complex`` complex numbers
``arrays``                small arrays, split into scalars; captured arrays, loaded where they are indexed
``reductions, sorting``   the same of what combines and what orders their scalars
``control``               scan, while, cond
``random``                what ``jax.random`` draws from keys of threefry
``jaxprs``                calls, which are inlined
========================  ===========================================================================
"""

from __future__ import annotations

import math

import numpy as np
from jax.extend.core import Jaxpr

from ..ir.program import Program
from . import arrays, control, elementwise, random, reductions, sorting
from .emit import MAX_INSTRUCTIONS, MAX_SLOTS, Unsupported
from .hoist import hoist
from .lowering import LANE_BY_LANE, ON_KEYS, RULES, WITH_EFFECTS, Lowering
from .values import Array, Value, View, check_shape, loaded, scalar_dtypes

__all__ = ["MAX_INSTRUCTIONS", "MAX_SLOTS", "Unsupported", "hoist", "lower_elementwise", "to_program"]

RULES.update(dict.fromkeys(elementwise.NAMES, elementwise.elementwise))
for rules in (arrays.RULES, reductions.RULES, sorting.RULES, control.RULES, random.RULES):
    RULES.update(rules)
LANE_BY_LANE.update(elementwise.NAMES, control.RULES)
WITH_EFFECTS.update(control.RULES)
ON_KEYS.update(random.RULES, arrays.MOVES, ("select_n", "while", "cond"))


def to_program(jaxpr: Jaxpr, lanes: tuple[int, ...] | None = None) -> Program:
    """The Program of a jaxpr. ``lanes``: it is that of one lane, of what treats every element of arrays of this shape alike.

    ``constvars`` (captured arrays) are uniforms 0, 1, ...; parameters are the scalars of every invar and results those of every
    outvar, flattened in row-major order, a complex number as two (real, imaginary). Uniforms of complex numbers are loaded as
    such pairs: number ``2 i`` is the real part of element ``i``. Raises :class:`Unsupported`.
    """
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
    return e.builder.finish(control.flat([loaded(e, r, "result") for r in results]))


def lower_elementwise(jaxpr: Jaxpr, lanes: tuple[int, ...]) -> Program | None:
    """:func:`to_program` of one lane; None where lanes are not treated alike. Invars are scalars or have the lanes' shape: each
    is one parameter (two if it is complex)."""
    try:
        return to_program(jaxpr, lanes)
    except Unsupported:
        return None
