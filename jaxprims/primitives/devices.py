"""What the parts of several devices are together: the operator on parts, in the devices' order, by collectives.

For code that runs device by device: inside ``shard_map``, and where a call is divided (``divided``). Here an operator takes two
lists of leaves with a leading axis, as in ``scan_xla``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..tracing.varying import axes_of, vary
from .ordered import scan_xla

Names = tuple[str, ...]

LARGE = 1 << 18
"""Bytes of all other devices' parts from which on each device combines a share of them, so that twice a part's size is moved."""


def names_of(axis_name: Any) -> Names:
    """A mesh axis, or several, the first the slowest; none if that is None. Raises ValueError for what is none here."""
    if axis_name is None:
        return ()
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    check_names(names, axis_name)
    return names


def check_names(names: Sequence[Any], axis_name: Any) -> None:
    for name in names:
        try:
            jax.lax.axis_size(name)
        except (NameError, TypeError, ValueError):
            where = "axes of the mesh of the shard_map around the call"
            raise ValueError(f"axis_name must name {where}, got {axis_name!r:.100}") from None


def together(
    op: scan_xla.Op, leaves: Sequence[Any], names: Names, known: Sequence[str | None], axis: int | None, share: Names = ()
) -> list[Any]:
    """Each device's leaves, combined in the devices' order: the same on each.

    ``known``: the operator by name, leaf by leaf, where it does to a leaf what a name says. ``axis``: of the leaves, along which
    the operator does to each slice what it does to any. ``share``: mesh axes over which the results are sharded along that axis.
    """
    if axis is not None and share and share != names:
        return [own_share(x, axis, share) for x in together(op, leaves, names, known, axis)]
    by_name = [_collective(name, x.dtype) for name, x in zip(known, leaves, strict=True)]
    if all(by_name) and not (share and by_name != [jax.lax.psum] * len(leaves)):
        return [_by_name(collective, x, names, axis if share else None) for collective, x in zip(by_name, leaves, strict=True)]
    count, size = jax.lax.axis_size(names), sum(x.size * x.dtype.itemsize for x in leaves)
    if axis is None or not (share or size * (count - 1) >= LARGE):
        return scan_xla.reduce(op, gathered(leaves, names))
    n = leaves[0].shape[axis]
    shares = scan_xla.reduce(op, [jax.lax.all_to_all(_by_share(x, count, axis), names, 0, 0) for x in leaves])
    if share:
        return shares
    whole = [jax.lax.all_gather(x, names, axis=axis, tiled=True) for x in shares]
    return [jax.lax.slice_in_dim(x, 0, n, axis=axis) for x in whole]


def in_words(known: Sequence[str | None], dtypes: Sequence[Any]) -> str:
    """How :func:`together` combines such leaves."""
    if all(_collective(name, dtype) for name, dtype in zip(known, dtypes, strict=True)):
        return "an all-reduce"
    return "all-gathers of small parts, all-to-alls of shares of large ones, combined by the operator"


def on_pairs(combine: Callable[[Any, Any], Sequence[Any]]) -> scan_xla.Op:
    """An operator on two lists of leaves, on many such pairs: leaves with one more axis, leading."""
    fn = jax.vmap(lambda a, b: tuple(combine(a, b)))
    return lambda a, b: list(fn(list(a), list(b)))


def gathered(leaves: Sequence[Any], names: Names) -> list[Any]:
    """Each device's, in their order: one more axis, leading."""
    return [jax.lax.all_gather(x, names) for x in leaves]


def to_neighbour(x: Any, name: Any, by: int) -> Any:
    """What the device before this one has (``by`` 1), or the one behind it (-1); the last is before the first.

    ``ppermute`` numbers devices in the mesh's order of axes, whatever that of the names: it is told in the mesh's.
    """
    names = names_of(name)
    mesh = jax.sharding.get_abstract_mesh().axis_names
    ordered = sorted(names, key=lambda n: (mesh.index(n), "") if n in mesh else (len(n), n))  # d0, d1, ... of a divided call
    count = jax.lax.axis_size(names)
    numbers = np.arange(count).reshape([jax.lax.axis_size(n) for n in names])  # at their places in the mesh
    place = np.argsort(numbers.transpose([names.index(n) for n in ordered]).reshape(-1))
    pairs = [(int(place[i]), int(place[(i + by) % count])) for i in range(count)]
    return jax.lax.ppermute(x, tuple(ordered), pairs)


