"""``stencil``: any function of a neighbourhood, on all cells of a grid."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arguments.positions import positions
from ..arguments.types import ArrayLike, AxisName, Function, PyTree
from ..calls import sharded_stencil
from ..calls.kept import kept
from ..calls.stencil import check_stencil
from ..calls.stencil_form import run

BLOCK = 8
"""Steps that are made together where their number is only known when the call runs."""


@kept("xs", "constants")
def stencil(
    f: Function,
    xs: PyTree,
    *,
    boundary: str | Sequence[str] = "edge",
    fill_value: ArrayLike = 0,
    axes: int | Sequence[int] | None = None,
    steps: ArrayLike = 1,
    constants: PyTree = None,
    axis_name: AxisName = None,
) -> PyTree:
    """``f`` of the neighbourhood of every cell of a grid; of its results again, ``steps`` times in all.

    Args:
      f: a function of a view for each array of ``xs``, then for each of ``constants``. ``view[-1, 0]`` is what the cell one
        before on the first axis holds: offsets are integers that are known when f is traced, one for each axis, and may differ
        from array to array. It returns a pytree of one cell's results.
      xs: an array, or a tuple or list of arrays (or pytrees of them), an argument each; all with one grid. :data:`positions`
        among them: the cell's coordinates, a tuple of int32, one for each axis.
      boundary: what is read beyond the grid: "edge", "wrap", "reflect", "symmetric" as :func:`numpy.pad` has them; "constant",
        ``fill_value``; or nothing, since cells whose neighbourhood is not all inside are left out ("valid": the result shrinks)
        or keep their value ("keep": f's results are then like ``xs``). One for all axes, or a tuple with one for each.
      fill_value: a number, for "constant".
      axes: the grid's axes, in the order of the offsets (default: all). What the others hold is one cell: a slice, as in
        :func:`scan`. Results have the grid's axes in the same places, or first if they have fewer axes.
      steps: how often; f's results (structure, shapes, dtypes as ``xs``) are the next step's ``xs``. An integer, or a traced one
        (of which negative ones are 0), which excludes "valid" and reverse differentiation.
      constants: more arrays, which steps do not change.
      axis_name: inside ``shard_map``, the mesh axis over which each axis of the grid is sharded, or None: a tuple with one for
        each; one name stands for the first axis. Devices exchange halos once for a block of steps.

    Returns:
      A pytree like f's results, each ``[*grid, *cell]``, in the order of ``axes``.

    Raises:
      TypeError: offsets that are no integers, leaves that are not numbers, results that do not fit ``steps`` or "keep".
      ValueError: offsets of another rank, unknown boundaries, arrays of different grids, a fill value that a dtype cannot hold.

    Cost: work O(steps · cells), span O(steps · cells / T); every cell is read from memory and written once for as many steps as
    pay (on a CPU as many planes stay in its caches as these steps want, on a GPU tiles in shared memory); memory beside the
    result: rings of rows for each thread of a CPU, and one more grid where there are more steps than that (two with "valid").
    Gradients of several steps remember O(√steps) grids, or all of them where the grid shrinks.

    The result has the same bits for any number of threads, and however many steps are made in a pass.

    Source: Larsen 2010 (Barracuda), stencils by way of fast memory; temporal blocking: Wonnacott 2000, Matsumura et al. 2020;
    adjoint stencils: Hückelheim et al. 2019.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.stencil(lambda a: a[-1] + a[1], jnp.array([1, 2, 3, 4]), boundary="constant").tolist()
    [2, 4, 6, 3]
    >>> heat = lambda t: t[0, 0] + 0.1 * (t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])
    >>> [round(x, 3) for x in jp.stencil(heat, jnp.eye(3), steps=2, boundary="wrap")[0].tolist()]
    [0.44, 0.28, 0.28]
    """
    count = _steps(steps)
    again = not isinstance(count, int) or count != 1
    check = functools.partial(
        check_stencil, f, boundary=boundary, fill_value=fill_value, axes=axes, constants=constants, like_xs=again
    )
    call, make = check(xs), run
    if axis_name is not None:
        names = sharded_stencil.mesh_axes(axis_name, len(call.grid))
        sharded_stencil.check_boundary(names, boundary)
        check = functools.partial(check, first_cell=functools.partial(sharded_stencil.first_cell, names))
        make = functools.partial(sharded_stencil.sharded, names=names)
        call = check(xs)
    if isinstance(count, int):
        return jax.tree.unflatten(call.tree, make(call, count))
    if any(w.shrink != (0, 0) for w in call.window):
        raise ValueError('steps must be known when the function is traced where boundary is "valid": shapes depend on it')

    def block(n: int, arrays: Any) -> list[Any]:
        rest = iter(arrays)
        given = jax.tree.map(lambda x: x if x is positions else next(rest), xs, is_leaf=lambda x: x is None)
        return list(make(check(given), n))

    arrays = call.arrays[: len(call.closed.out_avals)]
    arrays = lax.fori_loop(0, count // BLOCK, lambda _, a: block(BLOCK, a), arrays)
    arrays = lax.fori_loop(0, count % BLOCK, lambda _, a: block(1, a), arrays)
    return jax.tree.unflatten(call.tree, arrays)


def _steps(steps: Any) -> Any:
    if isinstance(steps, (bool, np.bool_)) or (not hasattr(steps, "__index__") and not isinstance(steps, jax.Array)):
        raise TypeError(f"steps must be an integer, got {steps!r:.100}")
    try:
        count = operator.index(steps)
    except TypeError:  # a tracer, or no integer
        if not isinstance(steps, jax.core.Tracer) or steps.shape != () or not jnp.issubdtype(steps.dtype, jnp.integer):
            raise TypeError(f"steps must be one integer, got {steps!r:.100}") from None
        return jnp.maximum(steps, 0).astype(steps.dtype if steps.dtype.kind == "i" and steps.dtype.itemsize > 4 else jnp.int32)
    if count < 0:
        raise ValueError(f"steps must not be negative, got {count}")
    if count > jnp.iinfo(dtype := jnp.result_type(int)).max:
        raise ValueError(f"steps must be an integer that {dtype} can hold, got {count}")
    return count
