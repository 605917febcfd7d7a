"""Sites: the equations of a graph that the library's kernels do, as loops around what is computed for one element."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from ..arguments.monoids import monoids
from ..calls.genhist import ROW
from ..primitives.ordered.recurrence import NearOne, Product, Recurrence
from ..primitives.ordered.scan_xla import OPERATIONS, STEPS
from ..tracing.jaxprs import REDUCED_BY, scatters
from ..tracing.labels import Labels, leading, own_shape
from ..tracing.lanewise import OWN
from ..tracing.parameters import INDEX_MODES
from .exact_loops import is_exact
from .folds import fold_of
from .graph import Graph
from .sorts import axis_of, is_short

MOST_OWN, MOST_PASSING = 128, 512
"""Numbers that a loop's body computes at once; additions of those of which one equation takes each as it is made."""


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """An equation as a loop nest of ``sizes``, whose first ``kept`` loops are a batch. The body computes the ``roots``: variables
    with the labels of their axes."""

    index: int
    eqn: JaxprEqn
    family: str  # "reduce", "scan", "recurrence", "histogram", "map" or "rows"
    op: Any
    roots: tuple[tuple[Any, Labels], ...]
    sizes: tuple[int, ...]
    kept: int
    lanes: tuple[int, ...] = ()  # axes of the roots behind the loops', along which all is done side by side
    reverse: bool = False
    rows: bool = False  # are a histogram's updates rows of numbers, each added as vectors?
    into: Any = None  # what a histogram adds to; its roots are an index and a value for each of its updates
    beside: tuple[Any, ...] = ()  # a recurrence's flags and what it starts from, if it has them; its roots are factor and term

    @property
    def form(self) -> Any:
        """Sites with equal ones can be one kernel."""
        return self.family, self.sizes, self.kept, self.lanes, self.reverse

    @property
    def elements(self) -> int:
        """Numbers that it combines."""
        return math.prod(self.sizes) * max(math.prod(own_shape(*root)) for root in self.roots)

    @property
    def positioned(self) -> bool:
        """Does the operator take each element's position beside it?"""
        return self.eqn.primitive.name in ("argmax", "argmin")

    @property
    def compares(self) -> bool:
        """Is the greatest or the least wanted?"""
        return self.eqn.primitive.name in ("reduce_max", "reduce_min")


def find_sites(graph: Graph) -> list[Site]:
    found: dict[int, Site] = {}
    for index, eqn in enumerate(graph.eqns):
        rule = _RULES.get(eqn.primitive.name)
        if rule is None or not all(isinstance(n, int) for v in eqn.invars for n in v.aval.shape):
            continue
        site = rule(graph, index, eqn)
        if site is not None and site.elements > 0:
            before = None if site.into is None or isinstance(site.into, Literal) else graph.producer.get(site.into)
            if before in found and _goes_on(graph, found[before], site):
                first = found.pop(before)
                rows = first.rows or site.rows
                site = dataclasses.replace(site, roots=first.roots + site.roots, rows=rows, into=first.into)
            found[index] = site
    return list(found.values())


def _goes_on(graph: Graph, first: Site, then: Site) -> bool:
    """Are these updates of the same bins by the same loops, one after the other, with nobody who looks in between?"""
    alone = graph.users[first.eqn.outvars[0]] == [then.index]
    alike = then.op is first.op and then.sizes == first.sizes and then.eqn.params["mode"] == first.eqn.params["mode"]
    return alone and alike and not graph.needs(then.eqn.invars[1:]) >> first.index & 1


def _reduction(op: Any) -> Callable[..., Site | None]:
    def rule(graph: Graph, index: int, eqn: JaxprEqn) -> Site | None:
        return _reduced(index, eqn, op, sorted(eqn.params["axes"]))

    return rule


def _reduced(index: int, eqn: JaxprEqn, op: Any, axes: Sequence[int]) -> Site | None:
    x, shape = eqn.invars[0], eqn.invars[0].aval.shape
    if not axes or axes != list(range(axes[0], axes[-1] + 1)) or not is_number(x, complex=op is jnp.add):
        return None
    loops = axes[-1] + 1
    return Site(index, eqn, "reduce", op, ((x, leading(loops, len(shape))),), shape[:loops], axes[0], shape[loops:])


def _fold(graph: Graph, index: int, eqn: JaxprEqn) -> Site | None:
    """A reduction by any function."""
    fold = fold_of(graph, eqn)
    return _reduced(index, eqn, fold.op, sorted(eqn.params["dimensions"])) if fold and fold.neutral else None


def _scan(op: Any) -> Callable[..., Site | None]:
    def rule(graph: Graph, index: int, eqn: JaxprEqn) -> Site | None:
        (x,) = eqn.invars
        axis, shape = eqn.params["axis"], x.aval.shape
        if not is_number(x, complex=op in (jnp.add, jnp.multiply)) or x.aval.dtype == np.bool_:
            return None
        labels = leading(axis + 1, len(shape))
        return Site(index, eqn, "scan", op, ((x, labels),), shape[: axis + 1], axis, shape[axis + 1 :], eqn.params["reverse"])

    return rule


def _recurrence(graph: Graph, index: int, eqn: JaxprEqn) -> Site | None:
    call: Recurrence = eqn.params["call"]
    if not isinstance(call.step, Product | NearOne) or call.inner_rank or eqn.params["rank"] or graph.with_rules:
        return None
    factors, (term,), flags, _, init = call.split(eqn.invars)
    if not is_number(term):
        return None
    roots = *((x, () if call.steady else (0,)) for x in factors), (term, (0,))
    beside = (*([] if flags is None else [flags]), *(init or []))
    return Site(index, eqn, "recurrence", None, roots, term.aval.shape, 0, reverse=call.reverse, beside=beside)


