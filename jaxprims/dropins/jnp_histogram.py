"""``bincount``, ``histogram``, ``histogram2d`` and ``histogramdd``: the same as ``jax.numpy``'s, in one pass over the data.

One traced function, of ``api/bin_finder.py``, makes an element's bin inside the histogram's kernel; no array of bin numbers is
ever in memory. What the kernels do not do (complex data, no bins at all, arguments that are wrong) is left to ``jax.numpy``,
so errors are its own.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..api.bin_finder import bin_finder
from ..api.genhist import genhist
from ..arguments.bins import Bins
from ..arguments.checks import dtype_of, sizes_of
from ..arguments.types import ArrayLike, PyTree
from ..ir.program import dtype_name
from ..primitives.held import held
from ..tracing.jaxprs import EARLY
from ..tracing.varying import axes_of, vary

__all__ = ["bincount", "histogram", "histogram2d", "histogramdd"]


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: jax.sharding.NamedSharding | jax.sharding.PartitionSpec | None = None,
) -> jax.Array:
    """Counts the occurrences of each value in an array of integers, like :func:`jax.numpy.bincount`.

    Args:
      x: int [N]. Negative values count as 0, values from ``length`` on are dropped.
      weights: number [N], summed instead of ones.
      minlength: the least length of the result where ``length`` is not given.
      length: the length of the result; needed under :func:`jax.jit`. Default: the largest value + 1.
      out_sharding: as in ``jax.numpy``.

    Returns:
      int32 [length] (int64 with ``jax_enable_x64``), or of ``weights``' dtype.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N + length) work, O(log N) span, one read of ``x``; a second where ``length`` must be found.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.bincount(jnp.array([0, 1, 1, 3]), length=5)
    Array([1, 2, 0, 1, 0], dtype=int32)
    """
    plain = functools.partial(jnp.bincount, x, weights, minlength, length=length, out_sharding=out_sharding)
    if out_sharding is not None or not is_real(x) or np.ndim(x) != 1 or x.dtype.kind not in "iub":
        return plain()
    if weights is not None and not (is_number(weights) and np.shape(weights) == x.shape and weights.dtype != bool):
        return plain()
    x = jnp.asarray(x)
    try:
        minlength = operator.index(minlength)
        if length is None:
            length = max(minlength, int(_extent((x,))[0][1]) + 1) if x.size else minlength
        length = operator.index(length)
    except TypeError:  # no integer, or a traced one
        return plain()
    return _bincount(x, weights if weights is None else jnp.asarray(weights), length) if length > 0 else plain()


@functools.partial(jax.jit, static_argnames="length", inline=EARLY)
def _bincount(x: jax.Array, weights: jax.Array | None, length: int) -> jax.Array:
    index_dtype = np.int32 if length < 2**31 else np.int64

    def f(x: jax.Array, weight: Any) -> tuple[jax.Array, Any]:
        if x.dtype != bool:
            # clipped before it is narrowed, so that no large value turns into a small one; one kernel serves every length
            most = min(jnp.iinfo(index_dtype).max, jnp.iinfo(x.dtype).max)
            x = jnp.where(x < 0, 0, jnp.where(x > most, most, x))  # no `clip`, of whose integers `jet` makes floats
        return x.astype(index_dtype), weight

    return _sum_by(f, x, weights, length, jnp.result_type(int))


def histogram(
    a: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArrayLike | Sequence[ArrayLike | None] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
    **options: object,
) -> tuple[jax.Array, jax.Array]:
    """A 1-dimensional histogram, like :func:`jax.numpy.histogram`, many times as fast.

    Bin i holds the x with ``edges[i] <= x < edges[i + 1]``, the last bin ``x == edges[-1]`` too; others and NaN are dropped.
    Every element's bin is exactly the one of ``jax.numpy``. Counts are exact, where those of ``jax.numpy`` stop at 2^24 in
    float32, at 2048 in float16.

    Args:
      a: real, of any shape [...]; integers are converted to floats first.
      bins: the number of bins, or edges [num_bins + 1].
      range: (lo, hi) of equal bins; default the least and the greatest element. Not used where ``bins`` are edges.
      weights: number, of ``a``'s shape, summed instead of ones.
      density: divide, so that the integral is 1.
      options: what else the installed ``jax.numpy``'s has, which then does it all: ``out_sharding`` in some versions.

    Returns:
      (histogram [num_bins], edges [num_bins + 1]), both of the dtype to which ``a`` and ``weights`` are promoted.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N + num_bins) work for equal bins (also when given as edges), O(N log num_bins) for others; O(log N) span; one read
    of ``a`` and ``weights``, one more of ``a`` where the range must be found; no temporary arrays of N elements.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> counts, edges = jp.histogram(jnp.array([0.0, 1.0, 1.5, 4.0]), 4)
    >>> counts
    Array([1., 2., 0., 1.], dtype=float32)
    >>> edges
    Array([0., 1., 2., 3., 4.], dtype=float32)
    """
    spec = _spec(bins)
    if options or spec is None or not is_real(a) or not _weighable(weights, np.shape(a)):
        return jnp.histogram(a, bins, range, weights, density, **options)
    dtype = _promoted(a, weights)
    x = _flat(a)
    edges = _counted_by((x,), (spec,), (range,), dtype)
    counts = _count((x,), edges, None if weights is None else _flat(weights), dtype, _equal((spec,)), True)
    if density:
        counts = counts / jnp.diff(edges[0]) / counts.sum()
    return counts, edges[0]


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArrayLike | Sequence[ArrayLike | None] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A 2-dimensional histogram, like :func:`jax.numpy.histogram2d`.

    Args:
      x, y: real [N], the points' coordinates.
      bins: number of bins or edges: one for both axes, or a sequence of one for each.
      range, weights, density: as in :func:`histogramdd`.

    Returns:
      (histogram [nx, ny], edges of x [nx + 1], edges of y [ny + 1]).

    Raises and cost: as :func:`histogramdd`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> counts, _, _ = jp.histogram2d(jnp.array([0.0, 1.0, 2.0]), jnp.array([0.0, 2.0, 2.0]), bins=2)
    >>> counts
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    if is_real(x) and is_real(y) and np.ndim(x) == 1 and np.shape(x) == np.shape(y):
        specs = _specs(bins, 2)
        if specs is None and not _is_scalar(bins) and len(bins) > 2:
            specs = _specs([jnp.asarray(bins)] * 2, 2)
        columns = jnp.asarray(x, dtype_of(x)), jnp.asarray(y, dtype_of(y))  # one array of both has no weak type
        found = _histogramdd(columns, specs, range, weights, density)
        if found is not None:
            return found[0], *found[1]
    return jnp.histogram2d(x, y, bins, range, weights, density)


def histogramdd(
    sample: PyTree,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArrayLike | Sequence[ArrayLike | None] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[jax.Array, list[jax.Array]]:
    """A histogram of points in D dimensions, like :func:`jax.numpy.histogramdd`.

    Args:
      sample: real [N, D].
      bins: number of bins, or a sequence of D numbers or arrays of edges.
      range: a sequence of D, each (lo, hi) or None (the least and the greatest element); None for all.
      weights: number [N], summed instead of ones.
      density: divide, so that the integral is 1.

    Returns:
      (histogram [n1, ..., nD], list of D arrays of edges). Counts are int32 (int64 with ``jax_enable_x64``); a weighted
      histogram, densities and edges are of the dtype to which ``sample`` and ``weights`` are promoted.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N D + n1 ... nD) work for equal bins, O(log N) span; one read of ``sample``, one more where a range must be found.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> counts, edges = jp.histogramdd(jnp.array([[0.0, 0.0], [1.0, 2.0], [1.0, 1.0]]), bins=(1, 2))
    >>> counts
    Array([[1, 2]], dtype=int32)
    """
    if is_real(sample) and np.ndim(sample) == 2:
        found = _histogramdd((jnp.asarray(sample),), _specs(bins, np.shape(sample)[1]), range, weights, density)
        if found is not None:
            return found
    return jnp.histogramdd(sample, bins, range, weights, density)


def _histogramdd(
    columns: tuple[jax.Array, ...], specs: list[Any] | None, range: Any, weights: Any, density: Any
) -> tuple[jax.Array, list[jax.Array]] | None:
    """None: a case for ``jax.numpy``."""
    if specs is None or not specs or not _weighable(weights, columns[0].shape[:1]):
        return None
    ranges = [None] * len(specs) if range is None else list(range)
    if len(ranges) != len(specs) or not all(r is None or np.shape(r) == (2,) for r in ranges):
        return None
    dtype = _promoted(*columns, weights)
    edges = _counted_by(columns, specs, ranges, dtype)
    counted = jnp.result_type(int) if weights is None else dtype
    counts = _count(columns, edges, weights if weights is None else jnp.asarray(weights), counted, _equal(specs), False)
    if density:
        volume = functools.reduce(jnp.multiply.outer, [jnp.diff(e) for e in edges])
        counts = counts.astype(dtype) / volume / counts.sum().astype(dtype)
    return counts, list(edges)


def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArrayLike | Sequence[ArrayLike | None] | None = None,
    weights: ArrayLike | None = None,
) -> jax.Array:
    """The edges of the bins of :func:`histogram`, like :func:`jax.numpy.histogram_bin_edges`.

    Args:
      a: real, of any shape [...].
      bins: the number of bins, or edges [num_bins + 1].
      range: (lo, hi) of equal bins; default the least and the greatest element.
      weights: accepted, not needed.

    Returns:
      [num_bins + 1], of the dtype to which ``a`` is promoted.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N + num_bins) work, O(log N) span: one read of ``a`` where the range must be found, else none.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.histogram_bin_edges(jnp.array([0.0, 1.0, 4.0]), 4).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    spec = _spec(bins)
    if spec is None or not is_real(a):
        return jnp.histogram_bin_edges(a, bins, range, weights)
    return _edges((_flat(a),), (spec,), (range,), _promoted(a))[0]


