"""Scans, reductions and segmented reductions in plain XLA: what platforms without kernels and operators that cannot be compiled
get.

Here an operator takes two lists of leaves with a leading axis, ``op(a, b) -> leaves``: many pairs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ...tracing.varying import axes_of, vary

Op = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
Leaves = list[Any]


def scan(
    op: Op,
    values: Sequence[Any],
    start: Sequence[Any] | None = None,
    *,
    neutral: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    flags: Any = None,
) -> Leaves:
    """Leaves ``[N, ...]``. ``start``: combined in before the first element, or, ``neutral``, an identity, which need not be."""
    if values[0].shape[0] == 0:
        return list(values)
    if reverse:
        flipped = scan(op, [jnp.flip(v, 0) for v in values], start, neutral=neutral, exclusive=exclusive, flags=_flip(flags))
        return [jnp.flip(v, 0) for v in flipped]
    full = (
        None
        if start is None
        else [jnp.broadcast_to(s[None], v.shape).astype(v.dtype) for s, v in zip(start, values, strict=True)]
    )
    begins = None if flags is None else jnp.asarray(flags, jnp.bool_).at[0].set(True)
    out = list(values)
    if full is not None and not neutral:
        if begins is None:
            first = op([s[:1] for s in full], [v[:1] for v in out])
            out = [jnp.concatenate([f, v[1:]]) for f, v in zip(first, out, strict=True)]
        else:
            out = where(begins, op(full, out), out)
    if begins is None:
        out = list(jax.lax.associative_scan(lambda a, b: list(op(a, b)), out))
    else:

        def restarting(a: Any, b: Any) -> Any:
            return a[0] | b[0], where(b[0], b[1], op(a[1], b[1]))

        out = list(jax.lax.associative_scan(restarting, (begins, out))[1])
    if exclusive:
        assert full is not None
        out = [jnp.concatenate([s[:1], v[:-1]]) for s, v in zip(full, out, strict=True)]
        if begins is not None:
            out = where(begins, full, out)
    return out


CUMULATIVE: dict[str | None, Callable[..., Any]] = {
    "add": jax.lax.cumsum, "mul": jax.lax.cumprod, "min": jax.lax.cummin, "max": jax.lax.cummax,
    "logaddexp": jax.lax.cumlogsumexp,
}  # fmt: skip
"""What XLA knows, by the operator's name."""


STEPS: dict[str | None, Callable[..., Any]] = {
    "add": jnp.add, "mul": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum,
}  # fmt: skip

OPERATIONS = STEPS | {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}
"""By which ``jax.lax`` reduces."""


def cumulative(x: Any, name: str | None, axis: int, reverse: bool) -> Any:
    """The scan by XLA's own operation; sums and products of halves are made of f32, as kernels make them: those of two are
    rounded once in any case."""
    if name == "logaddexp" and x.shape[axis] > 0:  # by pairs: XLA would make exponentials and logarithms of all before each
        return jax.lax.associative_scan(jnp.logaddexp, x, reverse=reverse, axis=axis)
    return CUMULATIVE[name](_widened(x, name, axis), axis=axis, reverse=reverse).astype(x.dtype)


def in_pairs(x: Any, name: str, reverse: bool) -> Any:
    """The same along axis 0 in pairs of neighbours, in as many operations as there are elements, twice over: XLA's own goes
    through all before each on CPUs."""
    return jax.lax.associative_scan(STEPS[name], _widened(x, name, 0), reverse=reverse).astype(x.dtype)


def _widened(x: Any, name: str | None, axis: int) -> Any:
    return x.astype(np.float32) if name in ("add", "mul") and is_half(x.dtype) and x.shape[axis] > 2 else x


def is_half(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def written_out(x: Any, name: str | None, axis: int, reverse: bool) -> Any:
    """The scan of a few elements, at least one, along ``axis``, step by step."""
    parts = jax.lax.split(x, (1,) * x.shape[axis], axis)  # which is transposed to one concatenation, not to pads and their sum
    first, *rest = parts[::-1] if reverse else parts
    out = [first]
    for step in rest:
        out.append(STEPS[name](out[-1], step))
    return jnp.concatenate(out[::-1] if reverse else out, axis)


def _flip(flags: Any) -> Any:
    return None if flags is None else jnp.flip(flags, 0)


def where(which: Any, a: Sequence[Any], b: Sequence[Any]) -> Leaves:
    """``jnp.where`` on leaves, of which ``which`` [N] chooses rows."""
    return [jnp.where(like(which, x), x, y) for x, y in zip(a, b, strict=True)]


def like(flags: Any, x: Any) -> Any:
    """Flags [N] against values [N, ...]."""
    return flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))


def inside(index: Any, n: Any) -> Any:
    """Which indices are in [0, n)? Where n is beyond their dtype, none is too large."""
    narrow = isinstance(n, int) and n > jnp.iinfo(index.dtype).max
    return index >= 0 if narrow else (index >= 0) & (index < n)


def spare(index: Any, n: int) -> Any:
    """Indices with everything out of range, negative ones too, sent to n: dropped by a scatter, last in a sort."""
    return jnp.where((index >= 0) & (index < n), index, n)


