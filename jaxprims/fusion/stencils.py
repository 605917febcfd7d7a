"""Stencils in plain code: elementwise functions of several shifted views of arrays, as calls of the stencil family."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from ..operators.operator import make_traced
from ..primitives.avals import typed
from ..primitives.stencil import bind
from ..primitives.stencil_call import Bounds, StencilCall, Window, fill_of
from ..primitives.stencil_made import looked
from ..tracing import elementwise
from ..tracing.jaxprs import with_arguments
from ..tracing.lower import to_program
from ..tracing.varying import axes_of
from .cells import FIXED, MOST_BEYOND, RULES, Apply, Axis, Cells, Coordinate, Node, Number, Read, Split, Unclear, work
from .graph import Graph

WRITTEN = 8
"""Additions for a cell from which on what is written anyway is read."""

AGAIN = 24
"""Additions for a cell from which on what is read at several places is written once, not computed again for each."""

MOST_LANES = 64
"""Numbers behind the grid's axes that are walked through together with the innermost one."""

MOST_RESULTS = 4
"""Results of one kernel."""

TAKEN = frozenset(elementwise.NAMES) | RULES.keys() | {"split"}
"""Primitives that a stencil takes in."""


@dataclasses.dataclass(frozen=True, eq=False)
class Root:
    """An equation whose result a stencil makes."""

    index: int
    eqn: JaxprEqn


class Stencil:
    """Equations of one grid as a kernel. ``leaves``: the variables that it reads; ``taken``: equations in it."""

    def __init__(self, graph: Graph, roots: Sequence[Root], cut: Collection[Var], written: Collection[Var] = ()):
        self.graph, self.sites = graph, tuple(roots)
        self.shape: tuple[int, ...] = tuple(roots[0].eqn.outvars[0].aval.shape)
        own = {r.eqn.outvars[0] for r in roots}
        while True:
            self.cells = Cells(graph, self.shape, frozenset(cut) - own)
            self.nodes = [self.cells.root(r.eqn.outvars[0]) for r in roots]
            dear = self._dear(own, written)
            if dear is None:
                break
            cut = frozenset(cut) | {dear}
        self.taken = set(self.cells.counts)
        self.layout = Layout(self.shape, self.nodes)
        self.leaves = self.layout.variables

    def _dear(self, own: Collection[Var], written: Collection[Var]) -> Var | None:
        """What is cheaper written once than computed for each read of it: the last such."""
        counts = self.cells.counts
        for index in sorted(counts, reverse=True):
            (var,) = self.graph.eqns[index].outvars
            if (counts[index] > 1 or var in written) and var not in own and work(self.graph, index):
                behind = self.graph.ancestors[index]
                each = sum(work(self.graph, k) for k in counts if behind >> k & 1)
                if var in written and each >= WRITTEN:
                    return var
                if (counts[index] - 1) * each >= AGAIN and math.prod(var.aval.shape) * 2 > math.prod(self.shape):
                    return var
        return None

    def run(self, read: Sequence[Any]) -> list[Any]:
        """The results, given the leaves."""
        out = self.layout.call(self.nodes, read)
        return [typed(x, s.eqn.outvars[0].aval) for x, s in zip(out, self.sites, strict=True)]

    def in_words(self) -> str:
        names = dict.fromkeys(self.graph.eqns[k].primitive.name for k in sorted(self.taken))
        over = " x ".join(map(str, self.shape))
        reads = ", ".join(v.aval.str_short(short_dtypes=True) for v in self.leaves)
        modes = ", ".join(self.layout.modes)
        number = f"{len(self.layout.reads)} reads"
        return f"stencil over {over} cells: one kernel, {number} of {reads}" + (f" ({modes})" if modes else "") + f"; takes in {', '.join(names)}"


# --- how a kernel reads what it reads -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Source:
    """An array as a kernel's operand: of a variable, at fixed positions on some axes; of the grid's axes those that it has."""

    var: Var
    axes: tuple[tuple[int, int, str, int, int], ...]  # of the variable, by axis of the grid: axis, size, mode, lo, hi
    fixed: tuple[tuple[int, int], ...]
    fill: Number | None


