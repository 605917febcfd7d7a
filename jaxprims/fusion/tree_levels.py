"""One level of the tree of slices that ``lax.associative_scan`` is traced to."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Literal

from .graph import Graph


class Level(NamedTuple):
    """Of ``size`` elements x: the first of them with the ``rest`` of the even results, if there are any, and the ``odd``
    results, put together."""

    x: Any
    axis: int
    size: int
    odd: Any
    rest: Any
    inside: tuple[int, ...]  # equations


def level_of(graph: Graph, out: Any) -> Level | None:
    eqn = graph.made_by(out)
    if eqn is None or eqn.primitive.name not in ("add", "or", "add_any"):
        return None
    first_pad, other_pad = (_interior(graph, v) for v in eqn.invars)
    if first_pad is None or other_pad is None or first_pad[0] != other_pad[0]:
        return None
    axis, by_start = first_pad[0], dict([first_pad[1:], other_pad[1:]])
    if by_start.keys() != {0, 1}:
        return None
    even, odd, size = by_start[0], by_start[1], out.aval.shape[axis]
    if (even.aval.shape[axis], odd.aval.shape[axis]) != ((size + 1) // 2, size // 2):
        return None
    whole = graph.made_by(even)
    parts = [even] if whole is None or whole.primitive.name != "concatenate" else list(whole.invars)
    first = graph.made_by(parts[0])
    if len(parts) > 2 or first is None or first.primitive.name != "slice" or sliced(first, axis) != (0, 1, 1):
        return None
    x = first.invars[0]
    if x.aval.shape != out.aval.shape or (whole is not first and whole is not None and whole.params.get("dimension") != axis):
        return None
    rest = parts[1] if len(parts) > 1 and parts[1].aval.size else None
    made = (out, *eqn.invars, even, parts[0], *([parts[1]] if len(parts) > 1 and rest is None else []))
    inside = tuple(graph.producer[v] for v in made if v in graph.producer)
    return Level(x, axis, size, odd, rest, inside)


def _interior(graph: Graph, v: Any) -> tuple[int, int, Any] | None:
    """Of what is padded with zeros between the elements of an axis: this, the first element's place, and what it is."""
    eqn = graph.made_by(v)
    if eqn is None or eqn.primitive.name != "pad" or not all(isinstance(n, int) for n in v.aval.shape):
        return None
    x, number = eqn.invars
    config = [tuple(how) for how in eqn.params["padding_config"]]
    axes = [a for a, how in enumerate(config) if how != (0, 0, 0)]
    if len(axes) != 1 or not isinstance(number, Literal) or number.val != 0:
        return None
    low, high, between = config[axes[0]]
    return (axes[0], low, x) if between == 1 and high in (0, 1) else None


def sliced(eqn: JaxprEqn, axis: int) -> tuple[int, int, int] | None:
    """Start, limit and stride of a slice along one axis alone."""
    shape, strides = eqn.invars[0].aval.shape, eqn.params["strides"] or (1,) * eqn.invars[0].aval.ndim
    every = list(zip(eqn.params["start_indices"], eqn.params["limit_indices"], strides, strict=True))
    others = all(how == (0, n, 1) for a, (how, n) in enumerate(zip(every, shape, strict=True)) if a != axis)
    return every[axis] if others else None
