"""One histogram of a call: its operator in parts, its identity and dest, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.bins import Bins
from ..arguments.checks import as_array, sizes_of
from ..arguments.monoid import Monoid, as_monoid
from ..arguments.warnings import FallbackWarning, IdentityWarning, warn_user
from ..operators import classify
from ..operators.operator import Operator, make_operators, started
from ..primitives import devices
from ..tracing.lower import Unsupported
from ..tracing.varying import Axes
from .element import Pair
from .operator import Typed, checked_operator


@dataclasses.dataclass
class Histogram:
    """One histogram: what f gives it, its operator in parts (None: plain XLA), its start."""

    bins: Bins
    pair: Pair
    closed: Any  # the operator's jaxpr on whole bins
    parts: list[tuple[tuple[int, ...], Operator, list[Any]]] | None
    identity: list[Any] | None
    dest: list[Any] | None
    names: devices.Names = ()  # mesh axes over which the elements are sharded
    after: list[Any] | None = None  # then the dest, combined in once

    @property
    def total(self) -> int:
        return math.prod(sizes_of(self.bins.num_bins))


def make_histogram(bins: Bins, pair: Pair, axes: Axes, *, rows: bool = True, names: devices.Names) -> Histogram:
    """``rows``: an array-valued leaf is updated lane by lane, however short it is; no kernel that computes it can do so."""
    monoid = as_monoid(bins.op, bins.identity)
    sizes = sizes_of(bins.num_bins)
    closed = checked_operator(monoid, pair, axes)
    dest, after = _checked_dest(bins, pair, sizes), None
    if names:
        dest, after = None, dest
    identity, concrete = checked_identity(monoid, pair)
    if identity is not None and not concrete:  # one that is only known at run time: the bins start from it
        full = [jnp.broadcast_to(i, (math.prod(sizes), *s)) for i, s in zip(identity, pair.shapes, strict=True)]
        dest = dest if dest is not None else full
        identity, captured = None, identity
        known: list[np.ndarray] | None = None
    else:
        known, captured = identity, None
    try:
        parts, complete = make_operators(closed, known, rows)
        if captured is not None and not axes:
            parts = [(at, *started(op, own, [captured[k] for k in at])) for at, op, own in parts]
    except Unsupported as e:
        warn_fallback("op", e)
        parts, complete = None, identity is not None
    if not complete and dest is None:
        unknown = f"op's neutral element on {_avals_text(pair)} is not known"
        hints = {classify.why_no_identity(op.name) for _, op, _ in parts or () if op.identity is None}
        needed = "identity" if names else "identity or dest"
        raise ValueError(f"identity: bins may stay empty, and {unknown}; give {needed}{''.join(sorted(hints))}")
    if parts is not None and known is not None:
        _check_neutral(parts)
    return Histogram(bins, pair, closed, parts, identity, dest, names, after)


def _avals_text(pair: Pair) -> str:
    return ", ".join(f"{d}{list(s)}" for s, d in zip(pair.shapes, pair.dtypes, strict=True))


def _check_neutral(parts: Sequence[tuple[tuple[int, ...], Operator, list[Any]]]) -> None:
    for _, op, captured in parts:
        if captured or op.identity is None:
            continue
        wrong = classify.wrong_identity(op.program, op.identity)
        if wrong is not None:
            warn_identity(wrong)


def warn_identity(wrong: str) -> None:
    """``wrong``: for which value."""
    silence = "if no value is like that x, all is well: warnings.simplefilter('ignore', jaxprims.IdentityWarning) silences this"
    warn_user(f"identity is not op's neutral element: {wrong}; {silence}", IdentityWarning)


def warn_fallback(name: str, e: Unsupported) -> None:
    warn_user(f"{name} cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning)


def _checked_dest(bins: Bins, pair: Pair, sizes: tuple[int, ...]) -> list[Any] | None:
    if bins.dest is None:
        return None
    leaves, tree = jax.tree.flatten(bins.dest)
    if tree != pair.tree:
        raise TypeError(f"dest must have the values' structure, {pair.tree}, got {tree}")
    out = []
    for leaf, s, d in zip(leaves, pair.shapes, pair.dtypes, strict=True):
        x = as_array(leaf, "dest")
        if x.shape != (*sizes, *s):
            raise ValueError(f"dest must have shape {(*sizes, *s)}, got {x.shape}")
        if x.dtype != d:
            raise TypeError(f"dest must have the values' dtype, {d}, got {x.dtype}")
        out.append(x.reshape((math.prod(sizes), *s)))
    return out


def checked_identity(monoid: Monoid, pair: Typed) -> tuple[list[Any] | None, bool]:
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
            plain = isinstance(leaf, (int, float, complex, np.ndarray, np.generic))
            value = np.asarray(leaf if plain else as_array(leaf, "identity"))
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
        return jnp.broadcast_shapes(shape, target) == tuple(target)
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
