"""What depends only on captured arrays is computed once, outside: a jaxpr is parted in two.

Every equation is one of

- *outer*: it needs captured arrays and no element;
- *inner*: it needs the element;
- *free*: it needs neither, or only rearranges captured arrays: it goes to whichever side uses it, or to both. Arrays made
  from nothing stay with the element as constants, but a large one that is indexed, or goes into a loop, is made outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from .jaxprs import CALLS, RULES, assembled, called, capturing, structs, variables
from .keys import from_words, is_key, words

LARGE = 64
"""An array made from nothing is large from so many numbers on."""

_VIEWS = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "slice", "transpose", "rev", "stop_gradient", "copy", "copy_p"}
)
_INDEXING = frozenset({"gather", "dynamic_slice"})
_CONTROL = frozenset({"scan", "while", "cond"})

_NOTHING, _CAPTURED, _ELEMENT = 0, 1, 2  # what a variable depends on


def hoist(closed: ClosedJaxpr) -> tuple[Callable[..., list[Any]], ClosedJaxpr]:
    """``(pre, inner)``: ``inner.jaxpr`` is what is left for each element; ``pre(*closed.consts)`` are its constvars' values.

    (``inner.consts`` only hold their shapes and dtypes; with the values it is ``ClosedJaxpr(inner.jaxpr,
    pre(*closed.consts))``.) ``pre`` is traceable JAX, so the captured arrays may be tracers. Calls (``jit`` and the like) of
    which a part needs the element are inlined; those with differentiation rules of their own (``custom_jvp``) are kept whole,
    as are calls that don't need it.
    """
    jaxpr = closed.jaxpr
    parting = _Parting(jaxpr)
    outvars = parting.walk(jaxpr, jaxpr.constvars, jaxpr.invars)
    inner, constvars = parting.inner(outvars)
    outer = assembled(list(parting.embedded), jaxpr.constvars, constvars, parting.outer(constvars))
    pre = jaxpr_as_fun(ClosedJaxpr(outer, list(parting.embedded.values())))
    rest = ClosedJaxpr(assembled(constvars, jaxpr.invars, outvars, inner), structs(constvars))
    return _on_words(pre, rest) if any(is_key(v.aval.dtype) for v in constvars) else (pre, rest)


def _on_words(pre: Callable[..., list[Any]], inner: ClosedJaxpr) -> tuple[Callable[..., list[Any]], ClosedJaxpr]:
    """The same with the words of random keys for the keys: kernels' operands are numbers."""
    held, keys = inner.jaxpr.constvars, [from_words(v.aval) for v in inner.jaxpr.constvars]
    n, structs = len(held), [jax.eval_shape(words, c) for c in inner.consts]

    def on_words(*xs: Any) -> list[Any]:
        return jaxpr_as_fun(ClosedJaxpr(inner.jaxpr, [wrap(x) for wrap, x in zip(keys, xs[:n], strict=True)]))(*xs[n:])

    jaxpr = jax.make_jaxpr(on_words)(*structs, *(v.aval for v in inner.jaxpr.invars)).jaxpr
    rest = capturing(jaxpr, n)
    return lambda *captured: [words(x) for x in pre(*captured)], ClosedJaxpr(rest, structs)


class _Parting:
    def __init__(self, jaxpr: Jaxpr) -> None:
        self.depends: dict[Var, int] = dict.fromkeys(jaxpr.constvars, _CAPTURED) | dict.fromkeys(jaxpr.invars, _ELEMENT)
        self.eqns: list[tuple[JaxprEqn, int]] = []  # with what its results depend on
        self.embedded: dict[Var, Any] = {}  # arrays that a call's jaxpr holds

    def of(self, atom: Any) -> int:
        return _NOTHING if isinstance(atom, Literal) else self.depends[atom]

    def walk(self, jaxpr: Jaxpr, constvars: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Lists the equations, calls inlined, variables renamed; returns the outvars' new names."""
        names: dict[Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constvars, *args), strict=True))

        def rename(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else names[atom]

        for eqn in jaxpr.eqns:
            operands = [rename(v) for v in eqn.invars]
            depends = _ELEMENT if eqn.effects else max((self.of(v) for v in operands), default=_NOTHING)
            inner = called(eqn) if depends == _ELEMENT and eqn.primitive.name in CALLS - RULES else None
            if inner is not None:
                body, consts = inner
                held = [Var(v.aval) for v in body.constvars]
                self.embedded |= dict(zip(held, consts, strict=True))
                self.depends |= dict.fromkeys(held, _CAPTURED)
                names.update(zip(eqn.outvars, self.walk(body, held, operands), strict=True))
                continue
            results = [Var(v.aval) for v in eqn.outvars]
            names.update(zip(eqn.outvars, results, strict=True))
            self.depends |= dict.fromkeys(results, depends)
            self.eqns.append((eqn.replace(invars=operands, outvars=results), depends))
        return [rename(v) for v in jaxpr.outvars]

    def inner(self, outvars: Sequence[Any]) -> tuple[list[JaxprEqn], list[Var]]:
        """The equations for each element, and the variables that they need from outside, in the order of the equations."""
        wanted, indexed = set(variables(outvars)), set[Var]()
        kept: list[JaxprEqn] = []
        for eqn, depends in reversed(self.eqns):
            if not wanted.intersection(eqn.outvars) and not eqn.effects:
                continue
            view = depends == _CAPTURED and eqn.primitive.name in _VIEWS
            large = any(v in indexed and math.prod(v.aval.shape) > LARGE for v in eqn.outvars)
            if depends == _ELEMENT or view or (depends == _NOTHING and not large):
                kept.append(eqn)
                wanted.difference_update(eqn.outvars)
                wanted.update(variables(eqn.invars))
            name = eqn.primitive.name
            if name in _INDEXING or name in _CONTROL or (name in _VIEWS and indexed.intersection(eqn.outvars)):
                indexed.update(variables(eqn.invars if name in _CONTROL else eqn.invars[:1]))
        return kept[::-1], [v for v, depends in self.depends.items() if v in wanted and depends != _ELEMENT]

    def outer(self, outvars: Sequence[Var]) -> list[JaxprEqn]:
        """The equations that make these variables from captured arrays."""
        wanted, kept = set(outvars), []
        for eqn, depends in reversed(self.eqns):
            if depends != _ELEMENT and wanted.intersection(eqn.outvars):
                kept.append(eqn)
                wanted.update(variables(eqn.invars))
        return kept[::-1]
