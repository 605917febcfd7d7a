"""Inside ``shard_map``: the mesh axes over which an array varies; and those over which its type says that it is sharded.

A jaxpr is typed with them, so a function is traced for the axes of everything that it will meet, and is run on arrays that vary
over all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.sharding import AxisType

Axes = frozenset[str]


def axes_of(xs: Iterable[Any]) -> Axes:
    """The axes over which any of these arrays or avals varies."""
    types = [getattr(jax.typeof(x) if hasattr(x, "aval") else x, "manual_axis_type", None) for x in xs]
    return frozenset().union(*(t.varying for t in types if t is not None))


def vary(x: Any, axes: Axes) -> Any:
    """The array, made to vary over ``axes`` too."""
    missing = tuple(sorted(axes - axes_of([x])))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def element_aval(shape: Sequence[int], dtype: Any, axes: Axes) -> Any:
    """What a function is traced for."""
    return jax.typeof(vary(jnp.zeros(shape, dtype), axes)) if axes else jax.ShapeDtypeStruct(shape, dtype)


def sharded_axes(x: Any) -> list[int]:
    """The array's axes that are sharded over explicit axes of a mesh."""
    return [k for k, names in enumerate(jax.typeof(x).sharding.spec) if names is not None]


def is_whole(aval: Any) -> bool:
    """Does its type say nothing of parts, neither where they are, on explicit axes, nor that they are still to be added?"""
    spec = aval.sharding.spec
    return not (spec.unreduced or spec.reduced or any(names is not None for names in spec))


def placed(arrays: Iterable[Any]) -> bool:
    """Has an axis of theirs a place on a mesh with explicit axes? No bins have one."""
    return any(map(sharded_axes, arrays))


def of_rows(x: Any, index: Any) -> Any:
    """On explicit axes, the sharding of ``x[index]``: each row where its number is. None without such axes."""
    place = jax.typeof(index).sharding
    if not placed([index]):
        return None
    return place.update(spec=jax.sharding.PartitionSpec(*place.spec, *jax.typeof(x).sharding.spec[1:]))


def placed_as(x: Any, aval: Any) -> Any:
    """``x``, where an array of this type is on explicit axes."""
    return x if jax.typeof(x).sharding.spec == aval.sharding.spec else jax.sharding.reshard(x, aval.sharding)


def beside(x: Any, data: Any) -> Any:
    """``x`` [N, ...], its first axis where that of ``data`` is on explicit axes."""
    if not placed([x, data]):
        return x
    aval, place = jax.typeof(x), jax.typeof(data).sharding
    spec = jax.sharding.PartitionSpec(place.spec[0], *aval.sharding.spec[1:])
    return placed_as(x, aval.update(sharding=place.update(spec=spec)))


def under_no_mesh() -> Any:
    """For what is traced inside no mesh is in use."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def in_context(x: Any) -> Any:
    """``x`` on automatic axes, where these are all that is in use: what eager derivatives kept comes back on explicit ones."""
    types = jax.sharding.get_abstract_mesh().axis_types
    if set(types) != {AxisType.Auto} or jax.typeof(x).sharding.mesh.axis_types == types:
        return x
    return jax.sharding.reshard(x, jax.sharding.PartitionSpec())


def by_partitioner(primitive: Primitive, arrays: Sequence[Any], **params: Any) -> list[Any]:
    """``primitive.bind(*arrays, **params)``, with results where their types say; in it explicit axes of a mesh are as automatic
    ones, so that XLA's partitioner says where things are, in derivatives too: those of eager calls are taken of a jitted one, for
    what they keep is on these axes."""
    if not placed(arrays):
        return list(primitive.bind(*arrays, **params))
    mesh = next(jax.typeof(x).sharding.mesh for x in arrays if sharded_axes(x))
    return _by_partitioner(list(arrays), primitive=primitive, params=tuple(params.items()), mesh=mesh)


@functools.partial(jax.jit, static_argnames=("primitive", "params", "mesh"))
def _by_partitioner(arrays: list[Any], *, primitive: Primitive, params: tuple[tuple[str, Any], ...], mesh: Any) -> list[Any]:
    def fn(*xs: Any) -> list[Any]:
        return list(primitive.bind(*xs, **dict(params)))

    with jax.sharding.use_abstract_mesh(mesh):
        out_sharding = [x.sharding for x in jax.make_jaxpr(fn)(*arrays).out_avals]
        return list(jax.sharding.auto_axes(fn, out_sharding=out_sharding)(*arrays))