def starts_of(ids: Any) -> Any:
    """Where ids [N], N > 0, change."""
    return jnp.concatenate([vary(jnp.ones(1, jnp.bool_), axes_of([ids])), ids[1:] != ids[:-1]])


def logsumexp(x: Any, axis: int) -> Any:
    """``log(sum(exp(x)))``."""
    wide = x.astype(np.float32) if is_half(x.dtype) else x  # the sum of halves may be greater than a half can be
    top = jnp.max(wide, axis)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    return (jnp.log(jnp.sum(jnp.exp(wide - jnp.expand_dims(top, axis)), axis)) + top).astype(x.dtype)


def _in_its_own_type(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Of integers, which JAX would widen."""
    return lambda x, axis: fn(x, axis, dtype=x.dtype if jnp.issubdtype(x.dtype, jnp.integer) else None)


SHORT_ROW, FEW_ROWS = 24, 12
"""Floats of a row up to which XLA combines them sooner by a function that it does not know than by its own operation, or, of
extremes, as integers; and rows across which it does."""


def _by_function(x: Any, axis: int, start: ArrayLike, op: Callable[[Any, Any], Any]) -> Any:
    """Of real floats. What XLA knows, it hands on to a library, whose call takes longer than a few short rows, and whose maxima
    lose a NaN."""
    return jax.lax.reduce(x, vary(jnp.asarray(start, x.dtype), axes_of([x])), op, (axis,))


COLUMN = 32
"""Elements of a column up to which XLA goes down it in the loop that makes them: longer ones it does in parts."""


def _sum(x: Any, axis: int) -> Any:
    """Of short rows and columns by ``a + b`` in a form that XLA does not know."""
    short = SHORT_ROW - 1 if axis % x.ndim == x.ndim - 1 else COLUMN
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.shape[axis] > short:
        return _in_its_own_type(jnp.sum)(x, axis)
    wide = x.astype(np.float32) if is_half(x.dtype) else x
    return _by_function(wide, axis % x.ndim, 0, lambda a, b: b - (-a)).astype(x.dtype)


def _extreme_of(name: str) -> Callable[..., Any]:
    """A maximum or minimum: of floats clamped, or as integers in their order, as XLA's own loses NaN and zeros' signs on CPUs."""
    of_integers = jnp.max if name == "max" else jnp.min

    def reduced(x: Any, axis: int) -> Any:
        n, axis = x.shape[axis], axis % x.ndim
        if not jnp.issubdtype(x.dtype, jnp.floating) or n == 0:
            return of_integers(x, axis)
        along, half = axis == x.ndim - 1, is_half(x.dtype)
        few = n < SHORT_ROW if along else n <= FEW_ROWS or (half and x.shape[axis + 1 :] != (1,))
        if not few:
            return from_key(of_integers(key_of(x, name), axis), x.dtype)
        if x.dtype == jnp.bfloat16:  # which XLA makes floats of, and rounds, at every step
            return _clamped(x.astype(np.float32), name, axis).astype(x.dtype)
        return _clamped(x, name, axis)

    return reduced


def _clamped(x: Any, name: str, axis: int) -> Any:
    """In as many operations as there are elements. The bound that is beyond all is why XLA does not know it."""
    least, greatest = np.asarray(-np.inf, x.dtype), np.asarray(np.inf, x.dtype)
    if name == "max":
        return _by_function(x, axis, least, lambda a, b: jax.lax.clamp(b, a, greatest))
    return _by_function(x, axis, greatest, lambda a, b: jax.lax.clamp(least, a, b))


def key_of(x: Any, name: str) -> Any:
    """Integers in the order of floats: of negative ones all bits but the sign are turned. A NaN comes after all, or before."""
    bits = jax.lax.bitcast_convert_type(x, f"int{jnp.finfo(x.dtype).bits}")
    info = jnp.iinfo(bits.dtype)
    return jnp.where(x != x, info.max if name == "max" else info.min, _turned(bits))


def from_key(key: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(_turned(key), dtype)


def _turned(bits: Any) -> Any:
    info = jnp.iinfo(bits.dtype)
    return bits ^ (bits >> (info.bits - 1) & info.max)


REDUCTIONS: dict[str | None, Callable[..., Any]] = {
    "add": _sum, "mul": _in_its_own_type(jnp.prod), "min": _extreme_of("min"), "max": _extreme_of("max"),
    "logaddexp": logsumexp, "complex_mul": _in_its_own_type(jnp.prod),
    "and": lambda x, axis: jax.lax.reduce_and(x, (axis,)), "or": lambda x, axis: jax.lax.reduce_or(x, (axis,)),
    "xor": lambda x, axis: jax.lax.reduce_xor(x, (axis,)),
}  # fmt: skip
"""What XLA knows, by the operator's name."""


def _at_once(name: str) -> Callable[..., Any]:
    def reduced(x: Any, axis: int) -> Any:
        floats = jnp.issubdtype(x.dtype, jnp.floating) and x.shape[axis] > 0
        return _clamped(x, name, axis % x.ndim) if floats else REDUCTIONS[name](x, axis)

    return reduced


REDUCTIONS_AT_ONCE = REDUCTIONS | {"add": _in_its_own_type(jnp.sum), "max": _at_once("max"), "min": _at_once("min")}
"""The same in as many operations as there are elements, for fewer than :data:`ir.work.AT_ONCE`."""


def _keeping_nan(fn: Callable[..., Any]) -> Callable[..., Any]:
    """XLA's own extreme, of which JAX knows the Taylor series, as it does not of bits and of comparisons."""

    def reduced(x: Any, axis: int) -> Any:
        found = fn(x, axis)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return found
        return jnp.where(jnp.any(jnp.isnan(jax.lax.stop_gradient(x)), axis), jnp.asarray(jnp.nan, x.dtype), found)

    return reduced


IN_ONE_LOOP = REDUCTIONS | {"add": _in_its_own_type(jnp.sum), "max": jnp.max, "min": jnp.min}
"""The same where XLA's own extremes keep a NaN, and it fuses several reductions."""


def counted(extreme: Callable[..., Any], x: Any, once: Any) -> tuple[Any, Any]:
    """The greatest or the least of x [N, ...], and how many are equal to it, by ``once`` for each; a NaN is equal to none."""
    best = extreme(x, axis=0)
    return best, jnp.sum(jnp.where(x == best, once, 0), axis=0, dtype=once.dtype)


COUNTED: dict[str | None, str] = {"max, counted": "max", "min, counted": "min"}
"""Operators that do so, and the extreme's."""


OF_DEAR = REDUCTIONS | {"add": _in_its_own_type(jnp.sum)}
"""The same of what XLA would make dearly: it is to do so in a loop of its own."""

WITH_SERIES = REDUCTIONS | {"add": _in_its_own_type(jnp.sum), "max": _keeping_nan(jnp.max), "min": _keeping_nan(jnp.min)}
"""The same for ``jet``."""

EXTREMES = {"argmax": jnp.argmax, "argmin": jnp.argmin}


def extreme(x: Any, name: str, dtype: Any) -> tuple[Any, Any]:
    """The greatest or the least of x [N, ...], and the position where it is first met, of this dtype."""
    at = EXTREMES[name](jax.lax.stop_gradient(x), axis=0)
    return jnp.take_along_axis(x, at[None], axis=0, mode="promise_in_bounds")[0], at.astype(dtype)


ALONE = 16
"""Elements up to which each is an operand of its own, where their number is no power of two: XLA does not fuse through arrays
that are put together of pairs and what is left."""


def _in_pairs(op: Op, elements: Sequence[Leaves]) -> Leaves:
    while len(elements) > 1:
        pairs = [list(op(a, b)) for a, b in zip(elements[::2], elements[1::2], strict=False)]
        elements = [*pairs, *elements[2 * len(pairs) :]]
    return elements[0]


def reduce(op: Op, values: Sequence[Any], init: Sequence[Any] | None = None) -> Leaves:
    """Leaves ``[N, ...]``, N > 0, to ``[...]``: in pairs of neighbours, in their order."""
    out = list(values)
    while (n := out[0].shape[0]) > 1:
        if n <= ALONE and n & (n - 1):
            out = _in_pairs(op, [[v[k : k + 1] for v in out] for k in range(n)])
            break
        pairs = list(op([v[: n - 1 : 2] for v in out], [v[1::2] for v in out]))
        out = pairs if n % 2 == 0 else [jnp.concatenate([p, v[-1:]]) for p, v in zip(pairs, out, strict=True)]
    if init is not None:
        out = list(op([i[None] for i in init], out))
    return [v[0] for v in out]


def segment_reduce(
    op: Op, values: Sequence[Any], ids: Any, num_segments: int, identity: Sequence[Any] | None, dest: Sequence[Any] | None = None
) -> Leaves:
    """``ids`` [N] ascend; those outside [0, num_segments) are dropped. Segments start from ``dest``, or, without elements, hold
    the identity."""
    if dest is not None:
        full = list(dest)
    else:
        assert identity is not None
        full = [jnp.broadcast_to(i, (num_segments, *v.shape[1:])).astype(v.dtype) for i, v in zip(identity, values, strict=True)]
    if ids.shape[0] == 0 or all(0 in f.shape for f in full):
        return full
    starts = starts_of(ids)
    sums: Sequence[Any] = scan(op, values, flags=starts)
    if dest is not None:
        before = [d.at[jnp.minimum(ids, num_segments - 1)].get(mode="clip") for d in dest]
        sums = op(before, sums)
    at = jnp.where(jnp.append(starts[1:], True), spare(ids, num_segments), num_segments)
    return [f.at[at].set(s, mode="drop") for f, s in zip(full, sums, strict=True)]


def ids_of(offsets: Any, n: int) -> Any:
    """Each element's segment; -1 before the first segment, the number of segments after the last."""
    return jnp.searchsorted(offsets, jnp.arange(n, dtype=offsets.dtype), side="right").astype(offsets.dtype) - 1
