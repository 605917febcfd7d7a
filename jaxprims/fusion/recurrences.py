"""``lax.scan`` with a carry that is a linear recurrence: as one, in place of a loop of N steps.

A carry of several numbers, one for each lane of a ``vmap``, is as many recurrences, each along a row.

The new carry has to be ``a * c + b`` of the old one, with a and b of what else the step sees; or a maximum or minimum with it.
Where a step may drop the old carry (``where(done, 0, c)``) it starts anew there, whatever the carry was: NaN too. Carries may
look at each other, as long as they do not go round in a circle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..api.scan import scan
from ..primitives.avals import typed
from ..primitives.ordered.recurrence import NearOne, Product, Recurrence, recurrence
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import depending_on, has_rules, interpret, run_equation, scan_counts, value_of, variables
from ..tracing.labels import NUMBER_BY_NUMBER
from ..tracing.lanewise import one_lane
from .cut import count_of
from .graph import OUTSIDE, Graph, flat_graph
from .intervals import Interval, interval, intervals

FEWEST, FEWEST_OF_LANES = 2**9, 2**13
"""Steps below which XLA's loop is as fast; of several numbers at once, which it has in a vector, these times the steps."""

WIDEST = 16
"""Numbers of an array in a step, of which there will be one for each step, if the step's arguments have none so large."""


class _NotLinear(Exception):
    """The new carry is no such function of the old one."""


@dataclasses.dataclass
class _Linear:
    """``a * c + b`` of the old carry c; ``a`` is None for 1, ``b`` for 0. ``alive``: does it depend on c? None: always.
    ``extreme``: it is the maximum or minimum (the name of the primitive) of c and b. ``beyond``: a - 1, where it was given so, as
    in ``c + k * (x - c)``."""

    dtype: Any
    b: Any = None
    a: Any = None
    alive: Any = None
    extreme: str = ""
    fresh: bool = False  # the old carry itself
    beyond: Any = None


def as_recurrence(graph: Graph, eqn: JaxprEqn, given: Sequence[Interval]) -> Callable[..., list[Any]] | None:
    """A function of a scan's operands that does the same; None where the scan is something else, or short. ``given``: between
    which numbers the operands lie."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return None
    consts, carries = scan_counts(eqn)
    length, body, lanes = eqn.params["length"], eqn.params["jaxpr"], eqn.outvars[0].aval.shape if carries else ()
    if not carries or not isinstance(length, int) or not isinstance(body, ClosedJaxpr):
        return None
    if length < FEWEST or (lanes and length * count_of(lanes) < FEWEST_OF_LANES):
        return None
    if any(v.aval.dtype in (jnp.float16, jnp.bfloat16) for v in eqn.outvars[:carries]):
        return None  # which kernels would not round at each step
    if graph.with_rules and has_rules(body.jaxpr):
        return None
    rank = len(lanes)
    if any(v.aval.shape[:rank] != lanes for v in body.jaxpr.outvars) or (lanes and not _lie_in_rows(graph, eqn)):
        return None
    try:
        loop = _Loop(flat_graph(one_lane(body, lanes), barriers=False), consts, carries, bool(eqn.params["reverse"]), length)
        order = loop.order()
        solved = _over_lanes(lambda *xs: loop.run(order, xs), eqn, rank)
        every_factor = _over_lanes(lambda *xs: loop.factors(xs), eqn, rank)
        avals = jax.eval_shape(lambda *xs: _moved(xs, consts + carries, 0, rank), *(v.aval for v in eqn.invars))
        jax.eval_shape(solved, *avals)
        factors = flat_graph(jax.make_jaxpr(every_factor)(*avals))
    except (_NotLinear, Unsupported):
        return None
    between = intervals(factors, given)
    least_and_most = [interval(a, between) for a in factors.jaxpr.outvars]
    if any(low > 1 or high < -1 for low, high in least_and_most):
        return None  # products of them may be infinite where the carry is not
    small = all(low >= -1 and high <= 1 for low, high in least_and_most)

    def as_written(*operands: Any) -> list[Any]:
        return _moved(run_equation(eqn, _moved(operands, consts + carries, rank, 0)), carries, 0, rank)

    def instead(*operands: Any) -> list[Any]:
        operands = tuple(_moved(operands, consts + carries, 0, rank))
        if small:
            out = solved(*operands)
        else:
            bounded = jnp.all(jnp.stack([jnp.all(jnp.abs(a) <= 1) for a in every_factor(*operands)]))  # so are products of them
            out = lax.cond(bounded, solved, as_written, *operands)
        return [typed(x, v.aval) for x, v in zip(_moved(out, carries, rank, 0), eqn.outvars, strict=True)]

    return instead


def _lie_in_rows(graph: Graph, eqn: JaxprEqn) -> bool:
    """Are most of a loop's arrays transposed for it, as under ``vmap``? Where a step's lanes lie side by side, XLA's loop has
    vectors of them, and is as fast."""
    consts, carries = scan_counts(eqn)
    read = [v for v in eqn.invars[consts + carries :] if v.aval.ndim > 1]
    made = [v for v in eqn.outvars[carries:] if v in graph.users]
    in_rows = sum(_comes_in_rows(graph, v) for v in read) + sum(_goes_in_rows(graph, v, 0) for v in made)
    return 2 * in_rows > len(read) + len(made)


def _comes_in_rows(graph: Graph, v: Any) -> bool:
    """Is the steps' axis, the first one, the innermost of what was transposed?"""
    axis = 0
    while (eqn := graph.made_by(v)) is not None and eqn.primitive.name == "transpose":
        (v,), axis = eqn.invars, eqn.params["permutation"][axis]
    return axis == v.aval.ndim - 1


