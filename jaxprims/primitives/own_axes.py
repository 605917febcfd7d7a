"""A map whose elements are arrays (rows, say), the axes of which are sharded over devices.

Each device makes its part of every element, and what is reduced along such an axis is the devices' together: a softmax of rows
that lie on several devices is a kernel for the maximum of each device's part of a row, one for the sum and one for the result,
with an all-reduce of a number for each row between them. The rows themselves, which one kernel would want, stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from ..tracing import elementwise
from ..tracing.jaxprs import REDUCED_BY, capturing, interpret, value_of, variables
from ..tracing.labels import MOVES, REDUCTIONS, Mixed, sources
from . import devices, divided
from .ordered.scan_xla import OPERATIONS

_SLICES = frozenset({"gather", "dynamic_slice"})

Axis = tuple[Var, int]


def factors(jaxpr: Jaxpr) -> Callable[[Any], divided.Factors]:
    """Of each variable: a factor for each axis, the same for axes that go together, None for what is wanted whole."""
    above: dict[Axis, Axis] = {}

    def top(x: Axis) -> Axis:
        while x in above:
            x = above[x]
        return x

    def axes(*atoms: Any) -> list[Axis]:
        return [(v, a) for v in variables(atoms) for a, n in enumerate(v.aval.shape) if n != 1]

    whole: set[Axis] = set()
    for eqn in jaxpr.eqns:
        mixed = set(axes(*eqn.invars, *eqn.outvars))
        if eqn.primitive.name in elementwise.NAMES | MOVES | REDUCTIONS | _SLICES:
            for v, a in axes(*eqn.outvars):
                try:
                    found = [(eqn.invars[k], there) for k, there in _sources(eqn, a) if not isinstance(eqn.invars[k], Literal)]
                except Mixed:
                    continue
                mixed -= {(v, a), *found}
                above |= {top(x): top((v, a)) for x in found if top(x) != top((v, a))}
            if eqn.primitive.name in REDUCTIONS:
                mixed -= {(eqn.invars[0], a) for a in eqn.params["axes"]}
        whole |= mixed
    every = [*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    for v in every:
        tops = [top(x) for x in axes(v)]
        whole |= {x for x in tops if tops.count(x) > 1}  # a diagonal
    numbers = {x: k for k, x in enumerate(dict.fromkeys(top(x) for x in axes(*every)))}
    kept = {x: f"r{k}" for x, k in numbers.items() if x not in {top(x) for x in whole}}
    return lambda v: tuple(kept.get(top((v, a))) if (v, a) in axes(v) else None for a in range(len(v.aval.shape)))


def after(captured: divided.Factors, elements: Iterable[divided.Factors]) -> divided.Factors:
    """Of an array that is captured: where elements have a factor too, the array is moved to where they are."""
    given = {f for factors in elements for f in factors}
    return tuple(f"={f}" if f is not None and f in given else f for f in captured)


def _sources(eqn: JaxprEqn, axis: int) -> Sequence[tuple[int, int]]:
    """As ``labels.sources``, and of a row that is taken out at a place."""
    if eqn.primitive.name != "dynamic_slice":
        return sources(eqn, axis)
    if eqn.outvars[0].aval.shape[axis] != eqn.invars[0].aval.shape[axis]:
        raise Mixed
    return [(0, axis)]


Values = Mapping[Var, Any]


def in_parts(
    jaxpr: Jaxpr,
    over: Mapping[str, devices.Names],
    arrays: Values,
    captured: Values,
    kernel: Callable[[Callable[[Values], list[Any]], Values, Values], list[Any]],
) -> list[Any]:
    """This device's part of the results. ``over``: the mesh axes over which each factor is sharded. ``kernel(f, arrays,
    captured)`` makes ``f(values)`` of every element: values are the element's part of each array, and what is captured. It is
    called for all the reductions that can be made of what is known, again and again, then for the results."""
    own, counts = factors(jaxpr), {f: lax.axis_size(names) for f, names in over.items() if names}

    def local_shape(v: Any) -> tuple[int, ...]:
        return tuple(n // counts.get(f or "", 1) for n, f in zip(v.aval.shape, own(v), strict=True))

    def names(v: Any, axes: Sequence[int]) -> devices.Names:
        return tuple(name for a in axes for name in over.get(own(v)[a] or "", ()))

    known, given = dict(arrays), dict(captured)
    reduced: dict[Var, tuple[str, devices.Names]] = {}  # over several devices: how, and which
    for eqn in jaxpr.eqns:
        (v, *_), name = eqn.outvars, eqn.primitive.name
        if name == "iota" and (mine := names(v, [at := eqn.params["dimension"]])):
            first = lax.axis_index(mine) * local_shape(v)[at]
            given[v] = lax.broadcasted_iota(v.aval.dtype, local_shape(v), at) + first.astype(v.aval.dtype)
        elif name in REDUCTIONS and (mine := names(eqn.invars[0], eqn.params["axes"])):
            reduced[v] = name, mine

    while missing := [v for v in jaxpr.outvars if v not in known]:
        made: list[Var] = []

        def f(values: Values, missing: Sequence[Var] = missing, made: list[Var] = made) -> list[Any]:
            env, parts = dict(values), dict[Var, Any]()
            for eqn in jaxpr.eqns:
                v = eqn.outvars[0]
                if v not in env and all(x in env for x in variables(eqn.invars)):
                    xs = [value_of(x, env) for x in eqn.invars]
                    (parts if v in reduced else env).update(zip(eqn.outvars, _equation(eqn, xs, local_shape(v)), strict=True))
            made[:] = parts if any(v not in env for v in missing) else dict.fromkeys(missing)
            return [parts[v] if v in parts else env[v] for v in made]

        for v, x in zip(made, kernel(f, known, given), strict=True):
            known[v] = _together(x, *reduced[v]) if v in reduced else x
    return [known[v] for v in jaxpr.outvars]


def side_by_side(jaxpr: Jaxpr) -> Callable[[Any], divided.Factors]:
    """As :func:`factors`, of axes that nothing is reduced or counted along: parts of results are made of those of operands."""
    own = factors(jaxpr)
    along = {own(eqn.invars[0])[a] for eqn in jaxpr.eqns if eqn.primitive.name in REDUCTIONS for a in eqn.params["axes"]}
    along |= {own(eqn.outvars[0])[eqn.params["dimension"]] for eqn in jaxpr.eqns if eqn.primitive.name == "iota"}
    return lambda v: tuple(None if f in along else f for f in own(v))


def narrowed(jaxpr: Jaxpr, parts: Mapping[str, int], own: Callable[[Any], divided.Factors]) -> Jaxpr:
    """The function of a part of each array: of as many as there are along each factor. ``own``: as :func:`side_by_side`."""

    def local(v: Any) -> jax.ShapeDtypeStruct:
        shape = tuple(n // parts.get(f or "", 1) for n, f in zip(v.aval.shape, own(v), strict=True))
        return jax.ShapeDtypeStruct(shape, v.aval.dtype)

    n = len(jaxpr.constvars)

    def f(*args: Any) -> list[Any]:
        return interpret(jaxpr, args[:n], args[n:], lambda eqn, xs: _equation(eqn, xs, local(eqn.outvars[0]).shape))

    return capturing(jax.make_jaxpr(f)(*map(local, (*jaxpr.constvars, *jaxpr.invars))).jaxpr, n)


def _equation(eqn: JaxprEqn, xs: Sequence[Any], shape: Sequence[int]) -> Sequence[Any]:
    """On a part of the operands, of which the (first) result has this shape."""
    if eqn.primitive.name in _SLICES:
        whole = zip(eqn.params["slice_sizes"], eqn.invars[0].aval.shape, xs[0].shape, strict=True)
        sizes = tuple(mine if size == full else size for size, full, mine in whole)
        return [eqn.primitive.bind(*xs, **{**eqn.params, "slice_sizes": sizes})]
    if eqn.primitive.name in ("reshape", "squeeze", "expand_dims"):
        return [xs[0].reshape(shape)]
    if eqn.primitive.name == "broadcast_in_dim":
        return [lax.broadcast_in_dim(xs[0], shape, eqn.params["broadcast_dimensions"])]
    if eqn.primitive.name == "iota":
        return [lax.broadcasted_iota(eqn.params["dtype"], shape, eqn.params["dimension"])]
    results = eqn.primitive.bind(*xs, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _together(x: Any, how: str, names: devices.Names) -> Any:
    name = REDUCED_BY[how]
    return devices.together(lambda a, b: [OPERATIONS[name](a[0], b[0])], [x], names, [name], None)[0]
