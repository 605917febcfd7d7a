"""Lowering: an emitter that evaluates jaxprs by a table of rules, which ``lower`` fills."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax.extend.core import Jaxpr

from ..ir.program import numpy_dtype
from .emit import Counter, Emitter, Unsupported
from .jaxprs import CALLS, IDENTITIES, called, interpret, opened
from .keys import is_key
from .parameters import check_parameters
from .values import Array, Value, View, constants

RULES: dict[str, Callable[..., Any]] = {}
"""Primitive -> rule(lowering, equation, operands...) -> a value, or a list of them for several results."""

LANE_BY_LANE: set[str] = set()
"""Those that act on each lane of an array by itself."""

WITH_EFFECTS: set[str] = set()
"""Those that may have effects: their bodies' are looked at one by one."""


ON_KEYS: set[str] = set()
"""Those that may have arrays of random keys among their operands or results."""


_LANES_STAY = ("broadcast_in_dim", "reshape", "squeeze")


class Lowering(Emitter):
    """An emitter that evaluates jaxprs. With ``lanes``, arrays of that shape, but for axes of size 1, stand for one of their
    elements."""

    def __init__(self, params: Sequence[str], counter: Counter | None = None, lanes: tuple[int, ...] | None = None):
        super().__init__(params, counter)
        self.lanes = lanes

    def child(self, params: Sequence[str]) -> Self:
        return type(self)(params, self.counter, self.lanes)

    def shape(self, aval: Any) -> tuple[int, ...]:
        """The shape that a variable of this abstract value has here."""
        if self.lanes is None or aval.shape == ():
            return tuple(aval.shape)
        if _without_ones(aval.shape) != _without_ones(self.lanes):
            raise Unsupported("operator", f"not elementwise: an array of shape {aval.shape} beside {self.lanes}")
        return ()

    def evaluate(self, jaxpr: Jaxpr, captured: Sequence[Any], args: Sequence[Value]) -> list[Value]:
        """The values of the outvars; ``captured``: arrays, or views of them."""
        given = [c if isinstance(c, View) else constants(self, c, "captured array") for c in captured]
        number = lambda atom: constants(self, np.asarray(atom.val, atom.aval.dtype), "literal")  # noqa: E731
        return interpret(jaxpr, given, args, self._equation, number)

    def _equation(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        name = eqn.primitive.name
        if name in CALLS:
            inner = called(eqn)
            if inner is not None:
                return self.evaluate(*inner, operands)
        if eqn.effects and name not in WITH_EFFECTS:
            raise Unsupported(name, f"it has effects: {', '.join(sorted(map(str, eqn.effects)))}")
        if name in IDENTITIES:
            return operands
        rule = RULES.get(name)
        if name not in ON_KEYS and any(is_key(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)):
            raise Unsupported(name, "of random keys")
        if rule is None:
            raise Unsupported(name)
        check_parameters(eqn)
        if self.lanes is not None and name not in LANE_BY_LANE:
            return [self._lane(eqn, operands)]
        result = rule(self, eqn, *operands)
        return result if isinstance(result, list) else [result]

    def _lane(self, eqn: Any, operands: list[Value]) -> Value:
        """Of the other primitives, only those that broadcast, or add and remove axes of size 1, act on each lane by itself."""
        stay = eqn.primitive.name in _LANES_STAY and eqn.params.get("dimensions") is None
        if stay and all(self.shape(v.aval) == () for v in (*eqn.invars, *eqn.outvars)):
            return operands[0]
        raise Unsupported(eqn.primitive.name, "not elementwise")

    def inline(self, function: Callable[..., Any], *xs: int) -> tuple[int, ...]:
        """The values of a function written in ``lax``, on scalars."""
        dtypes = tuple(self.dtype(x) for x in xs)
        scalars = [Array(numpy_dtype(t), (np.array(x, np.int64),)) for t, x in zip(dtypes, xs, strict=True)]
        results = self.evaluate(*_traced(function, dtypes, bool(jax.config.jax_enable_x64)), scalars)
        return tuple(r.scalar() for r in results if isinstance(r, Array))


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


@functools.lru_cache(maxsize=512)
def _traced(function: Callable[..., Any], dtypes: tuple[str, ...], x64: bool) -> tuple[Jaxpr, Sequence[Any]]:
    return opened(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct((), numpy_dtype(t)) for t in dtypes)))
