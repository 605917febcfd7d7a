"""A call of the ordered family: its arguments checked, its operator in the form for kernels."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..arguments.monoid import Monoid, as_monoid
from ..arguments.warnings import FallbackWarning, warn_user
from ..primitives import devices
from ..tracing.lower import Unsupported
from ..tracing.varying import Axes, axes_of, element_aval, vary
from .along_axis import Elements, Values, flat_map
from .lanes import find_form
from .operator import checked_operator
from .ordered import Ordered


def check_ordered(
    xs: Any,
    op: Any,
    axis: Any,
    identity: Any,
    map: Any,
    name: str = "xs",
    several: bool = False,
    whole: int = 0,
    rows: int = 0,
    names: devices.Names = (),
    beside: Any = (),
) -> Ordered:
    """Checks the arguments and finds the form for kernels. ``several``: axis may be a tuple, or None for all; ``whole``: a slice
    is one element, however the operator treats it, an array if it has more scalars than this; ``rows``: and an array, however few
    it has, so many of which a kernel makes at once; ``names``: mesh axes over which the elements are sharded; ``beside``: what
    the operator meets besides elements, starts and what cuts them."""
    if callable(xs) and jax.tree.leaves(xs) == [xs]:
        raise TypeError(f"{name} must be arrays, got the function {xs!r:.100}: {name} comes first, then op")
    monoid = as_monoid(op, identity)
    if map is not None and not callable(map):
        raise TypeError(f"map must be a function of one element, got {map!r}")
    leaves, tree = jax.tree.flatten(xs, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError(f"{name} must hold at least one array, got none")
    elements = Elements(leaves, tree, name, axis, several)
    if names:
        elements.numbered(names)
    met = [*elements.given, *jax.tree.leaves((monoid.identity, beside))]
    axes = axes_of(x for x in met if isinstance(x, jax.Array))
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
        call.together = max(1, rows)
        find_form(call, map, whole, rows > 0)
    except Unsupported as e:
        call.operator = None
        warn_user(f"op cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning)
    return call


def _traced(elements: Elements, monoid: Monoid, map: Any, axes: Axes) -> Ordered:
    avals = [element_aval(s, d, axes) for s, d in elements.slices()]
    mapped, values = None, Values(elements.tree, tuple(a.shape for a in avals), tuple(np.dtype(a.dtype) for a in avals))
    if map is not None:
        flat, found = flat_map(elements, map, axes)
        mapped = jax.make_jaxpr(flat)(*avals)
        outs = mapped.out_avals
        values = Values(found[0], tuple(tuple(a.shape) for a in outs), tuple(np.dtype(a.dtype) for a in outs))
    closed = checked_operator(monoid, values, axes)
    return Ordered(elements, values, monoid, closed, mapped, axes, None)