# --- arguments -------------------------------------------------------------------------------------------------------------


def _is_scalar(v: Any) -> bool:
    return not hasattr(v, "__len__") or getattr(v, "ndim", 1) == 0


def _flat(v: Any) -> jax.Array:
    if np.ndim(v) == 1:  # ravel copies
        return v if isinstance(v, jax.Array) else jnp.asarray(v)
    return jnp.ravel(v)


def is_number(v: Any) -> bool:
    return is_real(v) or bool(jnp.issubdtype(dtype_of(v), np.complexfloating))


def is_real(v: Any) -> bool:
    """Whether it is an array or a scalar whose dtype the kernels know."""
    try:
        dtype_name(dtype_of(v))
    except (KeyError, TypeError):
        return False
    return True


def _weighable(weights: Any, shape: tuple[int, ...]) -> bool:
    return weights is None or (is_number(weights) and np.shape(weights) == shape)


def _promoted(*arrays: Any) -> np.dtype:
    """The inexact dtype to which ``jax.numpy`` promotes them. (That of weak types alone is theirs, not the default.)"""
    types = tuple((dtype_of(a), bool(getattr(a, "weak_type", type(a) in (int, float)))) for a in arrays if a is not None)
    return _inexact(types, bool(jax.config.jax_enable_x64))