def _scatter(op: Any) -> Callable[..., Site | None]:
    def rule(graph: Graph, index: int, eqn: JaxprEqn) -> Site | None:
        into, indices, updates = eqn.invars
        d, shape, depth = eqn.params["dimension_numbers"], into.aval.shape, indices.aval.shape[-1]
        kept = len(d.operand_batching_dims)
        if not d.operand_batching_dims == d.scatter_indices_batching_dims == tuple(range(kept)):
            return None
        bins = tuple(range(kept, kept + depth))
        if not d.inserted_window_dims == d.scatter_dims_to_operand_dims == bins or not bins:
            return None
        rank = indices.aval.ndim - 1
        window = tuple(range(rank, updates.aval.ndim))
        whole = d.update_window_dims == window and updates.aval.shape[rank:] == shape[kept + depth :]
        if not whole or rank == kept or eqn.params["mode"].name not in INDEX_MODES or not is_number(updates, complex=True):
            return None
        roots = tuple((v, leading(rank, v.aval.ndim)) for v in (indices, updates))
        rows = math.prod(updates.aval.shape[rank:]) >= ROW
        return Site(index, eqn, "histogram", op, roots, indices.aval.shape[:-1], kept, rows=rows, into=into)

    return rule


def small_reductions(index: int, eqn: JaxprEqn) -> Iterator[Site]:
    """A reduction of a few numbers for each of many elements, as a loop over these, or over fewer of which each has several
    results. XLA writes what it reduces, if that is made from less; and what loops carry."""
    if is_exact(eqn) and all(isinstance(n, int) for n in eqn.outvars[0].aval.shape):
        yield map_of(index, eqn)
    if is_short(eqn) and is_number(eqn.outvars[0]) and jax.default_backend() == "cpu":
        yield _sorting(index, eqn)
    if eqn.primitive.name not in _SMALL or len(eqn.outvars) != 1:
        return
    (out,), shape = eqn.outvars, eqn.invars[0].aval.shape
    axes = sorted(eqn.params["axes"])
    if not axes or not all(isinstance(n, int) for n in shape) or not is_number(out, complex=True):
        return
    for rank in range(axes[0], 0, -1):
        if 0 < math.prod(shape[rank:]) <= MOST_PASSING and math.prod(out.aval.shape[rank:]) <= MOST_OWN:
            yield map_of(index, eqn, rank)
    if axes[-1] < len(shape) - 1 and 0 < math.prod(shape[a] for a in axes) <= MOST_OWN:
        yield map_of(index, eqn)


def _sorting(index: int, eqn: JaxprEqn) -> Site:
    """A sort, in loops along the other axes."""
    (out,), axis = eqn.outvars, axis_of(eqn)
    labels = tuple(OWN if a == axis else a - (a > axis) for a in range(out.aval.ndim))
    return Site(index, eqn, "map", None, ((out, labels),), out.aval.shape[:axis] + out.aval.shape[axis + 1 :], 0)


def map_of(index: int, eqn: JaxprEqn, loops: int | None = None) -> Site:
    """An equation's result, made in loops along its first axes: along all of them if it is not said of how many."""
    (out,) = eqn.outvars
    loops = out.aval.ndim if loops is None else loops
    return Site(index, eqn, "map", None, ((out, leading(loops, out.aval.ndim)),), out.aval.shape[:loops], 0)


_SMALL = frozenset("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or argmax argmin".split())


def extreme(which: str, dtype: Any) -> Any:
    """The "least" or "greatest" number of a dtype; infinities count."""
    d, greatest = np.dtype(dtype), which == "greatest"
    if jnp.issubdtype(d, jnp.floating):
        return np.inf if greatest else -np.inf
    return greatest if d == np.bool_ else (jnp.iinfo(d).max if greatest else jnp.iinfo(d).min)


def is_number(x: Any, complex: bool = False) -> bool:
    d = x.aval.dtype
    return (
        jnp.issubdtype(d, jnp.floating)
        or jnp.issubdtype(d, jnp.integer)
        or jnp.issubdtype(d, jnp.bool_)
        or (complex and jnp.issubdtype(d, jnp.complexfloating))
    )


_RULES: dict[str, Callable[..., Site | None]] = {
    **{name: _reduction(OPERATIONS[how]) for name, how in REDUCED_BY.items()},
    "argmax": _reduction(monoids.argmax),
    "argmin": _reduction(monoids.argmin),
    "linear_recurrence": _recurrence,
    "reduce": _fold,
    **{f"cum{how}": _scan(STEPS[name]) for how, name in (("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min"))},
    "cumlogsumexp": _scan(jnp.logaddexp),
    **{name: _scatter(STEPS[how]) for how in ("add", "mul", "min", "max") for name in scatters(how)},
}


def is_filled_with(graph: Graph, atom: Any, value: Any) -> bool:
    """Is an array the same number everywhere, this one?"""
    filling = graph.before(atom, ("broadcast_in_dim", "convert_element_type", "copy"))
    if not isinstance(filling, Literal):
        return False
    number = np.asarray(filling.val)
    return number.ndim == 0 and bool(number == value) and not (value == 0 and _is_negative(complex(number)))


def _is_negative(number: complex) -> bool:
    """Is a part of it, be it a zero?"""
    return bool(np.signbit([number.real, number.imag]).any())
