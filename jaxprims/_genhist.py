"""Generalized histograms: ``genhist`` and ``reduce_by_index``."""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._monoid import Monoid, as_monoid
from ._warnings import FallbackWarning, IdentityWarning
from .frontend import classify
from .frontend.lower import Unsupported, hoist, to_program
from .frontend.operator import Operator, identity_leaves, make_operators, make_traced, scalar_name, slots_of, trace
from .frontend.varying import Axes, axes_of, element_aval, vary
from .primitives import hist_xla
from .primitives.hist import Hist, Part, bind, can_fuse

_MODES = ("drop", "clip", "wrap")


class _Positions:
    """Among values, arrays or xs: each element's own position. Made in the kernel, never in memory."""

    def __repr__(self) -> str:
        return "jp.positions"


positions = _Positions()


@dataclasses.dataclass(frozen=True, eq=False)
class Bins:
    """The bins of one histogram, for :func:`genhist`.

    Args:
      num_bins: H, or a tuple of sizes for bins of several dimensions.
      op: how a bin and a value become the new bin: a :class:`Monoid` or any callable ``(a, b) -> c`` on values of the histogram's
        structure. Associative and commutative.
      identity: op's neutral element. Known for recognised operators; others need it, or ``dest``.
      dest: what the bins hold before, leaves ``[*num_bins, *bin_shape]``; combined in once, from the left.
    """

    num_bins: int | tuple[int, ...]
    op: Callable[[Any, Any], Any] | Monoid = jnp.add
    identity: Any = None
    dest: Any = None

    def __post_init__(self) -> None:
        _sizes(self.num_bins)
        as_monoid(self.op, self.identity)


def genhist(f: Callable[..., Any], arrays: Any, bins: Bins | Sequence[Bins]) -> Any:
    """Generalized histograms: ``bins[i] = bins[i] ⊕ v`` for the pairs (i, v) that ``f`` makes from each element.

    ``f`` and every operator are traced once and compiled into one kernel; neither indices nor values are written to memory.

    Args:
      f: takes one element and returns one pair (index, value) for each of ``bins``. A tuple or list of arrays is handed over as
        separate arguments, any other pytree as one. An index is an integer, or a tuple of them for bins of several dimensions.
        Index and value may have a leading axis [k]: k updates from one element. An index outside the bins is dropped. ``f`` may use
        arrays from around it, at computed indices too.
      arrays: pytree with leaves ``[N, ...]``; :data:`positions` stands for each element's own position.
      bins: a :class:`Bins`, and ``f`` returns one pair; or a sequence of them, and ``f`` returns as many.

    Returns:
      For one Bins its histogram, a pytree like the value with leaves ``[*num_bins, *bin_shape]``; for a sequence, a tuple of them,
      made in one pass over the elements.

    Raises:
      TypeError: an index that is not an integer, an operator that changes a dtype or the structure, a bad type of argument.
      ValueError: lengths or shapes that do not fit; an operator whose identity is needed and not known.

    Cost: work O(N · (f + updates) + H · T) with T subhistograms, one for each thread, or fewer; span O(N / T + H); memory: the result
    and the subhistograms, which fit the last-level cache together (``jp.explain`` gives their size).

    Source: paper 1 (generalized histograms), sections III and IV.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> x = jnp.array([0.1, 0.5, 0.6, 0.9])
    >>> jp.genhist(lambda x: ((x * 2).astype(int), 1), x, jp.Bins(2, jnp.add)).tolist()
    [1, 3]
    """
    if not callable(f):
        raise TypeError(f"f must be a function of one element, got {f!r}")
    single = isinstance(bins, Bins)
    group = (bins,) if isinstance(bins, Bins) else tuple(bins) if isinstance(bins, (list, tuple)) else None
    if not group or not all(isinstance(b, Bins) for b in group):
        raise TypeError(f"bins must be a jp.Bins or a sequence of them, got {bins!r}")
    leaves, tree = jax.tree.flatten(arrays, is_leaf=lambda x: x is None)
    call = _Call(f, arrays, leaves, tree, "arrays")
    out = _run(call, group, single, sorted_indices=False)
    return out[0] if single else tuple(out)