@functools.cache
def _inexact(types: tuple[tuple[Any, bool], ...], x64: bool) -> Any:
    def promoted(*xs: Any) -> Any:
        return jnp.exp(functools.reduce(jnp.add, xs))

    return jax.eval_shape(promoted, *(jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in types)).dtype


def _spec(bins: Any) -> int | jax.Array | None:
    """The number of bins, or their edges; None for anything else."""
    try:
        num_bins = operator.index(bins)
    except TypeError:  # not an integer, or one that is traced
        return _flat(bins) if is_real(bins) and np.ndim(bins) == 1 and len(bins) > 1 else None
    return sizes_of(num_bins)[0] if num_bins > 0 else None


def _specs(bins: Any, axes: int) -> list[Any] | None:
    """:func:`_spec` for each axis."""
    specs = [_spec(bins)] * axes if _is_scalar(bins) else [_spec(b) for b in bins]
    return None if len(specs) != axes or builtins.any(s is None for s in specs) else specs


def _counted_by(
    columns: tuple[jax.Array, ...], specs: Sequence[Any], ranges: Sequence[Any], dtype: np.dtype
) -> Sequence[jax.Array]:
    """The edges, made once: XLA would round equal bins' otherwise for who reads them than for who returns them."""
    edges = _edges(columns, specs, ranges, dtype)
    return held(edges) if builtins.any(_equal(specs)) else edges


def _equal(specs: Sequence[Any]) -> tuple[bool, ...]:
    """Which axes have equal bins, as far as their edges can be represented."""
    return tuple(isinstance(s, int) for s in specs)


def _edges(columns: tuple[jax.Array, ...], specs: Sequence[Any], ranges: Sequence[Any], dtype: np.dtype) -> tuple[jax.Array, ...]:
    """The edges of each axis: ``jax.numpy``'s own, but for the range, which it finds slowly."""
    nums = tuple(s if isinstance(s, int) else None for s in specs)
    edges = [None if isinstance(s, int) else s for s in specs]
    ranges = [None if n is None else r for n, r in zip(nums, ranges, strict=True)]
    if not builtins.all(r is None or _is_pair(r) for r in ranges):  # jax.numpy says what is wrong
        return _edges_of.__wrapped__(columns, edges, ranges, nums, dtype)
    # rounded once, to the edges' dtype, and no constants, for which there would be other programs
    ranges = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else np.asarray(x, dtype), ranges)
    return _edges_of(columns, edges, ranges, nums, dtype)


def _is_pair(r: Any) -> bool:
    """Two real numbers or an array of them."""
    if isinstance(r, (jax.Array, np.ndarray)):
        return r.shape == (2,) and is_real(r)
    return type(r) in (tuple, list) and len(r) == 2 and builtins.all(type(x) in (int, float) or is_real(x) for x in r)


