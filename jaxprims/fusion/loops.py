"""The kernels of a body: its loops as one call of the library's own functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..api.genhist import genhist
from ..api.reduce import reduce
from ..api.scan import scan
from ..arguments.bins import Bins
from ..arguments.monoid import Monoid
from ..arguments.positions import positions
from ..calls.mapped import mapped, recurring, scanned
from ..operators.operator import MAX_STRUCT_SLOTS
from ..primitives.avals import typed
from ..primitives.batches import over_batch
from ..primitives.tangents import replaced
from ..specs.large import MOST_TOGETHER
from ..tracing.labels import REDUCTIONS, Labels
from ..tracing.lanewise import OWN
from .body import ENOUGH_ROWS, MOST_MADE_SIDE_BY_SIDE, Body, own_numbers
from .cut import NEAR
from .graph import Graph
from .sites import Site, extreme, is_filled_with
from .sorts import is_sort


def run(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    """The sites' results, from the arrays that the body reads; ``into``: the ``targets``."""
    return _FAMILIES[body.sites[0].family](body, read, into)


def targets(body: Body) -> list[Any]:
    """The arrays that the body's histograms add to, None where these hold nothing but identities; what is beside a recurrence."""
    if body.sites[0].family == "recurrence":
        return [x for s in body.sites for x in s.beside]
    return [_target(body.graph, s) if s.family == "histogram" else None for s in body.sites]


def _target(graph: Graph, site: Site) -> Any:
    if site.op in (jnp.maximum, jnp.minimum):
        neutral = extreme("least" if site.op is jnp.maximum else "greatest", site.into.aval.dtype)
    else:
        neutral = int(site.op is jnp.multiply)
    return None if is_filled_with(graph, site.into, neutral) else site.into


# --- reductions and scans -----------------------------------------------------------------------------------------------------


