"""A call whose elements, lanes or batch are sharded over devices: each device does its part, then the parts are combined.

XLA's partitioner asks how (``custom_partitioning``) once shardings are known, so nobody has to say where the arrays are. A family
says what an axis of an operand or a result is by a *factor*: ``b0, b1, ...`` its batch, ``l0, ...`` lanes that lie side by side,
``n`` its elements, ``r0, r1, ...`` an element's own axes, ``h`` the bins or segments of results; None is an axis that every
device needs whole. An axis ``=r0`` has no say: it is sharded as others of that factor are.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..operators.traced import Traced, followed
from ..tracing.varying import under_no_mesh
from .devices import Names

LONG = 16
"""Elements for each pair of devices from which on an axis may be filled up though a part of the devices divides it: if it is
sharded over those alone, as many elements as there are devices move to a neighbour."""

LONGEST = 2**31
"""Shardy reads no rule of an axis of so many."""

Factors = tuple[str | None, ...]
Room = tuple[int, int, int]
"""Along an axis: the first place that is taken, how many are, and how many there are."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The factors of every operand's and every result's axes. ``on_devices(axes, *operands)`` makes a device's part of the
    results from its part of the operands; ``axes``: the mesh axes over which each factor is sharded. ``communication``: what it
    takes to combine sharded elements, for explanations."""

    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    on_devices: Callable[..., list[Any]]
    communication: str  # in words
    fills: tuple[Any, ...] | None = None
    """Of each operand, a number that elements behind the last may be; None: there may be none."""
    marked: Callable[[], Marked] | None = None
    """The call of one operand more, which says which elements there are: where nothing else can."""
    windows: Mapping[str, Room] = dataclasses.field(default_factory=dict)
    """Of results, where they are among what ``on_devices`` makes along an axis that is sharded."""
    filled: str = "bgln"
    """Kinds of factors whose axes may be filled up."""
    in_front: bool = False
    """Are elements filled up before the first? They move to a neighbour then, as many as there are devices."""


Marked = tuple[int, Layout, Callable[..., Any]]
"""The operand's place, the layout, and the call."""

layouts: dict[Primitive, Callable[..., Layout]] = {}
"""For primitives that can be divided: from the operands' avals and the primitive's parameters. Of any other, each device does its
members of the batch."""


def batch_factors(rank: int, mask: int = -1) -> Factors:
    """Of the batch axes that an operand has; a result has all."""
    return tuple(f"b{a}" for a in range(rank) if mask >> a & 1)


def rest_whole(known: Sequence[str | None], aval: Any) -> Factors:
    """Factors of an operand of which these are the first axes'."""
    return (*known, *(None,) * (len(aval.shape) - len(known)))


def devices_of(ctx: Any) -> int:
    """Over how many devices XLA will partition what is being lowered; 1 inside ``shard_map``, and where it cannot ask how: a
    module that is exported can hold no function of this process; and it asks in a thread of its own, where numbers have the types
    that they have outside of ``jax.enable_x64(...)``."""
    context = ctx.module_context
    if getattr(getattr(context, "lowering_parameters", None), "for_export", False):
        return 1
    count = getattr(context.axis_context, "num_devices", 1)
    return 1 if count > 1 and jax.config.jax_enable_x64 != _x64_of_threads() else count


def _x64_of_threads() -> bool:
    """Has a new thread numbers of 64 bits?"""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return bool(thread.submit(lambda: jax.config.jax_enable_x64).result())


def devices_at_once(ctx: Any) -> int:
    """How many devices of this process run what is being lowered, each by itself or its part."""
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    count = getattr(context, "num_devices", 1) if mesh is None else mesh.size
    return 1 if count == 1 else min(count, jax.local_device_count("cpu"))


