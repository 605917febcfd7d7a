"""``lax.associative_scan``: the slices of every second element, of every fourth ..., that it is traced to, as one scan.

The function that combines elements is what is made of neighbours at the first level of that tree. What JAX would trace for a scan
by an unknown function is made, and looked up in the graph, equation by equation; where it has the unknown function, the first
level's equations are looked up, for as many elements as there are. What all of it is found to make are the scan's results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive

from ..api.scan import scan
from ..primitives.avals import typed
from ..primitives.ordered.scan_xla import CUMULATIVE, STEPS
from ..tracing.jaxprs import depending_on, run_equation, structs
from .graph import OUTSIDE, Graph, with_equations
from .lookup import Atom, Lookup, follow, without_elements
from .neighbours import Combining, combining
from .pulled import Pulled, pulled

FEWEST = 8
"""Elements below which a tree has too few levels to be known by them."""

_SPLITTING = frozenset("max min reduce_max reduce_min clamp".split())
"""What divides a derivative among equal operands, which depends on the order in which they are combined."""

_OPERATORS = STEPS | {"logaddexp": jnp.logaddexp}

FEWEST_NAMED = 2**10
"""Numbers from which on JAX's own cumulative functions are kernels, which take in what makes these; XLA has windows for them."""

_TREES: dict[str, Callable[..., Any]] = {"cumlogsumexp": jnp.logaddexp, "cumprod": jnp.multiply}
"""Cumulative functions whose derivatives JAX makes of such trees."""

