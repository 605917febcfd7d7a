"""``lax.scan`` with a carry that is a linear recurrence: as one, in place of a loop of N steps.

The new carry has to be ``a * c + b`` of the old one, with a and b of what else the step sees; or a maximum or minimum with it.
Where a step may drop the old carry (``where(done, 0, c)``) it starts anew there, whatever the carry was: NaN too. Carries may
look at each other, as long as they do not go round in a circle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..api.linear_recurrence import linear_recurrence
from ..api.scan import scan
from ..primitives.recurrence import Product, Recurrence, recurrence
from ..tracing.jaxprs import scan_counts
from .graph import Graph, flat_graph, interpret, run_equation
from .loops import like

FEWEST_STEPS, FEWEST = 64, 2**12
"""Steps, and numbers in all of them, below which XLA's loop is as fast."""


class _NotLinear(Exception):
    """The new carry is no such function of the old one."""


@dataclasses.dataclass
class _Linear:
    """``a * c + b`` of the old carry c; ``a`` is None for 1. ``alive``: does it depend on c? None: always. ``extreme``: it is the
    maximum or minimum (the name of the primitive) of c and b."""

    b: Any
    a: Any = None
    alive: Any = None
    extreme: str = ""
    fresh: bool = False  # the old carry itself


def as_recurrence(eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
    """A function of a scan's operands that does the same; None where the scan is something else, or short."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return None
    consts, carries = scan_counts(eqn)
    length = eqn.params["length"]
    numbers = math.prod(d for v in eqn.outvars[:carries] for d in v.aval.shape if isinstance(d, int))
    if not carries or not isinstance(length, int) or length < FEWEST_STEPS or length * numbers < FEWEST:
        return None
    body = eqn.params["jaxpr"]
    if not isinstance(body, ClosedJaxpr):
        return None
    loop = _Loop(flat_graph(body), consts, carries, bool(eqn.params["reverse"]), length)
    try:
        order = loop.order()
        jax.eval_shape(lambda *xs: loop.run(order, xs), *(v.aval for v in eqn.invars))
    except _NotLinear:
        return None
    return lambda *operands: [like(x, v) for x, v in zip(loop.run(order, operands), eqn.outvars, strict=True)]


@dataclasses.dataclass
class _Loop:
    body: Graph
    consts: int
    carries: int
    reverse: bool
    length: int

    def order(self) -> list[int]:
        """The carries, each behind those that it looks at."""
        jaxpr = self.body.jaxpr
        if any(e.effects for e in jaxpr.eqns):
            raise _NotLinear
        mine = jaxpr.invars[self.consts : self.consts + self.carries]
        looks = [{k for k, v in enumerate(mine) if v in self._reached(out)} for out in jaxpr.outvars[: self.carries]]
        order: list[int] = []
        while len(order) < self.carries:
            ready = [k for k in range(self.carries) if k not in order and looks[k] <= {k, *order}]
            if not ready:
                raise _NotLinear
            order += ready
        return order

    def _reached(self, atom: Any) -> set[Any]:
        """The variables that one depends on."""
        bits, out = self.body.needs([atom]), {atom} - {a for a in [atom] if isinstance(a, Literal)}
        for k, eqn in enumerate(self.body.eqns):
            if bits >> k & 1:
                out.update(v for v in eqn.invars if not isinstance(v, Literal))
        return out

    def run(self, order: Sequence[int], operands: Sequence[Any]) -> list[Any]:
        consts, init = operands[: self.consts], operands[self.consts : self.consts + self.carries]
        xs = list(operands[self.consts + self.carries :])
        after: dict[int, Any] = {}
        before: dict[int, Any] = {}
        for k in order:
            after[k] = self._solved(k, consts, init[k], xs, before)
            before[k] = self._shifted(after[k], init[k])
        last = 0 if self.reverse else self.length - 1
        out = [after[k][last] for k in range(self.carries)]
        jaxpr = self.body.jaxpr
        made = {v: after[k] for k, v in enumerate(jaxpr.outvars[: self.carries]) if not isinstance(v, Literal)}
        rest = [k for k, v in enumerate(jaxpr.outvars) if k >= self.carries and (isinstance(v, Literal) or v not in made)]

        def others(mine: Sequence[Any], new: Sequence[Any], now: Sequence[Any]) -> list[Any]:
            known = {v: x for v, x in zip(jaxpr.outvars[: self.carries], new, strict=True) if not isinstance(v, Literal)}

            def equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
                return [known[v] for v in eqn.outvars] if known.keys() >= set(eqn.outvars) else run_equation(eqn, operands)

            every = interpret(jaxpr, self.body.consts, [*consts, *mine, *now], equation)
            return [jnp.asarray(every[k]) for k in rest]

        old, new = ([x[k] for k in range(self.carries)] for x in (before, after))
        found = dict(zip(rest, jax.vmap(others, axis_size=self.length)(old, new, xs), strict=True)) if rest else {}
        return out + [found[k] if k in found else made[v] for k, v in enumerate(jaxpr.outvars) if k >= self.carries]

    def _shifted(self, x: Any, first: Any) -> Any:
        """What each step finds."""
        first = jnp.broadcast_to(jnp.asarray(first, x.dtype), x.shape[1:])[None]
        return jnp.concatenate([x[1:], first] if self.reverse else [first, x[:-1]])

    def _solved(self, k: int, consts: Sequence[Any], init: Any, xs: Sequence[Any], before: Mapping[int, Any]) -> Any:
        """A carry after each step."""
        known = sorted(before)

        def step(now: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
            mine = self._linear(k, consts, now, dict(zip(known, others, strict=True)), init)
            found.append(mine.extreme)
            return {n: x for n, x in (("a", mine.a), ("b", mine.b), ("alive", mine.alive)) if x is not None}

        found: list[str] = []
        others = [before[j] for j in known]
        first = [x[0] for x in xs], [x[0] for x in others]
        steady = _steady(jax.make_jaxpr(step)(*first), jax.eval_shape(step, *first))
        every = jax.vmap(step, axis_size=self.length)(xs, others)
        b, alive = every["b"], every.get("alive")
        a = step(*first)["a"] if "a" in steady else every.get("a")
        shape, dtype = (self.length, *jnp.shape(init)), jnp.result_type(init)
        b = jnp.broadcast_to(b, shape).astype(dtype)
        if found[-1] or (a is None and alive is None):
            op = {"max": jnp.maximum, "min": jnp.minimum}.get(found[-1], jnp.add)
            return scan(b, op, init=init, reverse=self.reverse)
        factor = jnp.asarray(1 if a is None else a, dtype)
        if alive is None:
            return linear_recurrence(factor, b, init, reverse=self.reverse)
        if shape[1:] or dtype in (jnp.float16, jnp.bfloat16):
            return self._anew_by_lane(jnp.broadcast_to(factor, shape), b, jnp.broadcast_to(alive, shape), init)
        if not (isinstance(init, np.ndarray | np.generic | float | int) and init == 0):
            start = self.length - 1 if self.reverse else 0
            at = factor if factor.ndim == 0 else factor[start]
            b = b.at[start].add(jnp.where(jnp.broadcast_to(alive, shape)[start], at * jnp.asarray(init, dtype), 0))
        r = Recurrence(Product(), 0, self.reverse, flags=True, steady=factor.ndim == 0)
        return recurrence(r, [factor, b, jnp.broadcast_to(~alive, shape)], (0, 0, 0), 0)[0]

    def _anew_by_lane(self, factor: Any, b: Any, alive: Any, init: Any) -> Any:
        """Each lane of a carry drops what was before at steps of its own."""
        init = jnp.broadcast_to(jnp.asarray(init, b.dtype), b.shape[1:])
        start = jnp.ones(init.shape, bool), jnp.ones_like(init), init
        return scan((alive, factor, b), _or_anew, init=start, reverse=self.reverse)[2]

    def _linear(self, k: int, consts: Sequence[Any], now: Sequence[Any], others: Mapping[int, Any], init: Any) -> _Linear:
        """The new carry k as a function of the old one."""
        jaxpr = self.body.jaxpr
        old = _Linear(jnp.zeros(jnp.shape(init), jnp.result_type(init)), fresh=True)
        mine = [old if j == k else others.get(j) for j in range(self.carries)]
        env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*self.body.consts, *consts, *mine, *now), strict=True))
        needed = self.body.needs([jaxpr.outvars[k]])
        for index, eqn in enumerate(jaxpr.eqns):
            if needed >> index & 1:
                operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
                linear = any(isinstance(x, _Linear) for x in operands)
                results = [_rule(eqn, operands)] if linear else run_equation(eqn, operands)
                env.update(zip(eqn.outvars, results, strict=True))
        out = jaxpr.outvars[k]
        new = out.val if isinstance(out, Literal) else env[out]
        if not isinstance(new, _Linear):
            return _Linear(jnp.asarray(new), jnp.zeros_like(old.b), jnp.zeros((), bool))
        if new.fresh:
            raise _NotLinear  # it never changes
        return new


def _or_anew(x: Any, y: Any) -> Any:
    """Of (alive, a, b): first x, then y, which may not look at what was before."""
    return x[0] & y[0], jnp.where(y[0], x[1] * y[1], 0), jnp.where(y[0], y[1] * x[2] + y[2], y[2])


def _rule(eqn: JaxprEqn, operands: Sequence[Any]) -> _Linear:
    name = eqn.primitive.name
    shape, dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    linear = [x for x in operands if isinstance(x, _Linear)]
    if any(x.extreme for x in linear) or any(x.b.shape != shape or x.b.dtype != dtype for x in linear):
        raise _NotLinear
    x, *other = operands
    if name in ("convert_element_type", "copy"):
        return x
    if name == "neg":
        return dataclasses.replace(x, b=-x.b, a=-_factor(x), fresh=False)
    if name in ("max", "min") and len(linear) == 1 and linear[0].fresh:
        return _Linear(jnp.asarray(next(o for o in operands if not isinstance(o, _Linear))), extreme=name)
    if name in ("add", "add_any", "sub"):
        return _sum(x, other[0], -1 if name == "sub" else 1)
    if name == "mul" and len(linear) == 1:
        (k,) = (o for o in operands if not isinstance(o, _Linear))
        mine = linear[0]
        return _Linear(mine.b * k, k if mine.a is None else mine.a * k, mine.alive)
    if name == "div" and isinstance(x, _Linear) and len(linear) == 1 and jnp.issubdtype(dtype, jnp.inexact):
        return _Linear(x.b / other[0], _factor(x) / other[0], x.alive)
    if name == "select_n" and not isinstance(x, _Linear):
        cases = [c if isinstance(c, _Linear) else _Linear(jnp.asarray(c), jnp.zeros_like(c), jnp.zeros((), bool)) for c in other]
        alive = [jnp.broadcast_to(jnp.ones((), bool) if c.alive is None else c.alive, shape) for c in cases]
        which = jnp.broadcast_to(x, shape)
        b = lax.select_n(which, *(c.b for c in cases))
        factors = [_factor(c) for c in cases] if len(linear) > 1 else [_factor(linear[0])]  # what is dropped has no factor
        a = factors[0] if len(factors) == 1 else lax.select_n(which, *(jnp.broadcast_to(f, shape) for f in factors))
        return _Linear(b, a, lax.select_n(which, *alive))
    raise _NotLinear


def _factor(x: _Linear) -> Any:
    return jnp.ones((), x.b.dtype) if x.a is None else x.a


def _sum(x: Any, y: Any, sign: int) -> _Linear:
    if isinstance(x, _Linear) and isinstance(y, _Linear):
        alive = None if x.alive is None or y.alive is None else x.alive | y.alive
        return _Linear(x.b + sign * y.b, _factor(x) + sign * _factor(y), alive)
    if isinstance(x, _Linear):
        return dataclasses.replace(x, b=x.b + sign * y, fresh=False)
    return dataclasses.replace(y, b=x + sign * y.b, a=y.a if sign > 0 else -_factor(y), fresh=False)


def _steady(closed: ClosedJaxpr, shapes: Mapping[str, Any]) -> set[str]:
    """The results, one number each, that do not depend on the step."""
    moving = set(closed.jaxpr.invars)
    for eqn in closed.jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in moving for v in eqn.invars):
            moving.update(eqn.outvars)
    outs = zip(sorted(shapes), closed.jaxpr.outvars, strict=True)
    return {n for n, v in outs if (isinstance(v, Literal) or v not in moving) and shapes[n].shape == ()}