@functools.partial(jax.jit, static_argnums=(3, 4), inline=EARLY)
def _edges_of(
    columns: tuple[jax.Array, ...], edges: Sequence[Any], ranges: Sequence[Any], nums: tuple[int | None, ...], dtype: np.dtype
) -> tuple[jax.Array, ...]:
    """Those that are given, or of ``nums`` equal bins."""
    n = columns[0].shape[0]
    if n and builtins.any(k is not None and r is None for k, r in zip(nums, ranges, strict=True)):
        extent = _extent(columns)
        ranges = [extent[i] if r is None else r for i, r in enumerate(ranges)]
    unused = jnp.zeros(columns[0].shape[:1] if n == 0 else 1, dtype)
    return tuple(
        e.astype(dtype) if k is None else jnp.histogram_bin_edges(unused, k, r)
        for e, r, k in zip(edges, ranges, nums, strict=True)
    )


@functools.partial(jax.jit, inline=EARLY)
def _extent(columns: tuple[jax.Array, ...]) -> list[jax.Array]:
    """[least, greatest] of every column, NaN if it has one, in one pass."""
    columns = tuple(c.astype(np.uint8) if c.dtype == bool else c for c in columns)

    def f(*point: jax.Array) -> tuple[int, list[tuple[jax.Array, jax.Array]]]:
        return 0, [(x, x) for x in _coordinates(point)]

    def op(a: Any, b: Any) -> Any:
        return [(jnp.minimum(low, x), jnp.maximum(high, y)) for (low, high), (x, y) in zip(a, b, strict=True)]

    dtypes = [c.dtype for c in columns for _ in builtins.range(c.size // c.shape[0])]
    found = genhist(f, columns, Bins(1, op, identity=[_limits(d) for d in dtypes]))
    return [jnp.concatenate(pair) for pair in found]


def _limits(dtype: Any) -> tuple[Any, Any]:
    if jnp.issubdtype(dtype, np.floating):
        return np.asarray(np.inf, dtype), np.asarray(-np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).max, dtype), np.asarray(jnp.iinfo(dtype).min, dtype)


# --- the histogram -----------------------------------------------------------------------------------------------------------


def _coordinates(point: Sequence[jax.Array]) -> list[jax.Array]:
    return [x for column in point for x in (column if column.ndim else [column])]


@functools.partial(jax.jit, static_argnums=(3, 4, 5), inline=EARLY)
def _count(
    columns: tuple[jax.Array, ...],
    edges: Sequence[jax.Array],
    weights: jax.Array | None,
    dtype: np.dtype,
    equal: tuple[bool, ...],
    one: bool,
) -> jax.Array:
    """The histogram [n1, ..., nD] of dtype ``dtype``; ``equal``: on which axes; ``one``: by the rules of that of one axis."""
    columns, edges = lax.stop_gradient((columns, edges))  # a bin number has no derivative
    axes = axes_of(jax.tree.leaves((columns, edges, weights)))
    finders = [bin_finder(vary(e, axes), columns[0].shape[0], one, same) for e, same in zip(edges, equal, strict=True)]

    def f(point: tuple[jax.Array, ...], weight: Any) -> tuple[jax.Array, Any]:
        found = [(bin_of(x), n) for (bin_of, n), x in zip(finders, _coordinates(point), strict=True)]
        if len(found) == 1:
            return found[0][0], weight
        index = functools.reduce(lambda flat, axis: flat * axis[1] + axis[0], found, jnp.int32(0))
        inside = functools.reduce(operator.and_, [(i >= 0) & (i < n) for i, n in found])
        return jnp.where(inside, index, -1), weight

    shape = [e.size - 1 for e in edges]
    return _sum_by(f, columns, weights, int(np.prod(shape)), dtype).reshape(shape)


def _sum_by(f: Callable, elements: Any, weights: jax.Array | None, num_bins: int, dtype: Any) -> jax.Array:
    """Sums weights, or counts, where f(element, weight) gives an index and the weight."""
    if weights is None:
        n = jax.tree.leaves(elements)[0].shape[0]
        one = _counting(n)(1)  # exact, whatever dtype is wanted
        return genhist(lambda x: f(x, one), (elements,), Bins(num_bins, jnp.add, identity=0)).astype(dtype)
    dtype = weights.dtype if jnp.issubdtype(dtype, np.integer) else dtype
    return genhist(lambda x, w: f(x, w.astype(dtype)), (elements, weights), Bins(num_bins, jnp.add, identity=0))


def _counting(n: Any) -> Any:
    """The dtype of counts of n elements; a symbolic n may be any."""
    if not isinstance(n, int):
        return np.int64 if jax.config.jax_enable_x64 else np.uint32
    return np.int32 if n < 2**31 else np.uint32 if n < 2**32 else np.int64