def reduce_by_index(
    values: Any,
    indices: Any,
    num_bins: int | tuple[int, ...],
    op: Callable[[Any, Any], Any] | Monoid = jnp.add,
    *,
    identity: Any = None,
    dest: Any = None,
    mode: str = "drop",
    indices_are_sorted: bool = False,
) -> Any:
    """Combines the values that share an index: ``result[i] = dest[i] ⊕ (⊕ of values[n] where indices[n] == i)``.

    Args:
      values: pytree with leaves ``[N, *bin_shape]``; :data:`positions` stands for each element's own position (int32; int64 where N
        passes 2^31).
      indices: integers ``[N]``, or a tuple of as many such arrays as there are dimensions of bins.
      num_bins: H, or a tuple of sizes.
      op: a :class:`Monoid` or any callable ``(a, b) -> c`` on bins, associative and commutative. On leaves with a ``bin_shape`` it gets
        arrays of that shape.
      identity: op's neutral element; known for recognised operators (``jnp.add``, ``lambda a, b: a * b``, ``jnp.maximum`` ...).
      dest: what the bins hold before, leaves ``[*num_bins, *bin_shape]``.
      mode: what happens to an index outside the bins, negative ones included: "drop" (the element has no effect), "clip" (to the
        nearest bin) or "wrap" (modulo).
      indices_are_sorted: a promise that ``indices`` ascend, which saves work; if it is broken the result is undefined.

    Returns:
      A pytree like ``values`` with leaves ``[*num_bins, *bin_shape]``; bins without elements hold the identity (or ``dest``).

    Raises:
      TypeError: indices that are not integers, an operator that changes a dtype or the structure.
      ValueError: lengths or shapes that do not fit; an unknown mode; an identity that is needed and not known.

    Cost: work O(N + H · T), span O(N / T + H), T the number of threads; memory: the result, and subhistograms that fit the last-level
    cache together.

    Source: paper 1 (generalized histograms), sections III-A and IV-D.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduce_by_index(jnp.array([1., 2., 3.]), jnp.array([1, 0, 1]), 3, jnp.maximum).tolist()
    [2.0, 3.0, -inf]
    """
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if not isinstance(indices_are_sorted, (bool, np.bool_)):
        raise TypeError(f"indices_are_sorted must be True or False, got {indices_are_sorted!r}")
    sizes = _sizes(num_bins)
    index = tuple(indices) if isinstance(indices, (tuple, list)) and isinstance(num_bins, tuple) else (indices,)
    if len(index) != len(sizes):
        raise ValueError(f"indices: num_bins={num_bins!r} wants {len(sizes)} index arrays, got {len(index)}")
    index = tuple(_as_array(i, "indices") for i in index)
    for i in index:
        _check_index(i.dtype, "indices")
        if i.ndim != 1:
            raise ValueError(f"indices must have shape [N], got {i.shape}")
    leaves, tree = jax.tree.flatten(values, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError("values must hold at least one array, got none")

    def pass_on(*element: Any) -> Any:
        i = element[: len(index)]
        value = jax.tree.unflatten(tree, element[len(index) :])
        return _in_mode(i, sizes, mode) if isinstance(num_bins, tuple) else _in_mode(i, sizes, mode)[0], value

    call = _Call(pass_on, None, [*index, *leaves], None, "values", num_index=len(index))
    bins = Bins(num_bins, op, identity, dest)
    straight = indices_are_sorted and len(index) == 1 and mode == "drop"
    return _run(call, (bins,), True, sorted_indices=straight)[0]


# --- arguments -------------------------------------------------------------------------------------------------------------------


def _sizes(num_bins: Any) -> tuple[int, ...]:
    sizes = num_bins if isinstance(num_bins, tuple) else (num_bins,)
    if not sizes:
        raise ValueError("num_bins must be an integer or a tuple of at least one, got ()")
    out = []
    for n in sizes:
        if isinstance(n, (bool, np.bool_)) or not hasattr(n, "__index__"):
            raise TypeError(f"num_bins must be an integer or a tuple of integers, got {num_bins!r}")
        try:
            out.append(n.__index__())
        except TypeError:
            raise TypeError(f"num_bins must be known when the function is traced, got {num_bins!r}") from None
        if out[-1] < 0:
            raise ValueError(f"num_bins must not be negative, got {num_bins!r}")
    if math.prod(out) >= 2**47:
        raise ValueError(f"num_bins must be fewer than any memory has bytes (2^47), got {num_bins!r}")
    return tuple(out)


def _called(name: str, fn: Callable[..., Any], *args: Any) -> Any:
    """What the user's function returns; what it raises becomes a TypeError or ValueError that names it."""
    try:
        return fn(*args)
    except Exception as e:
        kind = TypeError if isinstance(e, TypeError) else ValueError
        raise kind(f"{name} raised {type(e).__name__} when it was traced: {e}") from e


def _as_array(x: Any, name: str) -> Any:
    if isinstance(x, jax.Array):
        return x
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as e:
        raise TypeError(f"{name}: {type(x).__name__} is not an array: {x!r:.100} ({e})") from None


def _check_index(dtype: Any, name: str) -> None:
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {dtype}")


def _in_mode(index: Sequence[Any], sizes: Sequence[int], mode: str) -> tuple[Any, ...]:
    if mode == "drop":
        return tuple(index)
    if min(sizes) == 0:
        return tuple(jnp.full_like(i, -1) if jnp.issubdtype(i.dtype, jnp.signedinteger) else i for i in index)
    out = []
    for i, n in zip(index, sizes, strict=True):
        top = int(jnp.iinfo(i.dtype).max)
        low = 0 if int(jnp.iinfo(i.dtype).min) < 0 else None
        if mode == "clip":
            i = i if low is None else jnp.maximum(i, 0)
            out.append(i if n - 1 > top else jnp.minimum(i, n - 1))
        elif n <= top:
            out.append(jnp.mod(i, jnp.asarray(n, i.dtype)))
        else:  # every value of this dtype is below n; a negative one wraps around once
            wide = i.astype(jnp.int32 if n < 2**31 else jnp.int64)
            out.append(jnp.where(wide < 0, wide + n, wide))
    return tuple(out)


def _flat_index(index: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
    """One index into the flattened bins; -1 (or whatever is out of range) where it is to be dropped. int32 where that will do."""
    total = int(np.prod(sizes, dtype=object))
    narrow = total < 2**31 - 1
    if len(sizes) == 1:
        i = index[0]
        if not narrow:
            return i.astype(jnp.int64) if jax.config.jax_enable_x64 and i.dtype != jnp.uint64 else i
        if i.dtype == jnp.int32 or np.dtype(i.dtype).itemsize < 4:
            return i.astype(jnp.int32)
        low = 0 if jnp.issubdtype(i.dtype, jnp.signedinteger) else None
        inside = i < total if low is None else (i >= 0) & (i < total)
        return jnp.where(inside, i.astype(jnp.int32), -1)
    if not narrow and not jax.config.jax_enable_x64:
        raise ValueError(f"num_bins={sizes} holds more than 2^31 bins: jax_enable_x64 is needed to index them")
    wide = jnp.int32 if narrow else jnp.int64
    flat, inside = jnp.zeros((), wide), jnp.asarray(True)
    for i, n in zip(index, sizes, strict=True):
        top = int(jnp.iinfo(i.dtype).max)
        fits = i >= 0 if n > top else (i >= 0) & (i < n)
        inside = inside & fits
        flat = flat * n + jnp.where(fits, i, 0).astype(wide)
    return jnp.where(inside, flat, -1)


@dataclasses.dataclass
class _Call:
    """f and what it runs on, flat."""

    f: Callable[..., Any]
    arrays: Any
    leaves: list[Any]
    tree: Any
    name: str
    num_index: int = 0  # leading leaves that are indices (reduce_by_index)

    def __post_init__(self) -> None:
        self.is_position = [leaf is positions for leaf in self.leaves]
        given = []
        for k, leaf in enumerate(self.leaves):
            if leaf is positions:
                continue
            x = _as_array(leaf, "indices" if k < self.num_index else self.name)
            if x.dtype == jax.dtypes.float0:
                raise TypeError(f"{self.name} must be numbers, got float0")
            if x.ndim == 0:
                raise ValueError(f"{self.name}: every leaf needs a leading axis [N], got a scalar of {x.dtype}")
            given.append(x)
        if not given:
            raise ValueError(f"{self.name}: at least one array is needed to know the number of elements, got {self.arrays!r}")
        lengths = {x.shape[0] for x in given}
        if len(lengths) > 1:
            shown = ", ".join(str(x.shape) for x in given)
            what = "values and indices" if self.num_index else self.name
            raise ValueError(f"{what} must have one length N, got shapes {shown}")
        self.given = given
        self.elements = given[0].shape[0]
        self.position_dtype = np.dtype(np.int32 if not isinstance(self.elements, int) or self.elements <= 2**31 else np.int64)
        if self.position_dtype == np.int64 and any(self.is_position) and not jax.config.jax_enable_x64:
            raise ValueError(f"{self.name}: positions pass 2^31 here: jax_enable_x64 is needed")

    def avals(self, axes: Axes) -> list[Any]:
        """Of one element."""
        rest = iter(self.given)
        return [
            element_aval((), self.position_dtype, axes) if p else element_aval((x := next(rest)).shape[1:], x.dtype, axes)
            for p in self.is_position
        ]

    def on_element(self, *element: Any) -> Any:
        """f on one element, given flat."""
        if self.tree is None:
            return _called("f", self.f, *element)
        structured = jax.tree.unflatten(self.tree, element)
        spread = type(structured) in (tuple, list) and _takes(self.f, len(structured))
        return _called("f", self.f, *structured) if spread else _called("f", self.f, structured)


def _takes(f: Callable[..., Any], n: int) -> bool:
    """Does f take n positional arguments (so that a tuple of arrays is handed over one by one)?"""
    try:
        inspect.signature(f).bind(*range(n))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


# --- tracing f ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Pair:
    """What f returned for one histogram."""

    updates: int
    many: bool  # with a leading axis [k]
    tree: Any
    shapes: tuple[tuple[int, ...], ...]  # of a bin's leaves
    dtypes: tuple[np.dtype, ...]


def _flat_function(call: _Call, group: Sequence[Bins], single: bool, axes: Axes, found: list[_Pair]) -> Callable[..., list[Any]]:
    """f on flat elements: index and value leaves of each histogram in a row. Fills ``found``."""

    def flat(*element: Any) -> list[Any]:
        returned = call.on_element(*element)
        pairs = [returned] if single else returned
        if not isinstance(pairs, (tuple, list)) or len(pairs) != len(group):
            raise TypeError(f"f must return {len(group)} pairs (index, value), one for each of bins, got {_shown(returned)}")
        out: list[Any] = []
        found.clear()
        for pair, bins in zip(pairs, group, strict=True):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"f must return a pair (index, value) for each of bins, got {_shown(pair)}")
            out += _checked_pair(pair[0], pair[1], bins, found)
        return [vary(x, axes) for x in out]

    return flat


def _shown(x: Any) -> str:
    return repr(x)[:200]


def _checked_pair(index: Any, value: Any, bins: Bins, found: list[_Pair]) -> list[Any]:
    sizes = _sizes(bins.num_bins)
    several = isinstance(index, (tuple, list))
    if several and not isinstance(bins.num_bins, tuple):
        what = f"one integer, or an array [k] of them, for num_bins={bins.num_bins!r}"
        raise TypeError(f"f's index must be {what}, got {_shown(index)}")
    parts = tuple(index) if several else (index,)
    if len(parts) != len(sizes):
        raise ValueError(f"f: num_bins={bins.num_bins!r} wants an index of {len(sizes)} integers, got {len(parts)}")
    arrays = []
    for p in parts:
        a = _as_array(p, "f's index")
        _check_index(a.dtype, "f's index")
        if a.ndim > 1:
            raise ValueError(f"f's index must be a scalar or have one axis [k], got shape {a.shape}")
        arrays.append(a)
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    many = len(shape) == 1
    k = shape[0] if many else 1
    leaves, tree = jax.tree.flatten(value, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError("f's value (values) must hold at least one number, got none")
    wanted = None if bins.dest is None else [getattr(x, "dtype", None) for x in jax.tree.leaves(bins.dest)]
    out = []
    for n, leaf in enumerate(leaves):
        v = _as_array(leaf, "f's value")
        if jnp.issubdtype(v.dtype, jax.dtypes.prng_key) or v.dtype == jax.dtypes.float0:
            raise TypeError(f"f's value (values) must be numbers, got {v.dtype}")
        if jax.typeof(v).weak_type and wanted is not None and len(wanted) == len(leaves) and wanted[n] is not None:
            v = v.astype(wanted[n])
        if many and v.ndim == 0:
            v = jnp.broadcast_to(v, (k,))
        if many and v.shape[0] != k:
            raise ValueError(f"f's value: the index has {k} updates, so its leaves need a leading axis [{k}], got shape {v.shape}")
        out.append(v)
    shapes = tuple(v.shape[1:] if many else v.shape for v in out)
    found.append(_Pair(k, many, tree, shapes, tuple(np.dtype(v.dtype) for v in out)))
    flat = _flat_index(tuple(jnp.broadcast_to(a, shape) for a in arrays), sizes)
    return [flat, *out]


# --- operators ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Histogram:
    """One histogram: what f gives it, its operator in parts (None: plain XLA), its start."""

    bins: Bins
    pair: _Pair
    closed: Any  # the operator's jaxpr on whole bins
    parts: list[tuple[tuple[int, ...], Operator, list[Any]]] | None
    identity: list[Any] | None
    dest: list[Any] | None

    @property
    def total(self) -> int:
        return int(np.prod(_sizes(self.bins.num_bins), dtype=object))


def _histogram(bins: Bins, pair: _Pair, axes: Axes) -> _Histogram:
    monoid = as_monoid(bins.op, bins.identity)
    sizes = _sizes(bins.num_bins)
    avals = [element_aval(s, d, axes) for s, d in zip(pair.shapes, pair.dtypes, strict=True)]
    n = len(avals)

    def flat(*leaves: Any) -> list[Any]:
        a, b = jax.tree.unflatten(pair.tree, leaves[:n]), jax.tree.unflatten(pair.tree, leaves[n:])
        got, tree = _called("op", lambda: jax.tree.flatten(monoid.op(a, b), is_leaf=lambda x: x is None))
        if tree != pair.tree:
            raise TypeError(f"op must return the structure of its arguments, {pair.tree}, got {tree}")
        return [vary(_as_array(x, "op's result"), axes) for x in got]

    closed = trace(monoid.op, [*avals, *avals], ("op", pair.tree), flat)
    for a, o in zip(avals, closed.out_avals, strict=True):
        if tuple(o.shape) != a.shape or np.dtype(o.dtype) != a.dtype:
            raise TypeError(f"op must keep shape and dtype: on {a.dtype}{list(a.shape)} it returned {o.dtype}{list(o.shape)}")
    dest = _checked_dest(bins, pair, sizes)
    identity, concrete = _checked_identity(monoid, pair)
    if identity is not None and not concrete:  # one that is only known at run time: the bins start from it
        full = [jnp.broadcast_to(i, (int(np.prod(sizes, dtype=object)), *s)) for i, s in zip(identity, pair.shapes, strict=True)]
        dest = dest if dest is not None else full
        identity = None
        known: list[np.ndarray] | None = None
    else:
        known = identity
    try:
        parts, complete = make_operators(closed, known)
    except Unsupported as e:
        _warn_fallback("op", e)
        parts, complete = None, identity is not None
    total = int(np.prod(sizes, dtype=object))
    if not complete and dest is None:
        raise ValueError(
            f"identity: bins may stay empty and the neutral element of op on {_avals_text(pair)} is not known; give identity or dest"
        )
    if parts is not None and known is not None:
        _check_neutral(parts)
    if parts is not None and total == 0:
        parts = [(leaves, op, captured) for leaves, op, captured in parts]
    return _Histogram(bins, pair, closed, parts, identity, dest)


def _avals_text(pair: _Pair) -> str:
    return ", ".join(f"{d}{list(s)}" for s, d in zip(pair.shapes, pair.dtypes, strict=True))


def _check_neutral(parts: Sequence[tuple[tuple[int, ...], Operator, list[Any]]]) -> None:
    for _, op, captured in parts:
        if captured or op.identity is None:
            continue
        wrong = classify.wrong_identity(op.program, op.identity)
        if wrong is not None:
            warnings.warn(f"identity is not op's neutral element: {wrong}", IdentityWarning, stacklevel=6)


def _warn_fallback(name: str, e: Unsupported) -> None:
    warnings.warn(f"{name} cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning, stacklevel=6)


def _checked_dest(bins: Bins, pair: _Pair, sizes: tuple[int, ...]) -> list[Any] | None:
    if bins.dest is None:
        return None
    leaves, tree = jax.tree.flatten(bins.dest)
    if tree != pair.tree:
        raise TypeError(f"dest must have the values' structure, {pair.tree}, got {tree}")
    out = []
    for leaf, s, d in zip(leaves, pair.shapes, pair.dtypes, strict=True):
        x = _as_array(leaf, "dest")
        if x.shape != (*sizes, *s):
            raise ValueError(f"dest must have shape {(*sizes, *s)}, got {x.shape}")
        if x.dtype != d:
            raise TypeError(f"dest must have the values' dtype, {d}, got {x.dtype}")
        out.append(x.reshape((int(np.prod(sizes, dtype=object)), *s)))
    return out


def _checked_identity(monoid: Monoid, pair: _Pair) -> tuple[list[Any] | None, bool]:
    """The identity's leaves in the values' dtypes, and whether they are known now."""
    if monoid.identity is None:
        return None, True
    leaves, tree = jax.tree.flatten(monoid.identity)
    if tree != pair.tree:
        raise TypeError(f"identity must have the values' structure, {pair.tree}, got {tree}")
    out: list[Any] = []
    concrete = True
    for leaf, s, d in zip(leaves, pair.shapes, pair.dtypes, strict=True):
        if isinstance(leaf, jax.core.Tracer):
            concrete = False
            value: Any = leaf
        elif jnp.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.extended):
            raise TypeError(f"identity must be a number of dtype {d}, got {leaf!r}")
        else:
            value = np.asarray(_as_array(leaf, "identity") if not isinstance(leaf, (int, float, complex, np.ndarray, np.generic)) else leaf)
            if value.dtype.kind not in "biufcV":
                raise TypeError(f"identity must be a number of dtype {d}, got {leaf!r}")
        if not _broadcasts(value.shape, s):
            raise ValueError(f"identity must broadcast to a bin's shape {s}, got shape {value.shape}")
        if isinstance(value, np.ndarray):
            value = _cast_identity(value, d, leaf)
        elif value.dtype != d:
            raise TypeError(f"identity must have dtype {d}, got {value.dtype}")
        out.append(value)
    return out, concrete


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def _cast_identity(value: np.ndarray, dtype: np.dtype, given: Any) -> np.ndarray:
    """In the values' dtype; an error if that loses anything but a float's precision."""
    if value.dtype == dtype:
        return value
    exact = jnp.issubdtype(dtype, jnp.inexact)
    if value.dtype.kind == "c" and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"identity must be of dtype {dtype}, got {given!r}")
    with np.errstate(all="ignore"):
        cast = value.astype(dtype)
        same = exact or bool(np.all(cast.astype(value.dtype) == value))
    if not same or (value.dtype.kind == "i" and dtype.kind == "u" and bool(np.any(value < 0))):
        raise TypeError(f"identity must be of dtype {dtype}, got {given!r}")
    return cast


# --- putting it together ---------------------------------------------------------------------------------------------------------------


def _run(call: _Call, group: Sequence[Bins], single: bool, sorted_indices: bool) -> list[Any]:
    axes = axes_of(x for x in jax.tree.leaves([call.given, [[b.dest, b.identity] for b in group]]) if isinstance(x, jax.Array))
    while True:
        found: list[_Pair] = []
        closed = jax.make_jaxpr(_flat_function(call, group, single, axes, found))(*call.avals(axes))
        histograms = [_histogram(b, p, axes) for b, p in zip(group, found, strict=True)]
        seen = axes | axes_of([*closed.consts, *(c for h in histograms for c in h.closed.consts)])
        if seen == axes:
            break
        axes = seen  # inside shard_map, and a captured array varies over more than the operands: once more, for all of them
    call.given = [vary(x, axes) for x in call.given]
    starts, at = [], 0
    for h in histograms:
        starts.append(at)
        at += 1 + len(h.pair.shapes)
    if all(h.parts is not None and h.pair.updates > 0 and not any(0 in s for s in h.pair.shapes) for h in histograms):
        outs = _fused(call, closed, histograms, starts, sorted_indices)
        if outs is not None:
            return outs
    return _unfused(call, closed, histograms, starts)


def _fused(
    call: _Call, closed: Any, histograms: Sequence[_Histogram], starts: Sequence[int], sorted_indices: bool
) -> list[Any] | None:
    """All histograms in one kernel, f inlined; None where f or its arrays cannot be compiled."""
    try:
        for aval in call.avals(axes_of(call.given)):
            scalar_name(aval.dtype)
    except KeyError:
        return None
    pre, inner = hoist(closed)
    passes_on = all(v in inner.jaxpr.invars for v in inner.jaxpr.outvars if not hasattr(v, "val")) and not inner.jaxpr.eqns
    big = sum(slots_of(a.shape, a.dtype) for a in call.avals(axes_of(call.given))) > 4096
    if big and not passes_on:
        return None
    try:
        program = to_program(inner.jaxpr)
    except Unsupported as e:
        if not passes_on:
            _warn_fallback("f", e)
        return None
    parts, operator_arrays, dests, layout = [], [], [], []
    for h, start in zip(histograms, starts, strict=True):
        assert h.parts is not None
        for leaves, op, captured in h.parts:
            values = tuple(start + 1 + k for k in leaves)
            parts.append(Part(h.total, op, len(captured), start, values, h.pair.updates, h.dest is not None))
            operator_arrays += captured
            dests += [h.dest[k] for k in leaves] if h.dest is not None else []
        layout.append([k for leaves, _, _ in h.parts for k in leaves])
    where = tuple(call.position_dtype if p else None for p in call.is_position)
    hist = Hist(make_traced(inner.jaxpr, program), tuple(parts), where, sorted_indices)
    if not can_fuse(hist):
        return None
    flat = bind(hist, [*call.given, *pre(*closed.consts), *operator_arrays, *dests])
    outs = []
    for h, order in zip(histograms, layout, strict=True):
        mine, flat = flat[: len(order)], flat[len(order) :]
        outs.append(_shaped(h, [x for _, x in sorted(zip(order, mine, strict=True), key=lambda pair: pair[0])]))
    return outs


def _shaped(h: _Histogram, leaves: Sequence[Any]) -> Any:
    sizes = _sizes(h.bins.num_bins)
    return jax.tree.unflatten(h.pair.tree, [x.reshape((*sizes, *s)) for x, s in zip(leaves, h.pair.shapes, strict=True)])


def _unfused(call: _Call, closed: Any, histograms: Sequence[_Histogram], starts: Sequence[int]) -> list[Any]:
    """f on every element by XLA, then each histogram on its own, with a kernel where its operator has one."""
    rest = iter(call.given)
    axes = axes_of(call.given)
    full = [vary(jnp.arange(call.elements, dtype=call.position_dtype), axes) if p else next(rest) for p in call.is_position]
    results = jax.vmap(jax.extend.core.jaxpr_as_fun(closed))(*full)
    outs = []
    for h, start in zip(histograms, starts, strict=True):
        index, values = results[start], results[start + 1 : start + 1 + len(h.pair.shapes)]
        if h.pair.many:
            index = index.reshape(-1)
            values = [v.reshape(-1, *v.shape[2:]) for v in values]
        if h.parts is None or any(0 in s for s in h.pair.shapes):
            outs.append(_shaped(h, _plain(h, index, values)))
        else:
            leaves: list[Any] = [None] * len(values)
            for members, op, captured in h.parts:
                mine = _one_part(h, op, captured, index, [values[k] for k in members], members)
                for k, x in zip(members, mine, strict=True):
                    leaves[k] = x
            outs.append(_shaped(h, leaves))
    return outs


def _plain(h: _Histogram, index: Any, values: Sequence[Any]) -> list[Any]:
    fn = jax.extend.core.jaxpr_as_fun(h.closed)
    identity = h.identity
    if identity is None and h.dest is None:  # known from the operator
        assert h.parts is not None
        found = {k: i for leaves, op, _ in h.parts for k, i in zip(leaves, identity_leaves(op), strict=True)}
        identity = [found[k] for k in range(len(values))]
    identity = None if identity is None else [jnp.asarray(i) for i in identity]
    dest = None if h.dest is None else [vary(d, axes_of(values)) for d in h.dest]
    return hist_xla.reduce_by_index(index, values, h.total, lambda a, b: fn(*a, *b), identity, dest)


def _one_part(
    h: _Histogram, op: Operator, captured: Sequence[Any], index: Any, values: Sequence[Any], members: Sequence[int]
) -> list[Any]:
    avals = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in (index, *values)]
    jaxpr = jax.make_jaxpr(lambda *xs: list(xs))(*avals).jaxpr
    hist = Hist(
        make_traced(jaxpr, to_program(jaxpr)),
        (Part(h.total, op, len(captured), 0, tuple(range(1, len(values) + 1)), 1, h.dest is not None),),
        (None,) * len(avals),
    )
    dest = [h.dest[k] for k in members] if h.dest is not None else []
    return bind(hist, [index, *values, *captured, *dest])
