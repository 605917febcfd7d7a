"""``check_monoid``: the laws of a monoid, tried on many random values."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import as_array
from ..arguments.monoid import Monoid, as_monoid
from ..operators.operator import identity_leaves, make_operators
from ..tracing.lower import Unsupported

SAMPLES = 512
"""How many values :func:`check_monoid` draws for each argument."""


def check_monoid(op: Any, identity: Any, like: Any, *, commutative: bool = True, values: Any = None) -> None:
    """Tries the laws of a monoid on many random values; for users' tests.

    The laws: ``op(op(x, y), z) == op(x, op(y, z))``; ``op(identity, x) == x == op(x, identity)``; and
    ``op(x, y) == op(y, x)`` if ``commutative``. Integers and booleans are compared exactly, floats up to rounding (the
    square root of the dtype's epsilon, relative to the largest value that took part).

    Args:
      op: a Monoid or a callable, as for :class:`Monoid`.
      identity: the neutral element. None: the Monoid's, or the one known from the operator (:data:`monoids`); where
        there is none, its law is not tried.
      like: an element: a pytree of arrays, ``jax.ShapeDtypeStruct`` or numbers; only shapes and dtypes count.
      commutative: whether the operator is meant to commute.
      values: what to try instead of random values, a pytree of arrays ``[K, *element's shape]``, for an operator
        that is a monoid on some of the dtype's values only, such as counts, which are not negative.

    Random integers are of all magnitudes, extremes included. Random floats are of ordinary size for the first law; for the
    others infinities are among them, and for an operator on one leaf the greatest and the smallest numbers; a NaN that
    comes of these (inf - inf) is let pass. NaN itself is not tried: few operators are associative on it. The values are the
    same every time. ``op`` runs on all of them, so one that loops must come to an end on each.

    Raises:
      ValueError: a law does not hold; the message has the values.
      TypeError: ``op`` is not callable, or its result has another structure, shape or dtype than ``like``.

    Cost: some thousand evaluations of ``op``, under ``jit`` and ``vmap``: most of it is compilation.

    >>> import jaxprims as jp
    >>> import jax.numpy as jnp
    >>> jp.check_monoid(jnp.maximum, -jnp.inf, jnp.float32(0))
    >>> jp.check_monoid(lambda a, b: a - b, 0, jnp.int32(0))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: op is not associative: ...
    """
    monoid = as_monoid(op, identity)
    element = jax.tree.map(_struct, like)
    if not jax.tree.leaves(element):
        raise TypeError(f"like must be an element, of one array or more, got {like!r:.100}")
    _check_result(monoid, element)
    neutral = _neutral(monoid, element)
    rng = np.random.default_rng(0)
    drawn = [_draw(rng, element) if values is None else _pick(rng, values, element, k) for k in range(3)]
    f = jax.jit(jax.vmap(monoid.op))

    x, y, z = drawn
    xy, yz = f(x, y), f(y, z)
    sides = {"op(op(x, y), z)": f(xy, z), "op(x, op(y, z))": f(x, yz)}
    _compare("op is not associative", sides, {"x": x, "y": y, "z": z}, xy, yz)
    if values is None:
        x, y = _with_extremes(rng, x, 0), _with_extremes(rng, y, 1)
    if commutative:
        _compare("op is not commutative", {"op(x, y)": f(x, y), "op(y, x)": f(y, x)}, {"x": x, "y": y})
    if neutral is not None:
        e = jax.tree.map(lambda n, v: np.broadcast_to(n, v.shape), neutral, x)
        _compare("identity is not neutral", {"op(identity, x)": f(e, x), "x": x}, {"identity": e, "x": x})
        _compare("identity is not neutral", {"op(x, identity)": f(x, e), "x": x}, {"identity": e, "x": x})


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    dtype = x.dtype if hasattr(x, "dtype") else as_array(x, "like").dtype
    return jax.ShapeDtypeStruct(np.shape(x) if not hasattr(x, "shape") else x.shape, jax.dtypes.canonicalize_dtype(dtype))


def _check_result(monoid: Monoid, element: Any) -> None:
    result = jax.eval_shape(monoid.op, element, element)
    got, wanted = (jax.tree.map(lambda s: f"{s.dtype}{list(s.shape)}", t) for t in (result, element))
    if got != wanted:
        raise TypeError(f"op must return a value like its arguments, {wanted}; it returned {got}")


def _neutral(monoid: Monoid, element: Any) -> Any:
    """The identity as arrays of the elements' shapes and dtypes; None if there is none to be known."""
    leaves, tree = jax.tree.flatten(element)
    if monoid.identity is None:
        known = _known_identity(monoid, leaves, tree)
        return None if known is None else jax.tree.unflatten(tree, known)
    if jax.tree.structure(monoid.identity) != tree:
        raise TypeError(f"identity must have the structure of like, {tree}, got {jax.tree.structure(monoid.identity)}")

    def cast(s: jax.ShapeDtypeStruct, value: Any) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):
                number = np.asarray(value).astype(s.dtype)
            whole = np.broadcast_to(number, s.shape)
        except (TypeError, ValueError):
            raise TypeError(f"identity must be one of {s.dtype}{list(s.shape)}, as like is, got {value!r:.100}") from None
        if not jnp.issubdtype(s.dtype, np.inexact) and not np.array_equal(number, value):
            raise ValueError(f"identity {value!r} is no value of dtype {s.dtype}")
        return whole

    return jax.tree.map(cast, element, monoid.identity)


def _known_identity(monoid: Monoid, leaves: list[jax.ShapeDtypeStruct], tree: Any) -> list[np.ndarray] | None:
    n = len(leaves)

    def flat(*args: Any) -> list[Any]:
        return jax.tree.leaves(monoid.op(jax.tree.unflatten(tree, args[:n]), jax.tree.unflatten(tree, args[n:])))

    try:
        operators, known = make_operators(jax.make_jaxpr(flat)(*leaves, *leaves), None)
    except Unsupported:
        return None
    if not known:
        return None
    found = {k: v for places, op, _ in operators for k, v in zip(places, identity_leaves(op), strict=True)}
    return [found[k] for k in range(n)]


def _draw(rng: np.random.Generator, element: Any) -> Any:
    """Random values: floats around one, integers of every magnitude, a sixteenth of them extreme."""

    def draw(s: jax.ShapeDtypeStruct) -> np.ndarray:
        shape = (SAMPLES, *s.shape)
        if jnp.issubdtype(s.dtype, np.bool_):
            return rng.random(shape) < 0.5
        if jnp.issubdtype(s.dtype, np.integer):
            info = jnp.iinfo(s.dtype)
            wide = rng.integers(info.min, info.max, shape, s.dtype, endpoint=True) >> rng.integers(0, info.bits, shape, s.dtype)
            extreme = np.where(rng.random(shape) < 0.5, s.dtype.type(info.min), s.dtype.type(info.max))
            return np.where(rng.random(shape) < 1 / 16, extreme, wide)
        drawn = np.where(rng.random(shape) < 0.25, rng.integers(-9, 10, shape), 3 * rng.standard_normal(shape))
        if jnp.issubdtype(s.dtype, np.complexfloating):
            drawn = drawn + 3j * rng.standard_normal(shape)
        return drawn.astype(s.dtype)

    return jax.tree.map(draw, element)


def _pick(rng: np.random.Generator, values: Any, element: Any, k: int) -> Any:
    """The user's values: all of them, in order, for the first argument (k = 0); at random for the others."""
    shapes = {np.shape(v)[:1] for v in jax.tree.leaves(values)}
    if jax.tree.structure(values) != jax.tree.structure(element) or len(shapes) != 1 or shapes <= {(), (0,)}:
        raise ValueError("values must have like's structure, and each leaf the shape [K, *element's shape]")
    count = shapes.pop()[0]
    rows = rng.integers(0, count, max(count, SAMPLES)) if k else np.arange(max(count, SAMPLES)) % count
    return jax.tree.map(lambda v, s: np.asarray(v, s.dtype).reshape(count, *s.shape)[rows], values, element)


_EXTREMES = (np.inf, -np.inf, "max", "min", "tiny", 0.0, -0.0)


def _with_extremes(rng: np.random.Generator, x: Any, k: int) -> Any:
    """Argument k with extreme values among its own: a single leaf of floats meets every pair of them, others infinities."""
    alone = len(jax.tree.leaves(x)) == 1

    def put(v: np.ndarray) -> np.ndarray:
        if not jnp.issubdtype(v.dtype, np.floating):
            return v
        v = np.where(rng.random(v.shape) < 1 / 16, rng.choice([-np.inf, np.inf], v.shape).astype(v.dtype), v)
        if alone:
            info = jnp.finfo(v.dtype)
            pairs = list(itertools.product([getattr(info, e) if isinstance(e, str) else e for e in _EXTREMES], repeat=2))
            v[: len(pairs)] = np.array([pair[k] for pair in pairs], v.dtype).reshape(-1, *(1,) * (v.ndim - 1))
        return v

    return jax.tree.map(put, x)


def _compare(law: str, sides: dict[str, Any], arguments: dict[str, Any], *between: Any) -> None:
    """Raises with the first values for which the two sides differ by more than rounding."""
    extreme = np.any([_extreme_rows(v) for v in jax.tree.leaves(arguments)], axis=0)
    for leaves in zip(*map(jax.tree.leaves, [*sides.values(), *arguments.values(), *between]), strict=True):
        got, wanted, *others = (np.asarray(v) for v in leaves)
        equal = (got == wanted) | ((got != got) & (wanted != wanted))
        if jnp.issubdtype(got.dtype, np.inexact):
            wide = [v.astype(np.complex128) for v in (got, wanted, *others)]
            with np.errstate(all="ignore"):
                scale = np.max([np.where(np.isfinite(v), np.abs(v), 0) for v in wide], axis=0)
                equal |= np.abs(wide[0] - wide[1]) <= np.sqrt(float(jnp.finfo(got.dtype).eps)) * scale
            inf_minus_inf = np.isnan(wide[0]) | np.isnan(wide[1])
            equal |= inf_minus_inf & extreme.reshape(-1, *(1,) * (got.ndim - 1))
        if not equal.all():
            row = int(np.argwhere(~equal)[0, 0])
            shown = [[f"{name} = {_shown(value, row)}" for name, value in d.items()] for d in (sides, arguments)]
            raise ValueError(f"{law}: {', '.join(s for s in shown[0] if s not in shown[1])}, for {', '.join(shown[1])}")


def _extreme_rows(v: Any) -> np.ndarray:
    """Where infinities, or the sums and products of numbers near the greatest, may meet."""
    a = np.asarray(v)
    if not jnp.issubdtype(a.dtype, np.inexact):
        return np.zeros(len(a), np.bool_)
    large = np.sqrt(float(jnp.finfo(a.dtype).max))
    return ~(np.abs(a.astype(np.complex128)) < large).reshape(len(a), -1).all(axis=1)


def _shown(value: Any, row: int) -> str:
    def show(v: Any) -> Any:
        one = np.asarray(v)[row]
        return one.item() if one.ndim == 0 else one.tolist()

    return repr(jax.tree.map(show, value))