def _goes_in_rows(graph: Graph, v: Any, axis: int) -> bool:
    """Is the steps' axis the innermost of all that this is transposed to?"""
    users = [graph.eqns[u] for u in graph.users[v] if u != OUTSIDE]
    if len(users) < len(graph.users[v]) or any(e.primitive.name != "transpose" for e in users):
        return axis == v.aval.ndim - 1
    return all(_goes_in_rows(graph, e.outvars[0], e.params["permutation"].index(axis)) for e in users)


def _moved(xs: Sequence[Any], first: int, axis: int, to: int) -> list[Any]:
    """Arrays, the first ones as they are, the others with the steps' axis behind the lanes' or before them."""
    return [jnp.moveaxis(x, axis, to) if k >= first and jnp.ndim(x) > max(axis, to) else x for k, x in enumerate(xs)]


def _over_lanes(one: Callable[..., Any], eqn: JaxprEqn, rank: int) -> Callable[..., Any]:
    """A function of the scan's operands, lanes first, of that of one lane's."""
    consts, carries = scan_counts(eqn)
    in_axes = [0 if v.aval.ndim > (k >= consts + carries) else None for k, v in enumerate(eqn.invars)]
    for _ in range(rank):
        one = jax.vmap(one, in_axes=in_axes)
    return one


