"""What scans and reductions have in common: a call's elements and operator, checked and in the form for kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..arguments.checks import as_array
from ..arguments.monoid import Monoid
from ..operators.classify import why_no_identity
from ..operators.operator import Operator, identity_leaves
from ..operators.traced import Traced
from ..primitives.ordered.call import OrderedCall
from ..tracing.varying import Axes, vary
from .along_axis import Elements, Values, normal_axis


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
    together: int = 1  # elements of a map that a kernel makes at once

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

    @property
    def hint(self) -> str:
        """What to do where the operator's identity is not known, if there is more to say."""
        return "" if self.operator is None else why_no_identity(self.operator.name)

    def static(self, kind: str, **others: Any) -> OrderedCall:
        """The static half of a call that a kernel does."""
        assert self.f is not None and self.operator is not None
        given = self.f, self.positions, kind, self.operator, len(self.captured), self.inner_rank
        return OrderedCall(*given, together=self.together, **others)

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
