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
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive

from ..api.scan import scan
from ..operators.classify import is_associative
from ..primitives.avals import typed
from ..primitives.ordered.scan_xla import CUMULATIVE, STEPS
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import depending_on, run_equation, structs
from .graph import OUTSIDE, Graph, with_equations
from .lookup import Atom, Lookup, follow, kind
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
    if not trees:
        return None
    made_by = {v: (tree, i) for tree in trees for i, v in tree.outs.items()}
    pulled_by = {v: (tree, g, i) for tree in trees if (g := tree.gradient) for i, v in enumerate(g.results)}
    made: dict[Any, Any] = {}

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        out: Any = eqn.outvars[0] if eqn.outvars else None
        if out in made_by:
            tree, i = made_by[out]
            if tree not in made:
                made[tree] = tree.scanned(value, with_names)
            return [typed(made[tree][i], out.aval)]
        if out in pulled_by:
            tree, gradient, i = pulled_by[out]
            if gradient not in made:
                made[gradient] = tree.pull([value(x) for x in gradient.begins])
            return [typed(functools.reduce(lax.add, [*map(value, gradient.more[i]), made[gradient][i]]), out.aval)]
        return run_equation(eqn, operands)

    return with_equations(graph, equation)


def with_rule(eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
    """A cumulative function whose derivative would be a tree as a scan that has a rule of its own; None for anything else."""
    op = _TREES.get(eqn.primitive.name)
    if op is None or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return None
    return lambda x: [typed(scan(x, op, axis=eqn.params["axis"], reverse=eqn.params["reverse"]), eqn.outvars[0].aval)]


def _trees(graph: Graph) -> Iterator[_Tree]:
    """The outermost ones."""
    levels = {v: level for eqn in graph.eqns for v in eqn.outvars[:1] if (level := _level(graph, v)) is not None}
    lookup = Lookup(graph) if levels else None
    inside = set[int]()
    for out, (x, axis, odd) in reversed(levels.items()):
        if lookup is None or x.aval.shape[axis] < FEWEST or graph.producer[out] in inside:
            continue
        elements = [x]
        while odd in levels:
            x, _, odd = levels[odd]
            elements.append(x)
        try:
            tree = _Tree(lookup, combining(graph, axis, [*elements, odd]))
            if tree.makes(out):
                inside |= tree.inside
                if tree.is_worth_a_scan():
                    yield tree
        except Unsupported:
            continue


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


class _Tree:
    """``outs``: the results, by leaf; ``inside``: equations; ``gradient``: if that is there, too."""

    def __init__(self, lookup: Lookup, one: Combining):
        self.lookup, self.graph, self.combining = lookup, lookup.graph, one
        self.leaves, self.axis = one.leaves, one.axis
        self.outs: dict[int, Any] = {}
        self.inside = set[int]()
        self.gradient: Pulled | None = None

    def makes(self, out: Any) -> bool:
        """Is all of it there that makes this, and is that behind whatever it is made of?"""
        self.combining.traced([self.axis])

        def scanned(*xs: Any) -> Any:
            return lax.associative_scan(lambda p, q: combined_p.bind(*p, *q), xs, axis=self.axis)

        made = jax.make_jaxpr(scanned)(*structs(self.leaves)).jaxpr
        known: dict[Any, Atom] = dict(zip(made.invars, self.leaves, strict=True))
        follow(made.eqns, known, self._there)
        self.outs = {i: v for i, x in enumerate(made.outvars) if (v := known[x]) is not None}
        needed = self.graph.needs(list(self.outs.values()))
        after = depending_on(self.graph.jaxpr, self.leaves)
        self.inside = {k for k in self.inside if needed >> k & 1 and self.graph.eqns[k].outvars[0] in after}
        first = min((self.graph.producer[v] for v in self.outs.values()), default=0)
        read = [*self.leaves, *self.combining.captured]
        return out in self.outs.values() and all(self.graph.producer.get(v, -1) < first for v in read)

    def _there(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> Sequence[Atom]:
        """What the graph makes of these by an equation, or by the unknown function."""
        if eqn.primitive is not combined_p:
            return self.lookup.there(self.inside, eqn, operands)
        one, half, count = self.combining, self.leaves[0].aval.shape[self.axis] // 2, eqn.outvars[0].aval.shape[self.axis]
        if count == 0:
            return [*map(kind, eqn.outvars)]
        known = {v: operands[which * len(self.leaves) + i] for v, (which, i) in one.slots.items()} | {v: v for v in one.captured}
        follow(one.eqns, known, functools.partial(self.lookup.there, self.inside, sizes=(half, count)))
        results = [known.get(v) for v in one.results]
        if count == 1 and any(e.primitive.name == "dot_general" for e in one.eqns):
            slots = {v: divmod(k, len(self.leaves)) for k, v in enumerate(operands) if v is not None}
            for i in [i for i, v in enumerate(results) if v is None]:
                results[i], eqns = one.made_of_one(self.graph, slots, i)
                self.inside |= {self.graph.producer[e.outvars[0]] for e in eqns}
        return results

    def is_worth_a_scan(self) -> bool:
        """Is its function associative, as far as that can be tried, and does nobody want the middle of it, but its own gradient,
        which is there, too?"""
        program, name = self.combining.program, self.combining.name
        if program is None or not is_associative(program, len(program.results)):
            return False
        splits = name != "logaddexp" and any(e.primitive.name in _SPLITTING for e in self.combining.eqns)
        outs = list(self.outs.values())
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
        eqns = [self.graph.eqns[k] for k in inside]
        within = [
            v for e in eqns if e.primitive.name != "slice" or e.invars[0] not in self.leaves for v in e.outvars if v not in results
        ]
        return all(u in inside or self._is_of_none(u) for v in within for u in self.graph.users.get(v, ()))

    def _is_of_none(self, user: int) -> bool:
        return user != OUTSIDE and all(v.aval.size == 0 for v in self.graph.eqns[user].outvars)

    # --- the scan

    def scanned(self, value: Callable[[Any], Any], with_names: bool) -> dict[int, Any]:
        """The results."""
        leaves, captured, name = [*map(value, self.leaves)], [*map(value, self.combining.captured)], self.combining.name
        if name in CUMULATIVE and with_names and not self.gradient and leaves[0].size >= FEWEST_NAMED:
            return {0: CUMULATIVE[name](leaves[0], axis=self.axis)}

        def op(p: Sequence[Any], q: Sequence[Any]) -> tuple[Any, ...]:
            known = _OPERATORS.get(name)
            return self.combining.of_lane(p, q, captured, [self.axis]) if known is None else (known(p[0], q[0]),)

        def function(*xs: Any) -> list[Any]:
            made = scan(xs, op, axis=self.axis)
            return [made[i] for i in self.outs]

        if self.gradient is None:
            results = function(*leaves)
        else:
            results, self._pull = jax.vjp(function, *leaves)
        return dict(zip(self.outs, results, strict=True))

    def pull(self, begins: Sequence[Any]) -> Sequence[Any]:
        """The leaves' cotangents, of the results'."""
        return self._pull(list(begins))