def _reduction(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    first = body.innermost
    count = len(body.sites[0].sizes) - first
    op = _together(body.sites)
    if body.combined:
        out = _combined(_of_rows(body, read, op, *body.combined), op, range(body.batch, body.combined[0]))
        return _typed(body, (x[0] for x in out))

    def row(elements: Any, f: Callable[..., Any]) -> Any:
        return reduce(elements, op, axis=tuple(range(count)), map=f)

    out = _combined(_over_rows(body, read, first, row), op, range(body.batch, first))
    return _typed(body, (x[-1] for x in out))  # of a pair its position


def _combined(parts: Any, op: Callable[..., Any], loops: Sequence[int]) -> Any:
    """What each turn of these loops has given, as one."""
    return reduce(parts, op, axis=tuple(loops)) if loops else parts


def _of_rows(body: Body, read: Sequence[Any], op: Callable[..., Any], outer: int, first: int) -> Any:
    """A reduction whose elements are short rows, along the loops from ``first`` on, for each turn of those before ``outer``."""
    last = len(body.sites[0].sizes)
    arrays, labels, _ = _operands(body, read, 0)
    streamed = [n for n, k in enumerate(labels) if outer in k]

    def one(*xs: Any) -> Any:
        def f(*row: Any) -> Any:
            mine = replaced(xs, streamed, row)

            def values(*mine: Any) -> Any:
                return tuple(tuple(v) for v in body.evaluate(mine, _no_position))

            for k in reversed(range(first, last)):
                values = jax.vmap(values, in_axes=tuple(0 if k in mine else None for mine in labels))
            made = jax.tree.map(lambda x: x.reshape(-1, *x.shape[last - first :]), values(*mine))
            parts = [jax.tree.map(lambda x, n=n: x[n], made) for n in range(jax.tree.leaves(made)[0].shape[0])]
            return functools.reduce(op, parts)

        return reduce(tuple(xs[n] for n in streamed), op, axis=tuple(range(first - outer)), map=f)

    return _batched(one, outer, labels)(*arrays)


def _no_position(loop: int) -> Any:
    raise ValueError("a position in a row that is an element")


def _scanning(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    site, op = body.sites[0], _together(body.sites)

    def row(elements: Any, f: Callable[..., Any]) -> Any:
        return scan(elements, op, axis=0, map=f, reverse=site.reverse)

    return _typed(body, (x[0] for x in _over_rows(body, read, len(site.sizes) - 1, row)))


def finished(body: Body, read: Sequence[Any], then: Callable[..., list[Any]], wanted: Sequence[Any]) -> list[Any]:
    """What ``then`` makes of scans' results, of the types ``wanted``. Sites whose operator is ``last`` pass on what it needs."""
    site, op = body.sites[0], _together(body.sites)

    def row(elements: Any, f: Callable[..., Any]) -> Any:
        def alike(*element: Any) -> Any:
            values = [jnp.asarray(v) for (v,) in f(*element)]
            return tuple((jnp.broadcast_to(v.reshape(v.shape[max(0, v.ndim - len(site.lanes)) :]), site.lanes),) for v in values)

        return scanned(alike, op, then, elements, site.reverse)

    out = _over_rows(body, read, len(site.sizes) - 1, row)
    return [typed(x, aval) for x, aval in zip(out, wanted, strict=True)]


def _recurrence(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    call = body.sites[0].eqn.params["call"]
    rest = list(into)
    flags = rest.pop(0) if call.flags else None

    def row(elements: Any, f: Callable[..., Any]) -> Any:
        return recurring(call, f, elements, flags, rest[0] if rest else None)

    return _typed(body, [_over_rows(body, read, 0, row)])


def _typed(body: Body, results: Iterable[Any]) -> list[Any]:
    """The sites' results, of the types that their equations say."""
    return [typed(x, s.eqn.outvars[0].aval) for x, s in zip(results, body.sites, strict=True)]


def _operands(body: Body, read: Sequence[Any], first: int) -> tuple[list[Any], list[Labels], list[int]]:
    """What is read, and the positions of loops before ``first``, where they are wanted or nothing else says how many there are:
    arrays, their axes in the order of the loops, with their labels; and which loops these are."""
    labels = [k for _, k in body.leaves]
    arrays = [_arranged(x, k) for x, k in zip(read, labels, strict=True)]
    along = {label for mine in labels for label in mine}
    counted = [k for k in range(first) if k in body.counted or k not in along]
    return [*arrays, *(jnp.arange(body.sites[0].sizes[k]) for k in counted)], [*labels, *((k,) for k in counted)], counted


def _over_rows(body: Body, read: Sequence[Any], first: int, row: Callable[[Any, Callable[..., Any]], Any]) -> Any:
    """``row(elements, f)`` for the loops from ``first`` on, batched over those before."""
    sizes = body.sites[0].sizes
    arrays, labels, counted = _operands(body, read, first)
    if all(max(k, default=OWN) < first for k in labels):  # elements that have nothing but their positions
        arrays, labels = [*arrays, jnp.zeros(sizes[first:], np.uint8)], [*labels, tuple(range(first, len(sizes)))]
    along = [n for n, k in enumerate(labels) if max(k, default=OWN) >= first]
    by_place = [n for n in along if n in _read_by_place(body)]
    streamed = [n for n in along if n not in by_place]
    arrays = replaced(arrays, streamed, [_spread(arrays[n], labels[n], sizes, first) for n in streamed])

    def one(*xs: Any) -> Any:
        elements = [xs[n] for n in streamed] or [jnp.zeros(sizes[first:], np.uint8)]
        wants_position = bool(by_place) or any(s.positioned for s in body.sites) or any(k >= first for k in body.counted)
        if wants_position and any(x.shape[len(sizes) - first :] != body.sites[0].lanes for x in elements):
            elements.append(jnp.zeros(sizes[first:], np.uint8))  # or positions would be arrays, too

        def f(*element: Any) -> Any:
            mine = replaced(xs, streamed, element[: len(streamed)])
            flat = element[-1] if wants_position else None
            for n in by_place:
                mine[n] = _at(xs[n], (_coordinate(flat, sizes[first:], k - first) for k in sorted(labels[n]) if k >= first))

            def position(loop: int) -> Any:
                if loop < first:
                    return mine[len(body.leaves) + counted.index(loop)]
                return _coordinate(flat, sizes[first:], loop - first)

            values = body.evaluate(mine[: len(body.leaves)], position)
            return tuple((*v, flat) if s.positioned else tuple(v) for v, s in zip(values, body.sites, strict=True))

        return row((*elements, positions) if wants_position else tuple(elements), f)

    return _batched(one, first, labels)(*arrays)


FEWEST_ALONG = 8
"""Numbers of rows from which on vectors go along them where others are gathered, element by element."""


def _read_by_place(body: Body) -> set[int]:
    """Leaves of rows that are reduced with others that are gathered: not taken apart, for several elements at once. What is
    sharded stays where it is."""
    graph = body.graph
    gathers = [k for k in body.taken if graph.eqns[k].primitive.name == "gather" and body.numbers[k] >= FEWEST_ALONG]
    if not gathers or jax.device_count() > 1 or not any(graph.eqns[k].primitive.name in REDUCTIONS for k in body.taken):
        return set()
    return {n for n, leaf in enumerate(body.leaves) if own_numbers(*leaf) >= FEWEST_ALONG}


def _at(x: Any, place: Iterable[Any]) -> Any:
    return x.at[tuple(place)].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _spread(x: Any, labels: Sequence[int], sizes: Sequence[int], first: int) -> Any:
    """Along all loops from ``first`` on, whose axes lead, after those of others."""
    batch = [k for k in sorted(labels) if 0 <= k < first]
    loops = range(first, len(sizes))
    wide = jnp.expand_dims(x, [len(batch) + k - first for k in loops if k not in labels])
    own = wide.shape[len(batch) + len(loops) :]
    return jnp.broadcast_to(wide, (*x.shape[: len(batch)], *(sizes[k] for k in loops), *own))


def _together(sites: Sequence[Site]) -> Callable[[Any, Any], Any]:
    """Their operators side by side: on tuples with a tuple for each, of a value, or of it and its position."""
    ops = [(s.op.op if isinstance(s.op, Monoid) else s.op, s.positioned) for s in sites]

    def op(a: Any, b: Any) -> Any:
        return tuple(f(x, y) if pairs else (f(x[0], y[0]),) for (f, pairs), x, y in zip(ops, a, b, strict=True))

    return op


def _arranged(x: Any, labels: Sequence[int]) -> Any:
    """Labelled axes first, in the order of the loops, then the body's own."""
    axes = _order(labels)
    return x if axes == list(range(len(axes))) else jnp.transpose(x, axes)


def _order(labels: Sequence[int]) -> list[int]:
    return sorted(range(len(labels)), key=lambda a: labels[a] if labels[a] != OWN else len(labels) + 64)


def _coordinate(flat: Any, sizes: Sequence[int], loop: int) -> Any:
    """One loop's position, from that in all of them."""
    behind = math.prod(sizes[loop + 1 :])
    at = flat if behind == 1 else lax.div(flat, jnp.asarray(behind, flat.dtype))  # positions are not negative
    return at if loop == 0 else lax.rem(at, jnp.asarray(sizes[loop], flat.dtype))


# --- histograms, maps ---------------------------------------------------------------------------------------------------------


def _histograms(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    def row(elements: Any, values: Callable[..., list[list[Any]]], *given: Any) -> Any:
        dests = iter(given)

        def f(*element: Any) -> Any:
            return tuple(_updates(s, roots) for s, roots in zip(body.sites, values(*element), strict=True))

        bins = [Bins(_bins(s), s.op, None, None if d is None else next(dests)) for s, d in zip(body.sites, into, strict=True)]
        return genhist(f, elements, bins)

    return _typed(body, _over_flat(body, read, body.batch, row, [x for x in into if x is not None]))


def _over_flat(body: Body, read: Sequence[Any], first: int, row: Callable[..., Any], given: Sequence[Any] = ()) -> Any:
    """``row(elements, values, *given)`` for the loops from ``first`` on as one, batched over those before."""
    arrays, labels, counted = _operands(body, read, first)

    def one(*xs: Any) -> Any:
        mine, rest = xs[: len(body.leaves)], xs[len(body.leaves) :]
        elements, values = _flat(body, mine, first, dict(zip(counted, rest, strict=False)))
        return row(elements, values, *rest[len(counted) :])

    return _batched(one, first, [*labels, *(tuple(range(first)) for _ in given)])(*arrays, *given)


def _batched(one: Callable[..., Any], loops: int, labels: Sequence[Sequence[int]]) -> Callable[..., Any]:
    """The function of a row on all of them: batched over the first loops, which lead the axes of what has their labels."""
    return over_batch(one, [sum(1 << k for k in mine if 0 <= k < loops) for mine in labels], loops)


def _flat(
    body: Body, arrays: Sequence[Any], first: int = 0, outer: Mapping[int, Any] = MappingProxyType({})
) -> tuple[tuple[Any, ...], Callable[..., list[list[Any]]]]:
    """The loops from ``first`` on as one: the elements, and the body's roots as a function of one. What is not along every one of
    them is read by position. ``outer``: the positions of the other loops."""
    sizes = body.sites[0].sizes[first:]
    n, rank = math.prod(sizes), len(sizes)
    labels = [tuple(x - first for x in k if x >= first) for _, k in body.leaves]
    by_place = _read_by_place(body)
    partial = [m for m, k in enumerate(labels) if k and (len(k) < rank or m in by_place)]
    streamed = [m for m, k in enumerate(labels) if len(k) == rank and m not in partial]
    wants_position = bool(partial) or any(k >= first for k in body.counted)
    elements = [arrays[m].reshape(n, *arrays[m].shape[rank:]) for m in streamed] or [jnp.zeros(n, np.uint8)]

    def values(*element: Any) -> list[list[Any]]:
        flat = element[-1] if wants_position else None
        mine = replaced(arrays, streamed, element[: len(streamed)])
        for m in partial:
            mine[m] = _at(arrays[m], (_coordinate(flat, sizes, k) for k in sorted(labels[m])))
        return body.evaluate(mine, lambda loop: outer[loop] if loop < first else _coordinate(flat, sizes, loop - first))

    return ((*elements, positions) if wants_position else tuple(elements)), values


def _mapping(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    def row(elements: Any, values: Callable[..., list[list[Any]]]) -> Any:
        return mapped(lambda *element: tuple(v for (v,) in values(*element)), elements, registers=registers)

    registers = MOST_MADE_SIDE_BY_SIDE if any(is_sort(s.eqn) for s in body.sites) else MAX_STRUCT_SLOTS
    sizes = body.sites[0].sizes
    first = body.innermost if math.prod(sizes[body.innermost :]) >= ENOUGH_ROWS else 0
    while jax.device_count() > 1 and math.prod(sizes[first + 1 :]) >= ENOUGH_ROWS:  # they may share any of the axes
        first += 1
    out = _over_flat(body, read, first, row)
    return _typed(body, (_placed(x, s) for x, s in zip(out, body.sites, strict=True)))


def _placed(x: Any, site: Site) -> Any:
    """A map's result, of loops as one and its own axes, in the order of its own."""
    ((var, labels),) = site.roots
    order = _order(labels)
    x = x.reshape([var.aval.shape[a] for a in order])
    return x if order == sorted(order) else jnp.transpose(x, np.argsort(order).tolist())


ROWS_TOGETHER, TOGETHER = 16, 1024
"""Rows that a kernel makes at once, and numbers that they have: what is done once for a row is done for several of them."""


FEWEST_FAR = 256
"""Bytes of a row from which on rows that come from memory are made one after the other."""


def _may_be_spread(body: Body) -> bool:
    """Have few rows no more in common than a number, which may be read for each? Then they are rows like those around them."""
    loops = set(range(len(body.sites[0].sizes)))
    partly = [leaf for leaf in body.leaves if not loops.isdisjoint(leaf[1]) and not loops <= set(leaf[1])]
    return body.batch == 0 and body.widest >= 8 and all(own_numbers(*leaf) == 1 for leaf in partly)


def _rows(body: Body, read: Sequence[Any], into: Sequence[Any]) -> list[Any]:
    first, sizes = body.innermost, body.sites[0].sizes
    devices = jax.device_count()
    if devices == 1 and math.prod(sizes[first:]) < ROWS_TOGETHER and _may_be_spread(body):
        first = 0
    while first + 1 < len(sizes) and (devices > 1 or math.prod(sizes[first + 1 :]) >= ENOUGH_ROWS):
        first += 1
    count = math.prod(sizes[first:])
    each = -(-count // devices)  # if the rows are sharded
    row_bytes = sum(own_numbers(*x) * x[0].aval.dtype.itemsize for x in body.read_and_written)
    together = max(1, min(ROWS_TOGETHER, each, int(TOGETHER // body.widest), int(MOST_TOGETHER // row_bytes)))
    if row_bytes >= FEWEST_FAR and row_bytes * math.prod(sizes) > NEAR:
        together = 1

    def row(elements: Any, f: Callable[..., Any]) -> Any:
        def values(*element: Any) -> Any:
            return tuple(v for (v,) in f(*element))

        arrays = [jnp.arange(count).reshape(sizes[first:]) if x is positions else x for x in elements]
        lying = [x.reshape(count, *x.shape[len(sizes) - first :]) for x in arrays]
        if body.side_by_side:
            return mapped(values, lying, registers=MOST_MADE_SIDE_BY_SIDE)
        return mapped(values, lying, rows=together)

    out = _over_rows(body, read, first, row)
    return _typed(body, (x.reshape(s.eqn.outvars[0].aval.shape) for x, s in zip(out, body.sites, strict=True)))


def _bins(site: Site) -> tuple[int, ...]:
    shape = site.eqn.invars[0].aval.shape
    return tuple(shape[site.kept : site.kept + site.eqn.invars[1].aval.shape[-1]])


def _updates(site: Site, roots: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """The index and the value of an element's update; several of them with a leading axis."""
    clipped = site.eqn.params["mode"].name == "CLIP"
    indices, values = roots[0::2], roots[1::2]
    parts = []
    for k, n in enumerate(_bins(site)):
        each = [jnp.clip(i[k], 0, n - 1) if clipped else i[k] for i in indices]
        parts.append(each[0] if len(each) == 1 else jnp.stack(each))
    return tuple(parts), values[0] if len(values) == 1 else jnp.stack(values)


_FAMILIES: dict[str, Callable[..., list[Any]]] = {
    "reduce": _reduction,
    "scan": _scanning,
    "recurrence": _recurrence,
    "histogram": _histograms,
    "map": _mapping,
    "rows": _rows,
}