def replicated(leaves: Sequence[Any], names: Names) -> list[Any]:
    """Leaves that are the same on every device, typed as such: the first device's, and -0.0, which adds nothing, of others."""
    out = []
    for x in leaves:
        if not axes_of([x]) & set(names):
            out.append(x)
            continue
        kind = jnp.int8 if x.dtype == jnp.bool_ else x.dtype
        nothing = jnp.asarray(-0.0 if jnp.issubdtype(kind, jnp.inexact) else 0, kind)
        if jnp.issubdtype(kind, jnp.complexfloating):
            nothing = jax.lax.complex(*[jnp.asarray(-0.0, x.real.dtype)] * 2)
        first = jax.lax.axis_index(names) == 0
        out.append(jax.lax.psum(jnp.where(first, x.astype(kind), nothing), names).astype(x.dtype))
    return out


def before(op: scan_xla.Op, totals: Sequence[Any], names: Names, reverse: bool, flags: Any = None) -> tuple[list[Any], Any]:
    """What the devices before this one amount to (anything on the first), and whether this is the first one.

    ``flags``: does something on this device start anew?
    """
    device, count = jax.lax.axis_index(names), jax.lax.axis_size(names)
    restarts = None if flags is None else jax.lax.all_gather(flags, names)
    prefixes = scan_xla.scan(op, gathered(totals, names), reverse=reverse, flags=restarts)
    previous = device + 1 if reverse else device - 1
    at = jnp.clip(previous, 0, count - 1)
    return [jax.lax.dynamic_index_in_dim(p, at, keepdims=False) for p in prefixes], device == (count - 1 if reverse else 0)


def numbered(shape: tuple[int, ...], dtype: Any, names: Names) -> Any:
    """Along the first axis, the positions of this device's elements among those of all."""
    first = jax.lax.axis_index(names).astype(dtype) * shape[0]
    return first + vary(jax.lax.broadcasted_iota(dtype, shape, 0), axes_of([first]))


def with_positions(
    positions: Sequence[Any], arrays: Sequence[Any], masks: Sequence[int], names: Names, inner: tuple[int, ...] = ()
) -> tuple[list[Any], list[int]]:
    """f's arguments, all as arrays: where ``positions`` has a dtype, those of this device's elements among all."""
    n, given = arrays[0].shape[masks[0].bit_count()], iter(zip(arrays, masks, strict=True))
    out = [next(given) if dtype is None else (numbered((n, *inner), dtype, names), 0) for dtype in positions]
    return [x for x, _ in out], [mask for _, mask in out]


def _collective(name: str | None, dtype: Any) -> Callable[..., Any] | None:
    """What XLA has for it, with the same result to the bit, or for a sum of floats in another order."""
    kind = np.dtype(dtype).kind
    if name == "add" and kind != "b":
        return jax.lax.psum
    extremes: dict[str | None, Callable[..., Any]] = {"min": jax.lax.pmin, "max": jax.lax.pmax}
    return extremes.get(name) if kind not in "bc" else None


def _by_name(collective: Any, x: Any, names: Names, scattered: int | None) -> Any:
    """Halves are summed as float32, as kernels do it."""
    wide = x.astype(jnp.float32) if x.dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating) else x
    if collective is not jax.lax.psum and jnp.issubdtype(x.dtype, jnp.floating):
        return _extreme(collective, wide, names).astype(x.dtype)
    if scattered is None:
        return collective(wide, names).astype(x.dtype)
    return jax.lax.psum_scatter(wide, names, scatter_dimension=scattered, tiled=True).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _extreme(collective: Any, x: Any, names: Names) -> Any:
    """Of floats, as integers of the same order: what XLA does with NaN and -0 on the way depends on the platform. Those have no
    derivative: it is that of the devices whose number it is, which share it evenly."""
    key = scan_xla.key_of(x, "max" if collective is jax.lax.pmax else "min")
    return scan_xla.from_key(collective(key, names), x.dtype)


@_extreme.defjvp
def _extreme_jvp(collective: Any, names: Names, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    out = _extreme(collective, x, names)
    won = (x == out) | (jnp.isnan(x) & jnp.isnan(out))
    ties = jax.lax.psum(won.astype(x.dtype), names)
    return out, jax.lax.psum(jnp.where(won, t, 0) / ties, names)


def own_share(x: Any, axis: int, names: Names) -> Any:
    """Of what every device has, the part along ``axis`` that is this one's."""
    size = x.shape[axis] // jax.lax.axis_size(names)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(names) * size, size, axis)


def _by_share(x: Any, count: int, axis: int) -> Any:
    """[..., n, ...]: [count, ..., share, ...], a share for each device, the last filled up."""
    share = -(-x.shape[axis] // count)
    x = jnp.pad(x, [(0, share * count - x.shape[axis] if a == axis else 0) for a in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], count, share, *x.shape[axis + 1 :]), axis, 0)
