"""What scans and reductions have in common: a call's elements and operator, checked and in the form for kernels."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ._along_axis import Elements, Values, flat_map, normal_axis, trace_operator
from ._bins import as_array
from ._lanes import find_form
from ._monoid import Monoid, as_monoid
from ._warnings import FallbackWarning
from .frontend.lower import Unsupported
from .frontend.operator import Operator, Traced, identity_leaves
from .frontend.varying import Axes, axes_of, element_aval, vary


@dataclasses.dataclass
class Ordered:
    """A call of the ordered family, checked. ``operator`` is None where plain XLA has to do."""

    elements: Elements
    values: Values
    monoid: Monoid
    closed: ClosedJaxpr  # the operator on slices
    mapped: ClosedJaxpr | None  # map on slices
    axes: Axes
    identity: list[Any] | None  # given, or the operator's own; on slices
    lanes: int = 0  # leading axes of a slice that are lanes
    f: Traced | None = None
    f_captured: list[Any] = dataclasses.field(default_factory=list)
    operator: Operator | None = None
    captured: list[Any] = dataclasses.field(default_factory=list)

    @property
    def positions(self) -> tuple[np.dtype | None, ...]:
        return tuple(self.elements.position_dtype if p else None for p in self.elements.is_position)

    @property
    def rank(self) -> int:
        """Batch axes: those before the scanned one."""
        return self.elements.at

    @property
    def inner_rank(self) -> int:
        return self.lanes - self.elements.at

    @property
    def own_identity(self) -> bool:
        """Do kernels hold the identity to be used? They cannot if it is only known at run time or differs from lane to lane."""
        if self.operator is None or self.operator.identity is None:
            return False
        given = self.identity or ()
        if any(isinstance(i, jax.core.Tracer) for i in given):
            return False
        return all(bool(np.all(a == b)) for a, b in zip(given, identity_leaves(self.operator), strict=False))

    def start_leaves(self, init: Any, name: str = "init") -> list[Any]:
        """A value like the operator's, given by the user, as arrays of the slices' shapes."""
        leaves, tree = jax.tree.flatten(init)
        if tree != self.values.tree:
            raise TypeError(f"{name} must have the values' structure, {self.values.tree}, got {tree}")
        out = []
        for leaf, shape, dtype in zip(leaves, self.values.shapes, self.values.dtypes, strict=True):
            if type(leaf) is int and jnp.issubdtype(dtype, jnp.integer):
                if not jnp.iinfo(dtype).min <= leaf <= jnp.iinfo(dtype).max:
                    raise ValueError(f"{name} must fit the values' dtype, {dtype}, got {leaf}")
                leaf = np.asarray(leaf, dtype)
            x = as_array(leaf, name)
            if x.dtype != dtype and (not jax.typeof(x).weak_type or jnp.result_type(x, dtype) != dtype):
                raise TypeError(f"{name} must have the values' dtype, {dtype}, got {x.dtype}")
            try:
                out.append(vary(jnp.broadcast_to(x.astype(dtype), shape), self.axes))
            except ValueError:
                raise ValueError(f"{name} must broadcast to a slice's shape {shape}, got {x.shape}") from None
        return out

    def plain_operator(self) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The operator for scan_xla: on many pairs of slices."""
        fn = jax.vmap(jaxpr_as_fun(self.closed))
        return lambda a, b: list(fn(*a, *b))

    def plain_values(self) -> list[Any]:
        """What is combined, with the axis first."""
        full = self.elements.on_slices(self.axes)
        return list(full if self.mapped is None else jax.vmap(jaxpr_as_fun(self.mapped))(*full))

    def restored(self, leaves: Sequence[Any], at: int) -> Any:
        """Results with the axis at ``at`` as a pytree, the axis where it was asked for."""
        axis = self.elements.axis
        out = [jnp.moveaxis(x, at, normal_axis(axis, x.ndim, "xs")) for x in leaves]
        return jax.tree.unflatten(self.values.tree, out)


def ordered(xs: Any, op: Any, axis: Any, identity: Any, map: Any, name: str = "xs", several: bool = False) -> Ordered:
    """Checks the arguments and finds the form for kernels. ``several``: axis may be a tuple, or None for all."""
    monoid = as_monoid(op, identity)
    if map is not None and not callable(map):
        raise TypeError(f"map must be a function of one element, got {map!r}")
    leaves, tree = jax.tree.flatten(xs, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError(f"{name} must hold at least one array, got none")
    elements = Elements(leaves, tree, name, axis, several)
    axes = axes_of(x for x in [*elements.given, *jax.tree.leaves(monoid.identity)] if isinstance(x, jax.Array))
    while True:
        call = _traced(elements, monoid, map, axes)
        seen = axes | axes_of([*call.closed.consts, *(call.mapped.consts if call.mapped is not None else ())])
        if seen == axes:
            break
        axes = seen  # inside shard_map, and a captured array varies over more than the operands: once more, for all of them
    elements.given = [vary(x, axes) for x in elements.given]
    if any(0 in s for s in call.values.shapes):
        return call  # nothing to combine
    try:
        find_form(call, map)
    except Unsupported as e:
        call.operator = None
        warnings.warn(f"op cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning, stacklevel=4)
    return call


def _traced(elements: Elements, monoid: Monoid, map: Any, axes: Axes) -> Ordered:
    avals = [element_aval(s, d, axes) for s, d in elements.slices()]
    mapped, values = None, Values(elements.tree, tuple(a.shape for a in avals), tuple(np.dtype(a.dtype) for a in avals))
    if map is not None:
        flat, found = flat_map(elements, map, axes)
        mapped = jax.make_jaxpr(flat)(*avals)
        outs = mapped.out_avals
        values = Values(found[0], tuple(tuple(a.shape) for a in outs), tuple(np.dtype(a.dtype) for a in outs))
    closed = trace_operator(monoid, values, values.shapes, axes)
    for s, d, o in zip(values.shapes, values.dtypes, closed.out_avals, strict=True):
        if tuple(o.shape) != s or np.dtype(o.dtype) != d:
            raise TypeError(f"op must keep shape and dtype: on {d}{list(s)} it returned {o.dtype}{list(o.shape)}")
    return Ordered(elements, values, monoid, closed, mapped, axes, None)