combined_p = Primitive("combined")
"""The unknown function: of one of two neighbours, leaf by leaf, and of the other."""
combined_p.multiple_results = True
combined_p.def_abstract_eval(lambda *avals: avals[: len(avals) // 2])


def scanned_in_order(graph: Graph, with_names: bool = True) -> ClosedJaxpr | None:
    """The function with a scan in place of each such tree; None if there are none. ``with_names``: with JAX's own where there is
    one by such an operator."""
    trees = list(_trees(graph))
    made: dict[Any, Any] = {}
    parts = {v: functools.partial(tree.scanned, with_names, made) for tree in trees for v in tree.outs.values()}
    gradients = {v: tree for tree in trees if tree.gradient is not None for v in tree.gradient.results}
    parts |= {v: functools.partial(tree.pulled, made) for v, tree in gradients.items()}

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        out: Any = eqn.outvars[0] if eqn.outvars else None
        if out not in parts:
            return run_equation(eqn, operands)
        if out not in made:
            made.update(parts[out](value))
        return [typed(made[out], out.aval)]

    return with_equations(graph, equation, made) if trees else None


def with_rule(eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
    """A cumulative function whose derivative would be a tree as a scan that has a rule of its own; None for anything else."""
    op = _TREES.get(eqn.primitive.name)
    if op is None or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return None
    return lambda x: [typed(scan(x, op, axis=eqn.params["axis"], reverse=eqn.params["reverse"]), eqn.outvars[0].aval)]


def _trees(graph: Graph) -> Iterator[_Tree]:
    """The outermost ones."""
    levels = {v: level for eqn in graph.eqns for v in eqn.outvars[:1] if (level := _level(graph, v)) is not None}
    lookup, inside = Lookup(graph), set[int]()
    for out, (x, axis, odd) in reversed(levels.items()):
        if x.aval.shape[axis] < FEWEST or graph.producer[out] in inside:
            continue
        elements, deeper = [x], list[int]()
        while odd in levels:
            deeper.append(graph.producer[odd])
            x, _, odd = levels[odd]
            elements.append(x)
        function = combining(graph, axis, [*elements, odd])
        if function is None or function.program is None:
            continue
        tree = _Tree(lookup, function) if function.is_associative else None
        if tree is None:
            inside.update(deeper[1:])  # not the next level: leaves that are one array here are others there
        elif tree.makes(out):
            inside |= tree.inside
            if tree.is_worth_a_scan():
                yield tree


def _level(graph: Graph, out: Any) -> tuple[Any, int, Any] | None:
    """The elements that this may be the scan of, along which axis, and the results of every second of them."""
    if graph.name_of(out) not in ("add", "or", "add_any"):
        return None
    pads = [eqn for v in graph.operands_of(out) if (eqn := graph.made_by(v)) is not None and eqn.primitive.name == "pad"]
    if len(pads) != 2:
        return None
    axes = [a for a, (_, _, between) in enumerate(pads[0].params["padding_config"]) if between == 1]
    even, odd = (pad.invars[0] for pad in pads)
    first = graph.made_by(graph.before(even, ("concatenate",)))
    if len(axes) != 1 or first is None or first.primitive.name != "slice" or first.invars[0].aval.shape != out.aval.shape:
        return None
    return first.invars[0], axes[0], odd


@functools.lru_cache(maxsize=64)
def _scan_by_unknown(axis: int, *leaves: jax.ShapeDtypeStruct) -> Jaxpr:
    """What JAX traces for arrays like these and an unknown function."""
    return jax.make_jaxpr(lambda *xs: lax.associative_scan(lambda p, q: combined_p.bind(*p, *q), xs, axis=axis))(*leaves).jaxpr


class _Tree:
    """``outs``: the results, by leaf; ``inside``: equations; ``gradient``: if that is there, too."""

    def __init__(self, lookup: Lookup, function: Combining):
        self.lookup, self.graph, self.function = lookup, lookup.graph, function
        self.leaves, self.axis = function.leaves, function.axis
        self.outs: dict[int, Any] = {}
        self.inside = set[int]()
        self.gradient: Pulled | None = None

    def makes(self, out: Any) -> bool:
        """Is all of it there that makes this, and is that behind whatever it is made of?"""
        made = _scan_by_unknown(self.axis, *structs(self.leaves))
        known: dict[Any, Atom] = dict(zip(made.invars, self.leaves, strict=True))
        follow(made.eqns, known, self._there)
        self.outs = {i: v for i, x in enumerate(made.outvars) if (v := known[x]) is not None}
        needed, after = self.graph.needs(list(self.outs.values())), depending_on(self.graph.jaxpr, self.leaves)
        self.inside = {k for k in self.inside if needed >> k & 1 and self.graph.eqns[k].outvars[0] in after}
        first = min((self.graph.producer[v] for v in self.outs.values()), default=0)
        read = [*self.leaves, *self.function.captured]
        return out in self.outs.values() and all(self.graph.producer.get(v, -1) < first for v in read)

    def _there(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        """What the graph makes of these by an equation, or by the unknown function."""
        if eqn.primitive is not combined_p:
            return self.lookup.there(self.inside, eqn, operands)
        count, function = eqn.outvars[0].aval.shape[self.axis], self.function
        if count == 0:
            return [*map(without_elements, eqn.outvars)]
        known: dict[Any, Atom] = {v: operands[which * len(self.leaves) + i] for v, (which, i) in function.slots.items()}
        known |= {v: v for v in function.captured}
        sizes = self.leaves[0].aval.shape[self.axis] // 2, count
        follow(function.jaxpr.eqns, known, functools.partial(self.lookup.there, self.inside, sizes=sizes))
        results = [known[v] for v in function.jaxpr.outvars]
        if count == 1 and any(e.primitive.name == "dot_general" for e in function.jaxpr.eqns):
            slots = {v: divmod(k, len(self.leaves)) for k, v in enumerate(operands) if v is not None}
            for i in [i for i, v in enumerate(results) if v is None]:
                results[i], eqns = function.of_one(self.graph, slots, i, eqn.outvars[i].aval)
                self.inside |= {self.graph.producer[e.outvars[0]] for e in eqns}
        return results

    def is_worth_a_scan(self) -> bool:
        """Does nobody want the middle of it, but its own gradient, which is there, too?"""
        name, outs = self.function.name, list(self.outs.values())
        if self.graph.with_rules and any(e.primitive.name == "stop_gradient" for e in self.function.jaxpr.eqns):
            return False
        splits = name != "logaddexp" and any(e.primitive.name in _SPLITTING for e in self.function.jaxpr.eqns)
        if self._is_alone(self.inside, outs):
            return not (splits and self.graph.with_rules)
        if splits:
            return False
        known = CUMULATIVE.get(name)
        by_jax = None if known is None else lambda x: [known(x, axis=self.axis)]
        self.gradient = pulled(self.lookup, self.leaves, outs, by_jax)
        return self.gradient is not None and self._is_alone(self.inside | self.gradient.inside, [*outs, *self.gradient.results])

    def _is_alone(self, inside: Collection[int], results: Collection[Any]) -> bool:
        """Does nobody else want what these equations make, but for the results and slices of the leaves?"""
        eqns = self.graph.eqns
        within = [eqns[k] for k in inside if eqns[k].primitive.name != "slice" or eqns[k].invars[0] not in self.leaves]
        users = {u for eqn in within for v in eqn.outvars if v not in results for u in self.graph.users.get(v, ())}
        return all(u != OUTSIDE and all(v.aval.size == 0 for v in eqns[u].outvars) for u in users.difference(inside))

    # --- the scan

    def scanned(self, with_names: bool, kept: dict[Any, Any], value: Callable[[Any], Any]) -> dict[Any, Any]:
        """The results. What their gradient needs is kept."""
        leaves, captured, name = [*map(value, self.leaves)], [*map(value, self.function.captured)], self.function.name
        if name in CUMULATIVE and with_names and not self.gradient and leaves[0].size >= FEWEST_NAMED:
            return {self.outs[0]: CUMULATIVE[name](leaves[0], axis=self.axis)}

        def op(p: Sequence[Any], q: Sequence[Any]) -> tuple[Any, ...]:
            known = _OPERATORS.get(name)
            return tuple(self.function(p, q, captured, [self.axis])) if known is None else (known(p[0], q[0]),)

        def function(*xs: Any) -> list[Any]:
            made = scan(xs, op, axis=self.axis)
            return [made[i] for i in self.outs]

        if self.gradient is None:
            results = function(*leaves)
        else:
            results, kept[self] = jax.vjp(function, *leaves)
        return dict(zip(self.outs.values(), results, strict=True))

    def pulled(self, kept: dict[Any, Any], value: Callable[[Any], Any]) -> dict[Any, Any]:
        """What is made of the gradient, and of what is added to it."""
        assert self.gradient is not None
        made, more = kept[self]([*map(value, self.gradient.begins)]), self.gradient.more
        sums = [functools.reduce(lax.add, [*map(value, also), x]) for x, also in zip(made, more, strict=True)]
        return dict(zip(self.gradient.results, sums, strict=True))
