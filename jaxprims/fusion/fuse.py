"""``fuse``: plain JAX functions, sped up."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..arguments.checks import lies_as_taken
from ..tracing.jaxprs import EARLY, with_arguments
from ..tracing.varying import axes_of
from .call import Fused, bind, has_other_types

F = TypeVar("F", bound=Callable[..., Any])


def fuse(fn: F) -> F:
    """A function that returns what ``fn`` does, sooner: its reductions, scans, updates by index and stencils as kernels.

    ``fn`` is plain JAX; it is traced as by ``jax.jit``, once for each combination of shapes and dtypes. What produces the
    elements of a reduction, a cumulative operation or a ``.at[].add`` is computed inside its kernel, so that it is never written
    to memory; those that read the same arrays become one kernel. Shifted slices, rolls, pads and windows with arithmetic around
    them are stencils, and loops of these several steps in one pass. ``lax.associative_scan`` is a scan, and short rows are sorted
    in registers. Sines, powers and other functions that XLA calls for one number after the other are computed in vectors. What
    XLA does as well is left to it. :func:`explain` says what became of a function.

    Args:
      fn: a function of pytrees of arrays. Arguments that are no arrays and no numbers are static, as with
        ``jax.jit(static_argnums=)``; so are Python numbers, if ``fn`` wants them to be.

    Returns:
      A function of the same arguments, whose results have the same structure, shapes, dtypes and weak types. Integers, minima
      and maxima are equal; sums of floats are made in another order, and sines and the like are within a few units in the last
      place. It can be transformed by ``jit``, ``vmap``, ``grad`` and the others, which are taken of ``fn`` and fused again. Under
      ``jax.disable_jit``, ``jax.debug_nans`` and ``jax.debug_infs`` it is ``fn``.

    Raises:
      TypeError: ``fn`` is not callable. What ``fn`` raises.

    Cost: that of the kernels; before the first call some tens of milliseconds for each to be planned, and 0.1 s to be compiled.

    Source: Larsen 2010 (producers in kernels); Futhark's guide (fusion, horizontally too).

    >>> import jax, jax.numpy as jnp
    >>> import jaxprims as jp
    >>> @jp.fuse
    ... def spread(x):
    ...     return jnp.max(x) - jnp.min(x), jnp.mean((x - 1) ** 2)
    >>> [float(y) for y in spread(jnp.array([1.0, 2.0, 3.0, 5.0]))]
    [4.0, 5.25]
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {fn!r}")
    compiled: dict[Any, Any] = {}
    first = 0  # of the ways below that this function can be traced in

    @functools.wraps(fn)
    def fused(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        if jax.config.jax_disable_jit or jax.config.jax_debug_nans or jax.config.jax_debug_infs:
            return fn(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        for way in range(first, len(_KNOWN)):
            try:
                out = _called(compiled, fn, leaves, tree, _KNOWN[way])
            except Exception:  # as of a slice whose length is no number
                if any(map(_is_foreign, leaves)):
                    break
                if not any(type(x) in _NUMBERS and type(x) not in _KNOWN[way] for x in leaves):
                    raise
            else:
                first = way
                return out
        return jax.jit(fn)(*args, **kwargs)  # which says of which argument it is that JAX has no such arrays

    return fused  # type: ignore[return-value]


_NUMBERS = (bool, int, float, complex)
_KNOWN: tuple[tuple[type, ...], ...] = ((), (bool, int), _NUMBERS)
"""Numbers of Python that are known when the function is traced: none, if it does not want any."""


def _is_operand(x: Any, known: tuple[type, ...]) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind in "biufcV" and lies_as_taken(x)
    return isinstance(x, (jax.Array, jax.Ref, jax.core.Tracer)) or (type(x) in _NUMBERS and type(x) not in known)


def _is_foreign(x: Any) -> bool:
    """Is it an array of numbers, or of records, that JAX has no dtype for?"""
    if not isinstance(x, (np.ndarray, np.generic)) or x.dtype.kind not in "fcV":
        return False
    try:
        jnp.result_type(x)
    except TypeError:
        return True
    return False


def _called(compiled: dict[Any, Any], fn: Callable[..., Any], leaves: Sequence[Any], tree: Any, numbers: tuple[type, ...]) -> Any:
    """One compiled function for each structure of the arguments, and for the arguments that are known when it is traced."""
    operands = [x for x in leaves if _is_operand(x, numbers)]
    key: tuple[Any, ...] = (tree,)
    known: dict[int, Any] = {}
    if len(operands) < len(leaves):
        known = {k: x for k, x in enumerate(leaves) if not _is_operand(x, numbers)}
        key += tuple((k, type(x), repr(x) if type(x) in _NUMBERS else x) for k, x in known.items())  # 0.0 is not -0.0
    try:
        call = compiled.get(key)
    except (TypeError, ValueError):  # a set among the arguments, say, or a node that holds an array
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return fn(*args, **kwargs)
    if call is None:
        call = compiled[key] = _compiled(fn, tree, known)
    out, structure = call(operands)
    return jax.tree.unflatten(structure.tree, out)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)  # nodes may hold what cannot be compared, as arrays
class Structure:
    """Of what a function returned."""

    tree: Any


def _compiled(fn: Callable[..., Any], tree: Any, known: dict[int, Any]) -> Callable[[list[Any]], tuple[list[Any], Structure]]:
    def call(operands: list[Any]) -> tuple[list[Any], Structure]:
        return _traced(fn, tree, known, operands)

    call.__name__ = getattr(fn, "__name__", "fused")
    return jax.jit(call, inline=EARLY)


def _traced(fn: Callable[..., Any], tree: Any, known: dict[int, Any], operands: list[Any]) -> tuple[list[Any], Structure]:
    structure: list[Structure] = []

    def flat(*xs: Any) -> list[Any]:
        rest = iter(xs)
        leaves = [known[k] if k in known else next(rest) for k in range(tree.num_leaves)]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        out, returned = jax.tree.flatten(fn(*args, **kwargs))
        structure[:] = [Structure(returned)]
        return out

    closed = _counting(jax.make_jaxpr(flat)(*operands))
    has_references = any(isinstance(x, jax.Ref) for x in [*operands, *closed.consts])
    whole = Fused(closed)
    if has_other_types(closed.jaxpr):  # which kernels do not keep
        out = whole.function(*operands)
    elif whole.stays or has_references or axes_of([*operands, *closed.consts]):
        out = whole.in_place(*operands)
    else:  # captured arrays may be tracers: they are operands
        open_jaxpr = with_arguments(closed.jaxpr, [], [*closed.jaxpr.constvars, *closed.jaxpr.invars])
        out = bind(Fused(ClosedJaxpr(open_jaxpr, [])), [*closed.consts, *operands])
    return out, structure[0]


_MOST_COUNTED = 2**16


def _counting(closed: ClosedJaxpr) -> ClosedJaxpr:
    """With captured positions (a ``jnp.arange`` from before the function) made in it, where it can be seen what they are."""
    counts = [_is_count(x) for x in closed.consts]
    if not any(counts):
        return closed

    def run(*args: Any) -> list[Any]:
        consts = [lax.iota(x.dtype, x.size) if counted else x for x, counted in zip(closed.consts, counts, strict=True)]
        return list(jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*args))

    return jax.make_jaxpr(run)(*(v.aval for v in closed.jaxpr.invars))


def _is_count(x: Any) -> bool:
    known = (
        isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)
    )
    if not known or x.ndim != 1 or x.dtype.kind not in "iu" or not 1 < x.size <= _MOST_COUNTED:
        return False
    return bool(np.array_equal(np.asarray(x), np.arange(x.size)))