def lower(
    ctx: Any, operands: Sequence[Any], layout: Layout, whole: Callable[..., Any], count: int, before: Callable[..., Any] = tuple
) -> Any:
    """``whole``: the call as it was, of what ``before`` makes of the operands. XLA's partitioner gives devices parts of one size:
    where that takes more elements (lanes, members of a batch) than there are, the layout says of what; for that nothing moves."""
    devices = tuple(jax.devices()[:count])  # only their number matters: shardings are in terms of their order
    if layout.marked and _is_left(ctx.avals_in, layout, count):
        n = _sizes(ctx.avals_in, layout)["n"]
        at, layout, whole = layout.marked()
        before = lambda xs: (*xs[:at], jnp.ones(n, jnp.bool_), *xs[at:])  # noqa: E731
    avals = jax.eval_shape(before, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_in])
    rooms = _uneven(avals, layout, count)
    of_operands, of_results = (layout.operands, rooms), (layout.results, _among(layout.windows, rooms))
    fills, zeros = layout.fills or (0,) * len(avals), (0,) * len(layout.results)
    context = ctx.module_context
    rule = _rule(layout, count, _placed_shapes(avals, *of_operands), _placed_shapes(ctx.avals_out, *of_results))
    if rule is None:  # each of the devices all of it
        alone = context.replace(axis_context=dataclasses.replace(context.axis_context, num_devices=1))
        return mlir.lower_fun(lambda *xs: whole(*before(xs)), multiple_results=True)(ctx.replace(module_context=alone), *operands)
    call = custom_partitioning(lambda *xs: placed(whole(*taken(xs, *of_operands)), *of_results, zeros))
    call.def_partition(
        partition=lambda _, operands, results: _partition(layout, devices, rooms, operands, results),
        infer_sharding_from_operands=None,
        decode_shardings=False,
        sharding_rule=rule[0],
        **rule[1],
    )
    axes = dataclasses.replace(context.axis_context, device_assignment=devices)
    ctx = ctx.replace(module_context=context.replace(axis_context=axes))
    run = lambda *xs: list(taken(call(*placed(_apart(before(xs), *of_operands), *of_operands, fills)), *of_results))  # noqa: E731
    return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


def in_words(avals: Sequence[Any], layout: Layout, count: int) -> str:
    """What is moved where this many devices have parts of the elements, or of the grid."""
    filled = _uneven(avals, layout, count) or ("n" if layout.marked and _is_left(avals, layout, count) else "")
    left = [n for f, n in _sizes(avals, layout).items() if f[0] in "ng" and f not in filled and isinstance(n, int) and n % count]
    if not left or not layout.communication:
        return layout.communication
    return f"{layout.communication}; {count} devices do not divide {left[0]}: over so many of them, that axis is gathered"


def _sizes(avals: Sequence[Any], layout: Layout) -> dict[str, Any]:
    """Of the axes that may be sharded."""
    every = (pair for x, factors in zip(avals, layout.operands, strict=True) for pair in zip(factors, x.shape, strict=True))
    return {f: n for f, n in every if f is not None}


def _is_left(avals: Sequence[Any], layout: Layout, count: int) -> bool:
    """Would elements be filled up, if it were known with what?"""
    return layout.fills is None and "n" in _uneven(avals, dataclasses.replace(layout, fills=()), count)


def where_there(f: Traced, otherwise: Mapping[int, Any]) -> Traced:
    """f of one argument more, the last: is the element there? Where it is not, these results are these numbers."""

    def then(out: list[Any], there: Any) -> list[Any]:
        return [jnp.where(there, x, otherwise[k]) if k in otherwise else x for k, x in enumerate(out)]

    return followed(f, then, jax.ShapeDtypeStruct((), jnp.bool_))


def marked(
    layout: Callable[..., Layout],
    primitive: Primitive,
    avals: Sequence[Any],
    otherwise: Mapping[int, Any],
    *,
    call: Any,
    masks: tuple[int, ...],
    rank: int,
) -> Marked:
    """Of a call whose first operands are the arrays that f reads. Where an element is not there, these of f's results are these
    numbers."""
    k = call.num_arrays
    there = jax.ShapeDtypeStruct((avals[0].shape[masks[0].bit_count()],), np.bool_)
    call = dataclasses.replace(call, f=where_there(call.f, otherwise), positions=(*call.positions, None))
    params = {"call": call, "masks": (*masks[:k], 0, *masks[k:]), "rank": rank}
    found = layout((*avals[:k], there, *avals[k:]), **params)
    return k, dataclasses.replace(found, fills=(0,) * (len(avals) + 1)), functools.partial(primitive.bind, **params)


