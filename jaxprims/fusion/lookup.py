"""What JAX would make of a function, looked up in a graph: equation by equation, by primitive, parameters and operands."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from ..tracing.jaxprs import assembled, depending_on, variables
from .graph import Graph, reached

Atom = Any
"""A variable of the graph, or what a number or an array without elements is; None of what is not there."""


@dataclasses.dataclass(frozen=True, eq=False)
class Lookup:
    graph: Graph

    @functools.cached_property
    def _of(self) -> dict[Any, list[JaxprEqn]]:
        """Equations by their names and operands."""
        found = defaultdict[Any, list[JaxprEqn]](list)
        for eqn in self.graph.eqns:
            if eqn.outvars and not eqn.effects:
                atoms = tuple(map(atom, eqn.invars))
                for operands in {atoms, tuple(map(without_elements, atoms))}:
                    found[_name(eqn), operands].append(eqn)
        return found

    def there(
        self, inside: set[int], eqn: JaxprEqn, operands: Sequence[Atom], sizes: tuple[int, int] | None = None
    ) -> Sequence[Atom]:
        """The results of this equation on these operands; its index joins those ``inside``. ``sizes``: on the second number of
        elements, where the one that is given is on the first; what is the same for both may be, too."""
        found = [e for e in self._of.get((_name(eqn), tuple(operands)), ()) if are_alike(eqn, e, sizes)]
        if not found:
            return [None] * len(eqn.outvars)
        first = min(found, key=lambda e: sizes is not None and e is eqn)
        inside.add(self.graph.producer[first.outvars[0]])
        return first.outvars


def atom(v: Any) -> Atom:
    return (str(v.val), str(v.aval)) if isinstance(v, Literal) else v


def without_elements(x: Atom) -> Atom:
    """All that have none are the same, if their shapes are."""
    aval = getattr(x, "aval", None)
    return (aval.shape, aval.dtype) if aval is not None and 0 in getattr(aval, "shape", ()) else x


def follow(eqns: Iterable[JaxprEqn], known: dict[Any, Atom], there: Callable[[JaxprEqn, Sequence[Atom]], Sequence[Atom]]) -> None:
    """Adds to the ``known`` atoms those of what equations make of them."""
    for eqn in eqns:
        operands = [atom(v) if isinstance(v, Literal) else known.get(v) for v in eqn.invars]
        known.update(zip(eqn.outvars, there(eqn, operands), strict=True))


def between(graph: Graph, starts: Sequence[Any], outs: Sequence[Any]) -> tuple[Jaxpr, list[Any]]:
    """What makes ``outs`` of ``starts``, by equations that depend on these and by broadcasts; and the variables of which it does,
    besides."""
    depend = depending_on(graph.jaxpr, starts).difference(starts)

    def is_ours(v: Any) -> bool:
        return v in depend or (v not in starts and graph.name_of(v) == "broadcast_in_dim")

    made = [v for v in reached(outs, lambda v: graph.operands_of(v) if is_ours(v) else ()) if is_ours(v)]
    eqns = [graph.eqns[k] for k in sorted({graph.producer[v] for v in made})]
    own = {*starts, *(v for eqn in eqns for v in eqn.outvars)}
    read = [v for atoms in (*(eqn.invars for eqn in eqns), outs) for v in variables(atoms)]
    captured = list(dict.fromkeys(v for v in read if v not in own))
    return assembled([], [*starts, *captured], outs, eqns), captured


def are_alike(a: JaxprEqn, b: JaxprEqn, sizes: tuple[int, int] | None = None) -> bool:
    """Are they the same but for their operands? ``sizes``: one on so many elements, the other on so many."""
    if _name(a) != _name(b) or a.params.keys() != b.params.keys():
        return False
    each = ((k, p, b.params[k]) for k, p in a.params.items())
    return a is b or all(_same(p, q, sizes) or (k == "strides" and {*(p or ()), *(q or ())} <= {1}) for k, p, q in each)


def _same(p: Any, q: Any, sizes: tuple[int, int] | None) -> bool:
    if isinstance(p, tuple) and isinstance(q, tuple) and len(p) == len(q):
        return all(_same(x, y, sizes) for x, y in zip(p, q, strict=True))
    return p is q or str(p) == str(q) or (isinstance(p, int) and (p, q) == sizes)


def _name(eqn: JaxprEqn) -> str:
    return eqn.primitive.name.removesuffix("_any")  # derivatives are added by a primitive of their own