_IN_STEPS = NUMBER_BY_NUMBER | {"slice", "concatenate"}
"""What a step may do: what is as good done for all steps at once."""


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
        widest = max([WIDEST, *(count_of(v.aval.shape) for v in jaxpr.invars[self.consts :])])
        for e in jaxpr.eqns:
            if e.effects or e.primitive.name not in _IN_STEPS or any(count_of(v.aval.shape) > widest for v in e.outvars):
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
        return {v for atoms in ([atom], *(self.body.eqns[k].invars for k in self.body.needed([atom]))) for v in variables(atoms)}

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

    def factors(self, operands: Sequence[Any]) -> list[Any]:
        """What each carry is multiplied by, where it is by anything: one number, or one for each step. Raises _NotLinear where it
        depends on another carry."""
        consts, init = operands[: self.consts], operands[self.consts : self.consts + self.carries]
        xs = list(operands[self.consts + self.carries :])
        out: list[Any] = []
        for k in range(self.carries):
            others = {j: jnp.asarray(x) for j, x in enumerate(init) if j != k}

            def factor(now: Sequence[Any], others: Mapping[int, Any], k: int = k) -> list[Any]:
                a = self._linear(k, consts, now, others, init[k]).a
                return [] if a is None or not jnp.issubdtype(jnp.result_type(a), jnp.inexact) else [a]

            first = [x[0] for x in xs]
            closed = jax.make_jaxpr(factor)(first, others)
            if not closed.out_avals:
                continue
            (a,) = closed.jaxpr.outvars
            if not isinstance(a, Literal) and a in depending_on(closed.jaxpr, closed.jaxpr.invars[len(xs) :]):
                raise _NotLinear
            if not _steady(closed, {"a": closed.out_avals[0]}):
                out += jax.vmap(factor, in_axes=(0, None), axis_size=self.length)(xs, others)
            else:
                out += factor(first, others)
        return out

    def _solved(self, k: int, consts: Sequence[Any], init: Any, xs: Sequence[Any], before: Mapping[int, Any]) -> Any:
        """A carry after each step."""
        known = sorted(before)

        def step(now: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
            mine = self._linear(k, consts, now, dict(zip(known, others, strict=True)), init)
            found.append(mine.extreme)
            made = (("a", mine.a), ("b", mine.b), ("alive", mine.alive), ("beyond", mine.beyond))
            return {n: x for n, x in made if x is not None}

        found: list[str] = []
        others = [before[j] for j in known]
        first = [x[0] for x in xs], [x[0] for x in others]
        steady = _steady(jax.make_jaxpr(step)(*first), jax.eval_shape(step, *first))
        every = jax.vmap(step, axis_size=self.length)(xs, others)
        shape, dtype = (self.length,), jnp.result_type(init)
        b = jnp.broadcast_to(every["b"], shape).astype(dtype) if "b" in every else jnp.zeros(shape, dtype)
        one = step(*first)
        a, beyond = (one[n] if n in steady else every.get(n) for n in ("a", "beyond"))
        alive = every.get("alive")
        if found[-1] or (a is None and alive is None):
            op = {"max": jnp.maximum, "min": jnp.minimum}.get(found[-1], jnp.add)
            return scan(b, op, init=init, reverse=self.reverse)
        factors = [jnp.asarray(1 if a is None else a, dtype), *([] if beyond is None else [jnp.asarray(beyond, dtype)])]
        r = Recurrence(Product() if beyond is None else NearOne(), 0, self.reverse, steady=factors[0].ndim == 0)
        start = jnp.asarray(init, dtype)
        if alive is None:
            return recurrence(dataclasses.replace(r, init=True), [*factors, b, start])[0]
        alive = jnp.broadcast_to(alive, shape)
        if not (isinstance(init, np.ndarray | np.generic | float | int) and init == 0):
            at = self.length - 1 if self.reverse else 0
            (found_first,) = r.step.apply((), [x if x.ndim == 0 else x[at] for x in factors], [start])
            b = b.at[at].set(jnp.where(alive[at], b[at] + found_first, b[at]))
        return recurrence(dataclasses.replace(r, flags=True), [*factors, b, ~alive])[0]

    def _linear(self, k: int, consts: Sequence[Any], now: Sequence[Any], others: Mapping[int, Any], init: Any) -> _Linear:
        """The new carry k as a function of the old one."""
        jaxpr = self.body.jaxpr
        old = _Linear(jnp.result_type(init), fresh=True)
        mine = [old if j == k else others.get(j) for j in range(self.carries)]
        env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*self.body.consts, *consts, *mine, *now), strict=True))
        for eqn in (jaxpr.eqns[index] for index in self.body.needed([jaxpr.outvars[k]])):
            operands = [value_of(v, env) for v in eqn.invars]
            linear = any(isinstance(x, _Linear) for x in operands)
            results = [_rule(eqn, operands)] if linear else run_equation(eqn, operands)
            env.update(zip(eqn.outvars, results, strict=True))
        new = value_of(jaxpr.outvars[k], env)
        if not isinstance(new, _Linear):
            return _constant(new, old.dtype)
        if new.fresh:
            raise _NotLinear  # it never changes
        return new