def _uneven(avals: Sequence[Any], layout: Layout, count: int) -> dict[str, Room]:
    """Of factors that no number of these devices divides, and of many elements that all of them together do not."""
    if layout.fills is None:
        return {}

    def uneven(f: str, n: Any) -> bool:
        if f[0] not in layout.filled or not isinstance(n, int) or n % count == 0:
            return False
        if f[0] == "g":
            return n >= count**2  # every device has cells
        return math.gcd(n, count) == 1 < n or (f == "n" and n >= LONG * count**2)

    sizes = {f: (n, -n % count) for f, n in _sizes(avals, layout).items() if uneven(f, n)}
    return {f: (more if layout.in_front and f == "n" else 0, n, n + more) for f, (n, more) in sizes.items()}


def _among(windows: Mapping[str, Room], rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Where results are, of axes that may be filled up."""
    return {**rooms, **{f: (first, n, rooms.get(f, (0, 0, total))[2]) for f, (first, n, total) in windows.items()}}


def taken(arrays: Sequence[Any], factors_of: Sequence[Factors], rooms: Mapping[str, Room]) -> tuple[Any, ...]:
    """What is in the places that are taken."""
    everywhere = slice(None)

    def part(x: Any, factors: Factors) -> Any:
        found = [rooms.get(f or "") for f in factors]
        return x[tuple(everywhere if r is None else slice(r[0], r[0] + r[1]) for r in found)] if any(found) else x

    return tuple(map(part, arrays, factors_of))


def _apart(arrays: Sequence[Any], factors_of: Sequence[Factors], rooms: Mapping[str, Room]) -> tuple[Any, ...]:
    """What is filled up, as arrays of this call alone: XLA's partitioner (XLA 0.10) fills up an array that several ask for once,
    with what the first of them wants behind it: one call's -inf, or what a user pads with, would be another's zeros."""
    pairs = zip(arrays, factors_of, strict=True)
    return tuple(jax.lax.optimization_barrier(x) if any(f in rooms for f in factors if f) else x for x, factors in pairs)


def placed(
    arrays: Sequence[Any], factors_of: Sequence[Factors], rooms: Mapping[str, Room], fills: Sequence[Any]
) -> tuple[Any, ...]:
    """The other way round."""

    def one(x: Any, factors: Factors, fill: Any) -> Any:
        found = [rooms.get(f or "", (0, 0, 0)) for f in factors]
        around = [(first, total - first - n, 0) for first, n, total in found]
        return jax.lax.pad(x, np.array(fill, x.dtype), around) if any(map(any, around)) else x

    return tuple(map(one, arrays, factors_of, fills))


Shape = tuple[int, ...]


def _placed_shapes(avals: Sequence[Any], factors_of: Sequence[Factors], rooms: Mapping[str, Room]) -> list[Shape]:
    return [
        tuple(rooms.get(f or "", (0, 0, n))[2] for f, n in zip(factors, x.shape, strict=True))
        for x, factors in zip(avals, factors_of, strict=True)
    ]


def _rule(layout: Layout, count: int, operands: Sequence[Shape], results: Sequence[Shape]) -> tuple[str, dict[str, Any]] | None:
    """Shardy's rule, its factors that are not to be sharded, and the sizes of those that are one of several of an axis. None if
    there is no rule: a size of it has 31 bits, and no two of these make the axis."""
    private: list[str] = []
    sizes: dict[str, int] = {}
    number = itertools.count()

    def word(factor: str | None, size: int) -> str:
        own = f"p{next(number)}" if factor is None else f"q{next(number)}" if factor[0] == "=" else factor
        parts = [own] if size < LONGEST else [own, f"{own}_minor"]
        private.extend(parts if factor is None else ())
        if size >= LONGEST:
            sizes.update(zip(parts, _in_two(size, count), strict=True))
        return own if len(parts) == 1 else f"({' '.join(parts)})"

    def side(factors_of: Sequence[Factors], shapes: Sequence[Shape]) -> str:
        return ", ".join(" ".join(map(word, *pair)) for pair in zip(factors_of, shapes, strict=True))

    rule = f"{side(layout.operands, operands)} -> {side(layout.results, results)}"
    return None if 1 in sizes.values() else (rule, {"need_replication_factors": tuple(private), **sizes})


def _in_two(n: int, count: int) -> tuple[int, int]:
    """Two that make n, the first of which as many of the devices divide as divide n; n and 1 if there are none."""
    rest = n // math.gcd(n, count)
    small = [d for d in range(1, math.isqrt(rest) + 1) if rest % d == 0]
    fit = (d for d in (*small, *(rest // d for d in reversed(small))) if max(d, n // d) < LONGEST)
    d = next(fit, 1)
    return n // d, d


def _partition(layout: Layout, devices: Sequence[Any], rooms: Mapping[str, Room], operands: Any, results: Any) -> Any:
    """What XLA's partitioner asks for: the mesh, what one device does, shardings of results and operands."""
    arrays, factors_of = (*operands, *results), (*layout.operands, *layout.results)
    mesh, specs = _mesh(devices, [(x.sharding, x.shape) for x in arrays])
    axes: dict[str, Names] = {}
    sizes: dict[str, int] = {}
    for factors, spec, x in zip(factors_of, specs, arrays, strict=True):
        for f, names, size in zip(factors, spec, x.shape, strict=True):
            if f is not None and f[0] != "=":
                sizes[f] = size
                axes[f] = axes.get(f) or names
    used: set[str] = set()
    for f in sorted(axes, key=lambda f: (f == "h", f)):  # the batch, lanes, elements; bins, which may be where elements are
        parts = math.prod(mesh.shape[name] for name in axes[f])
        free = used - set(axes.get("n", ())) if f == "h" else used
        if free & set(axes[f]) or sizes[f] % parts:
            axes[f] = ()
        used |= set(axes[f])

    if not axes.get("n"):
        axes["h"] = ()  # each device makes all bins

    def sharded(factors: Factors) -> NamedSharding:
        return NamedSharding(mesh, P(*(None if f is None else axes.get(f.removeprefix("="), ()) or None for f in factors)))

    ins, outs = (tuple(map(sharded, side)) for side in (layout.operands, layout.results))

    given, made = ({f: r for f, r in of.items() if not axes.get(f)} for of in (rooms, _among(layout.windows, rooms)))

    def on_device(*parts: Any) -> Any:
        with under_no_mesh():  # none that is in use types a device's own arrays
            out = layout.on_devices(axes, *taken(parts, layout.operands, given))  # XLA finds that these are as they were
            return placed(out, layout.results, made, (0,) * len(out))

    return mesh, on_device, outs, ins


def _mesh(devices: Sequence[Any], shardings: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[Mesh, list[list[Names]]]:
    """A mesh in which these shardings can be said, and each of them as mesh axes for each axis of its array (none for one that
    cannot)."""
    tiles = [_tiles(s, shape, devices) for s, shape in shardings]
    best: tuple[int, Any] = (-1, None)
    for grid in sorted(set(itertools.permutations(_primes(len(devices))))):
        specs = [[_names(tile, grid) for tile in of_axes] for of_axes in tiles]
        said = sum(names is not None for spec in specs for names in spec)
        best = max(best, (said, (grid, specs)), key=lambda pair: pair[0])
        if said == sum(map(len, specs)):
            break
    grid, specs = best[1]
    mesh = Mesh(np.array(devices).reshape(grid), tuple(f"d{a}" for a in range(len(grid))))
    return mesh, [[names or () for names in spec] for spec in specs]


def _tiles(sharding: Any, shape: tuple[int, ...], devices: Sequence[Any]) -> list[np.ndarray]:
    """For each axis of an array, which tile each device has."""
    like = (len(devices),) * len(shape)  # which every sharding divides
    tile, slices = sharding.shard_shape(like), sharding.devices_indices_map(like)
    return [np.array([(slices[d][a].start or 0) // tile[a] for d in devices]) for a in range(len(shape))]


def _names(tile: np.ndarray, grid: tuple[int, ...]) -> Names | None:
    """The grid's axes, the slowest first, whose coordinates number the tiles; None if none do."""
    at = tile.reshape(grid)
    origin = (0,) * len(grid)
    weights = {a: int(at[tuple(int(b == a) for b in range(len(grid)))]) for a in range(len(grid))}
    used = sorted((a for a, w in weights.items() if w), key=lambda a: -weights[a])
    coordinates = np.indices(grid)
    number = np.ravel_multi_index([coordinates[a] for a in used], [grid[a] for a in used]) if used else np.zeros(grid, int)
    return tuple(f"d{a}" for a in used) if at[origin] == 0 and np.array_equal(number, at) else None


def _primes(n: int) -> tuple[int, ...]:
    """The prime factors: any division of the devices into axes is a division of these."""
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return tuple(out) or (1,)