class Layout:
    """Which axes are a batch, a grid, lanes; arrays and what is read of them; numbers that are the same for many cells."""

    def __init__(self, shape: tuple[int, ...], nodes: Sequence[Node]):
        if not shape or not math.prod(shape):
            raise Unclear("there are no cells")
        self.shape = shape
        every = list(_walk(nodes))
        self.axes = {n: self._axes(n) for n in every if isinstance(n, Read)}
        last = len(shape) - 1
        arrays = [r for r, axes in self.axes.items() if any(a.along == last for a in axes)]
        self.numbers = [r for r in self.axes if r not in arrays]
        counted = {n.axis for n in every if isinstance(n, (Split, Coordinate))}
        counted.update(a.along for r in self.numbers for a in self.axes[r] if a.along != FIXED)
        self.counted = sorted(counted)
        self.lanes, self.batch = self._roles(counted, arrays)
        self.inner = range(self.batch, len(shape) - self.lanes)
        self.sources: dict[Source, list[tuple[int, ...]]] = {}
        found = {r: self._source(r) for r in arrays}
        for source, shifts in found.values():
            self.sources.setdefault(source, []).append(shifts)
        self.origins = [tuple((min(x) + max(x)) // 2 for x in zip(*shifts, strict=True)) for shifts in self.sources.values()]
        order = list(self.sources)
        self.reads: dict[Read, tuple[int, tuple[int, ...]]] = {}  # an array and offsets
        for r, (source, shifts) in found.items():
            k = order.index(source)
            self.reads[r] = k, tuple(x - o for x, o in zip(shifts, self.origins[k], strict=True))
        if any(a.mode not in ("inside", "edge") for r in self.numbers for a in self.axes[r]):
            raise Unclear("numbers of rows, beyond which lies something else")
        self.captured = list(dict.fromkeys(r.var for r in self.numbers))
        self.variables = list(dict.fromkeys([*(s.var for s in self.sources), *self.captured]))
        if axes_of(v.aval for v in self.variables):
            raise Unclear("inside shard_map")

    @property
    def modes(self) -> list[str]:
        """What is read beyond the arrays."""
        names = (mode for s in self.sources for _, _, mode, _, _ in s.axes if mode not in ("nothing", "broadcast"))
        return list(dict.fromkeys(names))

    @property
    def shifted(self) -> bool:
        """Is an array read at several places?"""
        places: dict[Var, set[Any]] = {}
        for source, shifts in self.sources.items():
            places.setdefault(source.var, set()).update((s, source.axes, source.fixed) for s in shifts)
        return any(len(p) > 1 for p in places.values())

    def _axes(self, r: Read) -> tuple[Axis, ...]:
        """Of a read: what one cell wants from far away is the same for all."""
        out = []
        for a in r.axes:
            far = a.only is not None and max(-a.shift, self.shape[a.along] + a.shift - a.size) > MOST_BEYOND
            out.append(Axis(FIXED, (a.only or 0) + a.shift, a.size) if far else a)
        return tuple(out)

    def _roles(self, counted: Collection[int], arrays: Sequence[Read]) -> tuple[int, int]:
        """How many of the grid's axes are lanes, and how many a batch."""
        rank, lanes, batch = len(self.shape), 0, 0

        def is_plain(g: int) -> bool:
            """Does every cell read its own position, of whatever has the axis?"""
            mine = [a for axes in self.axes.values() for a in axes if a.along == g]
            return g not in counted and all(a.shift == 0 and a.mode == "inside" and a.size == self.shape[g] for a in mine)

        def is_everywhere(g: int) -> bool:
            return all(any(a.along == g for a in self.axes[r]) for r in arrays)

        while lanes + 1 < rank and math.prod(self.shape[rank - 1 - lanes :]) <= MOST_LANES:
            if not (is_plain(rank - 1 - lanes) and is_everywhere(rank - 1 - lanes)):
                break
            lanes += 1
        while batch + lanes + 1 < rank and is_plain(batch):
            batch += 1
        return lanes, batch

    def _source(self, r: Read) -> tuple[Source, tuple[int, ...]]:
        axes, shifts = [], []
        where = {a.along: (k, a) for k, a in enumerate(self.axes[r]) if a.along != FIXED}
        for g, n in enumerate(self.shape):
            if g not in where:
                axes.append((-1, 1, "broadcast", 0, 0))
                shifts.append(0)
                continue
            k, a = where[g]
            beyond = max(0, a.lo - a.shift) + max(0, n + a.shift - (a.size - a.hi))
            if g == self.inner[-1] and beyond > MOST_BEYOND:
                raise Unclear("many cells of each row read beyond an array")
            mode = a.mode if a.mode != "inside" else "edge" if beyond else "nothing"
            axes.append((k, a.size, mode, a.lo, a.hi))
            shifts.append(a.shift)
        fixed = tuple((k, a.shift) for k, a in enumerate(self.axes[r]) if a.along == FIXED)
        return Source(r.var, tuple(axes), fixed, r.fill), tuple(shifts)

    # --- the call -----------------------------------------------------------------------------------------------------------

    def call(self, nodes: Sequence[Node], read: Sequence[Any], steps: int = 1, keep: Sequence[tuple[int, int]] | None = None) -> list[Any]:
        """The results: ``read`` has a value for each of ``variables``."""
        value = dict(zip(self.variables, read, strict=True))
        arrays = [self._operand(s, value[s.var]) for s in self.sources]
        captured = [value[v] for v in self.captured]
        reads = list(self.reads)

        def f(*xs: Any) -> list[Any]:
            held = dict(zip(self.captured, xs, strict=False))
            xs = xs[len(held) :]
            at = dict(zip(self.counted, xs[len(reads) :], strict=True))
            known: dict[Node, Any] = dict(zip(reads, xs[: len(reads)], strict=True))
            return [self._evaluate(node, known, held, at) for node in nodes]

        scalars = [jax.ShapeDtypeStruct((), r.var.aval.dtype) for r in reads]
        scalars += [jax.ShapeDtypeStruct((), np.int32) for _ in self.counted]
        held = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in self.captured]
        jaxpr = jax.make_jaxpr(f)(*held, *scalars).jaxpr
        n, used = len(held), looked(jaxpr)
        constvars = [k for k in range(n) if jaxpr.invars[k] in used]
        seen = [k for k in range(n, n + len(reads)) if jaxpr.invars[k] in used]
        told = [k for k in range(n + len(reads), len(jaxpr.invars)) if jaxpr.invars[k] in used]
        narrow = with_arguments(jaxpr, [jaxpr.invars[k] for k in constvars], [jaxpr.invars[k] for k in (*seen, *told)])
        inner = list(self.inner)
        places = [self.reads[reads[k - n]] for k in seen]
        changed = len(nodes) if keep is not None or steps > 1 else 0
        needed = sorted({*range(changed), *(k for k, _ in places)})
        sources = list(self.sources)
        bounds = []
        for k in needed:
            row = []
            for g in inner:
                _, _, mode, lo, hi = sources[k].axes[g]
                origin = self.origins[k][g]
                row.append(Bounds("edge" if mode == "broadcast" else mode, origin, lo, hi))
            bounds.append(tuple(row))
        borders = keep or [(0, 0)] * len(self.shape)
        static = StencilCall(
            make_traced(narrow, to_program(narrow)),
            tuple((needed.index(k), tuple(offsets[g] for g in inner)) for k, offsets in places),
            tuple(inner.index(self.counted[k - n - len(reads)]) for k in told),
            tuple(bounds),
            tuple(_fill(sources[k]) for k in needed),
            tuple(Window(0, self.shape[g], keep=borders[g]) for g in inner),
            steps,
            self.lanes,
        )
        masks = [sum(1 << g for g in range(self.batch) if sources[k].axes[g][2] != "broadcast") for k in needed]
        operands = [*(arrays[k] for k in needed), *(captured[k] for k in constvars)]
        full = (1 << self.batch) - 1
        if not any(m == full for m in masks):
            raise Unclear("no array has all axes of the grid")
        return bind(static, operands, (*masks, *(0,) * len(constvars)), self.batch)

    def _operand(self, s: Source, x: Any) -> Any:
        """The array with the grid's axes in their order, those that it lacks of size 1, or none where they are a batch."""
        for k, at in sorted(s.fixed, reverse=True):
            x = lax.index_in_dim(x, at, k, keepdims=False)
        kept = [k for k in range(s.var.aval.ndim) if k not in dict(s.fixed)]
        order = [kept.index(k) for k, *_ in s.axes if k >= 0]
        if order != list(range(x.ndim)):
            x = jnp.transpose(x, order)
        lacking = [g for g, (k, *_) in enumerate(s.axes) if k < 0]
        x = jnp.expand_dims(x, lacking) if lacking else x
        gone = [g for g in lacking if g < self.batch]
        return lax.squeeze(x, gone) if gone else x

    def _evaluate(self, node: Node, known: dict[Node, Any], held: Any, at: Any) -> Any:
        if node in known:
            return known[node]
        out: Any
        if isinstance(node, Number):
            out = jnp.asarray(node.value)
        elif isinstance(node, Apply):
            out = node.op.fn(*(self._evaluate(a, known, held, at) for a in node.args))
        elif isinstance(node, Coordinate):
            out = lax.convert_element_type(at[node.axis] + np.int32(node.shift), node.dtype)
        elif isinstance(node, Split):
            *others, out = (self._evaluate(p, known, held, at) for p in node.pieces)
            for end, piece in zip(reversed(node.ends[:-1]), reversed(others), strict=True):
                out = lax.select(at[node.axis] < np.int32(end), piece, out)
        else:
            assert isinstance(node, Read)
            x = held[node.var]
            starts = [_position(a, at) for a in self.axes[node]]
            out = lax.reshape(lax.dynamic_slice(x, starts, (1,) * x.ndim), ()) if x.ndim else x
        known[node] = out
        return out


def _position(a: Axis, at: Any) -> Any:
    return np.int32(a.shift) if a.along == FIXED else at[a.along] + np.int32(a.shift)


def _fill(s: Source) -> Any:
    return fill_of(0 if s.fill is None else s.fill.value, s.var.aval.dtype)


def _walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes, each once."""
    seen: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += node.args if isinstance(node, Apply) else node.pieces if isinstance(node, Split) else ()


# --- which equations are stencils -----------------------------------------------------------------------------------------------


def find_stencils(
    graph: Graph, outside: Collection[int], wanted: Iterable[Any], why_not: Callable[[Stencil], str | None]
) -> tuple[list[Stencil], dict[int, str]]:
    """Among the equations that no kernel has (``outside``): those that ``wanted`` variables, or equations that are XLA's, are made
    by; and why those are none that are nearly."""
    materialised = {v for v in wanted if not isinstance(v, Literal)}
    for k in outside:
        if graph.eqns[k].primitive.name not in TAKEN or graph.eqns[k].effects:
            materialised.update(v for v in graph.eqns[k].invars if not isinstance(v, Literal))
    todo = [-graph.producer[v] for v in materialised if v in graph.producer]
    heapq.heapify(todo)
    found: list[Stencil] = []
    left: dict[int, str] = {}
    done: set[int] = set()
    while todo:
        index = -heapq.heappop(todo)
        if index in done or index not in outside:
            continue
        done.add(index)
        eqn = graph.eqns[index]
        shape = eqn.outvars[0].aval.shape if len(eqn.outvars) == 1 and eqn.primitive.name in TAKEN else ()
        if not shape or not all(isinstance(n, int) and n for n in shape):
            continue
        try:
            stencil = Stencil(graph, [Root(index, eqn)], (), materialised)
        except Unclear as e:
            left[index] = str(e)
            todo_more: Iterable[Any] = eqn.invars
        else:
            if not stencil.layout.shifted:
                continue
            why = why_not(stencil)
            if why:
                left[index] = why
                continue
            found.append(stencil)
            materialised.update(stencil.leaves)
            todo_more = stencil.leaves
        for v in todo_more:
            if not isinstance(v, Literal) and v in graph.producer:
                heapq.heappush(todo, -graph.producer[v])
    return found, left
