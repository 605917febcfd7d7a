"""Loops of a fixed number of steps whose body is a stencil of what it carries: several steps in one pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ...primitives.avals import typed
from ...tracing.jaxprs import depending_on, run_in, scan_counts
from ..graph import Graph, flat_graph
from .cells import Axis, Cells, Node, Read, Split, Unclear
from .dear import dear
from .moves import RULES
from .pays import fewest_cells, why_no_steps
from .stencil import BROADCAST, Keep, Layout


def as_steps(eqn: JaxprEqn, with_rules: bool = False) -> tuple[str, Callable[..., list[Any]]] | None:
    """A scan as a stencil of so many steps: in words, and a function of its operands; None where it is something else."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return None
    consts, carries = scan_counts(eqn)
    length, body = eqn.params["length"], eqn.params["jaxpr"]
    if len(eqn.invars) > consts + carries or len(eqn.outvars) > carries or not isinstance(length, int) or length < 2:
        return None
    if not isinstance(body, ClosedJaxpr):
        return None
    try:
        loop = _Loop(flat_graph(body, with_rules=with_rules, barriers=False), consts, length)
    except Unclear:
        return None
    return loop.in_words(), lambda *operands: [typed(x, v.aval) for x, v in zip(loop.run(operands), eqn.outvars, strict=True)]


class _Loop:
    """Carries are arrays that a stencil changes, others that stay as they are, and numbers that grow."""

    def __init__(self, graph: Graph, consts: int, length: int):
        self.graph, self.consts, self.length = graph, consts, length
        jaxpr = graph.jaxpr
        self.carried = jaxpr.invars[consts:]
        self.arrays: list[int] = []
        self.growth: dict[int, Any] = {}
        for k, (v, out) in enumerate(zip(self.carried, jaxpr.outvars, strict=True)):
            if out is v:
                continue
            if v.aval.ndim == 0:
                self.growth[k] = self._growth(v, out)
            elif isinstance(out, Literal):
                raise Unclear("a constant")
            else:
                self.arrays.append(k)
        shapes = {tuple(self.carried[k].aval.shape) for k in self.arrays}
        if len(shapes) != 1:
            raise Unclear("grids of several sizes")
        (self.shape,) = shapes
        if not all(isinstance(n, int) and n for n in self.shape):
            raise Unclear("a size that is no number")
        if math.prod(self.shape) < fewest_cells():
            raise Unclear("few cells")
        changing = [v for k, v in enumerate(self.carried) if jaxpr.outvars[k] is not v]
        self.inside = depending_on(jaxpr, changing)
        steady = {v for e in graph.eqns for v in e.outvars if v not in self.inside}
        cells = Cells(graph, self.shape, (), RULES)
        nodes = [cells.root(jaxpr.outvars[k]) for k in self.arrays]
        while (again := dear(cells, (), steady)) is not None:
            if again not in steady:
                raise Unclear("what takes long would be made again and again")
            cells = Cells(graph, self.shape, {*cells.cut, again}, RULES)
            nodes = [cells.root(jaxpr.outvars[k]) for k in self.arrays]
        own = [cells.root(self.carried[k]) for k in self.arrays]
        self.keep, self.nodes = _kept(nodes, own)
        first = [r for r in own if isinstance(r, Read)]
        self.layout = Layout(self.shape, self.nodes, first, self.keep)
        if why := why_no_steps(graph, cells.counts, self.layout):
            raise Unclear(why)
        self._check([v for k, v in enumerate(self.carried) if k in self.arrays], changing)
        if any(v in self.inside for v in self.layout.variables if v not in changing):
            raise Unclear("a step needs more than a stencil")

    def _growth(self, v: Var, out: Any) -> Any:
        """What is added to a number in each step."""
        eqn = self.graph.made_by(out)
        if eqn is not None and eqn.primitive.name == "add" and np.issubdtype(v.aval.dtype, np.integer):
            x, y = eqn.invars
            if x is v and isinstance(y, Literal):
                return y.val
        raise Unclear("a number that depends on the step")

    def _check(self, arrays: Sequence[Var], changing: Sequence[Var]) -> None:
        """Every array that steps change is read in one way: as a kernel's own results are."""
        layout = self.layout
        if any(v in changing for v in layout.captured) or not layout.places:
            raise Unclear("numbers that a step changes")
        sources = [s for s in layout.sources if s.var in changing]
        if [s.var for s in sources] != list(arrays):
            raise Unclear("an array with two boundaries")
        for s in sources:
            if s.fixed or any(a.axis != g or a.mode == BROADCAST or a.lo or a.hi for g, a in enumerate(s.axes)):
                raise Unclear("a part of an array")
        layout.alike(len(arrays))
        for g, (low, high) in enumerate(layout.keep):
            far = [shifts[g] for _, shifts in layout.places]
            if (low or high) and layout.sources[0].axes[g].mode == "wrap" and (-min(far) > low or max(far) > high):
                raise Unclear("a border that keeps its values, and what reads across it")

    def in_words(self) -> str:
        over = " x ".join(map(str, self.shape))
        modes = ", ".join([*self.layout.modes, *(["keep"] if self.keep else [])])
        return f"scan of {self.length} steps: a stencil over {over} cells ({modes or 'nothing beyond'}), several steps to a pass"

    def run(self, operands: Sequence[Any]) -> list[Any]:
        graph, carries = self.graph, operands[self.consts :]
        jaxpr = graph.jaxpr
        env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*graph.consts, *operands), strict=True))
        for eqn in (jaxpr.eqns[k] for k in graph.needed(self.layout.variables)):
            if not any(v in self.inside for v in eqn.outvars):
                run_in(env, eqn)
        read = [env[v] for v in self.layout.variables]
        made = iter(self.layout.call(self.nodes, read, self.length))
        out = []
        for k, (v, x) in enumerate(zip(self.carried, carries, strict=True)):
            if k in self.growth:
                grown = np.asarray(self.growth[k], v.aval.dtype) * np.asarray(self.length).astype(v.aval.dtype)
                x = lax.add(x, grown)
            out.append(next(made) if k in self.arrays else x)
        return out


def _kept(nodes: Sequence[Node], own: Sequence[Node]) -> tuple[Keep | None, list[Node]]:
    """Where cells at the border keep their value: how many, and what the others are; None if there are none."""
    found = [_without_border(node, mine) for node, mine in zip(nodes, own, strict=True)]
    keeps = {keep for keep, _ in found}
    if len(keeps) > 1:
        return None, list(nodes)
    (keep,) = keeps
    return (None, list(nodes)) if not any(map(any, keep)) else (keep, [inner for _, inner in found])


def _without_border(node: Node, own: Node) -> tuple[Keep, Node]:
    assert isinstance(own, Read)
    keep = [(0, 0)] * len(own.axes)
    while isinstance(node, Split):
        n = own.axes[node.axis].size
        borders = [isinstance(p, Read) and p.var is own.var and _plain(p.axes) == _plain(own.axes) for p in node.pieces]
        inner = [k for k, border in enumerate(borders) if not border]
        if keep[node.axis] != (0, 0) or len(inner) != 1 or node.ends[-1] != n:
            break
        (k,) = inner
        keep[node.axis] = node.ends[k - 1] if k else 0, n - node.ends[k]
        node = node.pieces[k]
    return tuple(keep), node


def _plain(axes: Sequence[Axis]) -> list[Axis]:
    return [dataclasses.replace(a, only=None) for a in axes]