def _rule(eqn: JaxprEqn, operands: Sequence[Any]) -> _Linear:
    name = eqn.primitive.name
    shape, dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    linear = [x for x in operands if isinstance(x, _Linear)]
    if shape or any(x.extreme or x.dtype != dtype for x in linear):
        raise _NotLinear
    x, *other = operands
    if name in ("convert_element_type", "copy"):
        return x
    if name == "neg":
        return _Linear(dtype, None if x.b is None else -x.b, -_factor(x), x.alive)
    if name in ("max", "min") and len(linear) == 1 and linear[0].fresh:
        return _Linear(dtype, next(o for o in operands if not isinstance(o, _Linear)), extreme=name)
    if name in ("add", "add_any", "sub"):
        return _sum(x, other[0], name == "sub", dtype)
    if name == "mul" and len(linear) == 1:
        (k,) = (o for o in operands if not isinstance(o, _Linear))
        (mine,) = linear
        return _Linear(dtype, None if mine.b is None else mine.b * k, k if mine.a is None else mine.a * k, mine.alive)
    if name == "div" and isinstance(x, _Linear) and len(linear) == 1 and jnp.issubdtype(dtype, jnp.inexact):
        return _Linear(dtype, None if x.b is None else x.b / other[0], _factor(x) / other[0], x.alive)
    if name == "select_n" and not isinstance(x, _Linear):
        cases = [c if isinstance(c, _Linear) else _constant(c, dtype) for c in other]
        alive = lax.select_n(x, *(jnp.ones((), bool) if c.alive is None else jnp.asarray(c.alive) for c in cases))
        b = lax.select_n(x, *(jnp.asarray(0 if c.b is None else c.b, dtype) for c in cases))
        if len(linear) == 1:  # what is dropped has no factor
            return dataclasses.replace(linear[0], b=b, alive=alive, fresh=False)
        mine = _Linear(dtype, b, lax.select_n(x, *(jnp.asarray(_factor(c), dtype) for c in cases)), alive)
        if any(c.beyond is not None for c in cases):
            beyond = (_factor(c) - 1 if c.beyond is None else c.beyond for c in cases)
            mine.beyond = lax.select_n(x, *(jnp.asarray(d, dtype) for d in beyond))
        return mine
    raise _NotLinear


def _constant(x: Any, dtype: Any) -> _Linear:
    """What does not depend on the carry."""
    return _Linear(dtype, jnp.asarray(x, dtype), np.zeros((), dtype), np.zeros((), bool))


def _factor(x: _Linear) -> Any:
    return np.ones((), x.dtype) if x.a is None else x.a


def _sum(x: Any, y: Any, minus: bool, dtype: Any) -> _Linear:
    if isinstance(x, _Linear) and isinstance(y, _Linear):
        if x.alive is not None or y.alive is not None:
            raise _NotLinear  # where one of the two is dropped the other is not
        other = -_factor(y) if minus else _factor(y)
        mine = _Linear(dtype, _added(x.b, y.b, minus), _factor(x) + other)
        if jnp.issubdtype(dtype, np.floating) and (x.a is None or (y.a is None and not minus)):
            mine.beyond = other if x.a is None else x.a
        return mine
    if isinstance(x, _Linear):
        return dataclasses.replace(x, b=_added(x.b, y, minus), fresh=False)
    if minus:
        return _Linear(dtype, _added(x, y.b, minus), -_factor(y), y.alive)
    return dataclasses.replace(y, b=_added(x, y.b, minus), fresh=False)


def _added(x: Any, y: Any, minus: bool) -> Any:
    """The sum or difference; None is 0."""
    if y is None:
        return x
    if x is None:
        return -y if minus else y
    return x - y if minus else x + y


def _steady(closed: ClosedJaxpr, shapes: Mapping[str, Any]) -> set[str]:
    """The results, one number each, that do not depend on the step."""
    moving = depending_on(closed.jaxpr, closed.jaxpr.invars)
    outs = zip(sorted(shapes), closed.jaxpr.outvars, strict=True)
    return {n for n, v in outs if (isinstance(v, Literal) or v not in moving) and shapes[n].shape == ()}
