"""Stencils in plain code: elementwise functions of several shifted views of arrays, as calls of the stencil family."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Var

from ...calls.stencil_form import MOST_LANES
from ...operators.traced import make_traced
from ...primitives.avals import typed
from ...primitives.stencil.call import Bounds, StencilCall, Window, fill_of
from ...primitives.stencil.primitive import bind
from ...targets.plans import AnyKernel, forced_plans
from ...tracing import elementwise
from ...tracing.jaxprs import IDENTITIES, looked, structs, with_arguments
from ...tracing.lower import to_program
from ...tracing.varying import axes_of
from ..body import additions
from ..graph import Graph, reached
from .cells import FIXED, MOST_BEYOND, Apply, Axis, Cells, Coordinate, Node, Number, Read, Split, TooMany, Unclear
from .dear import dear
from .moves import RULES
from .xla_loops import XlaLoop

TAKEN = frozenset(elementwise.NAMES) | RULES.keys() | {"split"}
"""Primitives that a stencil takes in."""

SHIFTS = TAKEN - elementwise.NAMES - IDENTITIES - frozenset("broadcast_in_dim expand_dims iota reshape squeeze".split())
"""Of these, those of which a cell is made of other cells than its own, or of an array whose axes have another order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Root:
    """An equation whose result a stencil makes."""

    index: int
    eqn: JaxprEqn


@dataclasses.dataclass(frozen=True)
class Seen:
    """What was found of a graph. ``looks``: by equations and what is read, whatever it is made of: their cells, or why that is
    unclear. ``too_large``: as in :class:`Cells`; ``loops``: as in :func:`xla_loops`."""

    looks: dict[tuple[tuple[int, ...], frozenset[Var]], tuple[Cells, list[Node]] | str] = dataclasses.field(default_factory=dict)
    too_large: TooMany = dataclasses.field(default_factory=dict)
    loops: dict[Var, XlaLoop] = dataclasses.field(default_factory=dict)

    def look(
        self, graph: Graph, shape: tuple[int, ...], roots: Sequence[Root], cut: frozenset[Var]
    ) -> tuple[Cells, list[Node]] | str:
        key = tuple(r.index for r in roots), cut
        if key not in self.looks:
            cells = Cells(graph, shape, cut, RULES, self.too_large)
            try:
                self.looks[key] = cells, [cells.root(r.eqn.outvars[0]) for r in roots]
            except Unclear as e:
                self.looks[key] = str(e)
        return self.looks[key]


class Stencil:
    """Equations of one grid as a kernel. ``leaves``: the variables that it reads; ``taken``: equations in it; ``counts``: how
    often a cell evaluates each; ``seen``: what was found of the graph for others."""

    def __init__(
        self, graph: Graph, roots: Sequence[Root], cut: Collection[Var], written: Collection[Var] = (), seen: Seen | None = None
    ):
        self.graph, self.sites = graph, tuple(roots)
        self.shape: tuple[int, ...] = tuple(roots[0].eqn.outvars[0].aval.shape)
        own = {r.eqn.outvars[0] for r in roots}
        self.seen = seen = Seen() if seen is None else seen
        cut = frozenset(cut) - own
        while True:
            found = seen.look(graph, self.shape, roots, cut)
            if isinstance(found, str):
                raise Unclear(found)
            cells, self.nodes = found
            again = dear(cells, own, written)
            if again is None:
                break
            cut |= {again}
        self.counts = cells.counts
        self.taken = set(self.counts)
        self.layout = Layout(self.shape, self.nodes)
        self.leaves = self.layout.variables

    @property
    def inside(self) -> set[int]:
        """The results' equations, and those that are in it."""
        return self.taken | {s.index for s in self.sites}

    def run(self, read: Sequence[Any]) -> list[Any]:
        """The results, given the leaves."""
        out = self.layout.call(self.nodes, read)
        return [typed(x, s.eqn.outvars[0].aval) for x, s in zip(out, self.sites, strict=True)]

    def in_words(self) -> str:
        names = dict.fromkeys(self.graph.eqns[k].primitive.name for k in sorted(self.taken))
        over = " x ".join(map(str, self.shape))
        reads = ", ".join(v.aval.str_short(short_dtypes=True) for v in self.leaves)
        modes = ", ".join(self.layout.modes)
        number = f"{len(self.layout.places)} reads"
        beyond = f" ({modes})" if modes else ""
        return f"stencil over {over} cells: one kernel, {number} of {reads}{beyond}; takes in {', '.join(names)}"


# --- how a kernel reads what it reads -------------------------------------------------------------------------------------------


NOTHING, ANY, BROADCAST = "nothing", "any", "broadcast"
"""Nothing is read beyond an array; what is, does not matter; the array has one cell on the axis, which all cells read."""


@dataclasses.dataclass(frozen=True)
class SourceAxis:
    """An array on one axis of the grid: which of its variable's axes, -1 if none, how many cells, and as
    :class:`Bounds` what is beyond."""

    axis: int
    size: int
    mode: str
    lo: int = 0
    hi: int = 0

    def bounds(self, origin: int) -> Bounds:
        return Bounds("edge" if self.mode in (ANY, BROADCAST) else self.mode, origin, self.lo, self.hi)

    def joined(self, other: SourceAxis) -> SourceAxis | None:
        """One for reads of both; None if there is none."""
        if self == other:
            return self
        if (self.axis, self.size) != (other.axis, other.size):
            return None
        weaker, stronger = sorted((self, other), key=lambda a: (a.mode != NOTHING, a.mode != ANY))
        return stronger if weaker.mode in (NOTHING, ANY) and stronger.lo == stronger.hi == 0 else None


@dataclasses.dataclass(frozen=True)
class Source:
    """An array as a kernel's operand: a variable, at ``fixed`` positions on some of its axes, beyond which is ``fill``."""

    var: Var
    axes: tuple[SourceAxis, ...]  # by axis of the grid
    fixed: tuple[tuple[int, int], ...]
    fill: Number | None

    def joined(self, other: Source) -> Source | None:
        """One for reads of both; None if there is none."""
        fills = {f for f in (self.fill, other.fill) if f is not None}
        if self.var is not other.var or self.fixed != other.fixed or len(fills) > 1:
            return None
        axes = [a.joined(b) for a, b in zip(self.axes, other.axes, strict=True)]
        if any(a is None for a in axes):
            return None
        return Source(self.var, tuple(a for a in axes if a is not None), self.fixed, next(iter(fills), None))


Keep = tuple[tuple[int, int], ...]


class Layout:
    """Which axes are a batch, a grid, lanes; arrays and what is read of them; numbers that are the same for many cells. ``keep``:
    cells at either end of each axis that keep the first arrays' values."""

    def __init__(self, shape: tuple[int, ...], nodes: Sequence[Node], first: Sequence[Read] = (), keep: Keep | None = None):
        if not shape or not math.prod(shape):
            raise Unclear("there are no cells")
        self.shape, self.keep, self.results = shape, keep or ((0, 0),) * len(shape), len(nodes)
        every = list(reached([*nodes, *first], _parts))
        self.axes = {n: self._axes(n) for n in every if isinstance(n, Read)}
        last = len(shape) - 1
        self.made = [n for n in every if isinstance(n, (Apply, Split))]
        arrays = [r for r, axes in self.axes.items() if any(a.along == last for a in axes)]
        self.numbers = [r for r in self.axes if r not in arrays]
        counted = {n.axis for n in every if isinstance(n, (Split, Coordinate))}
        counted.update(a.along for r in self.numbers for a in self.axes[r] if a.along != FIXED)
        self.counted = sorted(counted)
        self.lanes = self._lanes(counted, arrays)
        self.sources: list[Source] = []
        found: dict[Read, tuple[int, tuple[int, ...]]] = {}
        for r in (*first, *arrays):
            source, shifts = self._source(r)
            for k, known in enumerate(self.sources):
                both = known.joined(source)
                if both is not None:
                    self.sources[k] = both
                    found[r] = k, shifts
                    break
            else:
                found[r] = len(self.sources), shifts
                self.sources.append(source)
        self.places = list(dict.fromkeys(found.values()))  # the array, and how far from the cell
        self.reads = {r: self.places.index(place) for r, place in found.items()}
        if any(a.mode not in ("inside", "edge", "wrap") or a.lo or a.hi for r in self.numbers for a in self.axes[r]):
            raise Unclear("numbers of rows, beyond which lies something else")
        self.captured = list(dict.fromkeys(r.var for r in self.numbers))
        self.variables = list(dict.fromkeys([*(s.var for s in self.sources), *self.captured]))
        if axes_of(v.aval for v in self.variables):
            raise Unclear("inside shard_map")

    @property
    def innermost(self) -> int:
        """The axis along which rows go."""
        return len(self.shape) - 1 - self.lanes

    @property
    def modes(self) -> list[str]:
        """What is read beyond the arrays."""
        names = (a.mode for s in self.sources for a in s.axes if a.mode not in (NOTHING, ANY, BROADCAST))
        return list(dict.fromkeys(names))

    @property
    def work(self) -> float:
        """Additions for a cell, of every piece: one of them is chosen."""
        return sum(additions(n.op.name) if isinstance(n, Apply) else len(n.pieces) - 1 for n in self.made)

    @property
    def transposed(self) -> int:
        """How many arrays have their axes in another order."""
        orders = ([a.axis for a in s.axes if a.axis >= 0] for s in self.sources)
        return sum(order != sorted(order) for order in orders)

    @property
    def shifted(self) -> bool:
        """Is an array read at several places? (To read it once along rows and once along columns is to make all pairs.)"""
        places: dict[Any, set[Any]] = {}
        for k, shifts in self.places:
            along = tuple(a.axis for a in self.sources[k].axes)
            places.setdefault((self.sources[k].var, along), set()).add((k, shifts))
        return any(len(p) > 1 for p in places.values())

    def alike(self, count: int) -> None:
        """The first arrays, with the same beyond all of them."""
        first = self.sources[:count]
        for g in range(len(self.shape)):
            modes = {s.axes[g].mode for s in first} - {NOTHING, ANY} or {s.axes[g].mode for s in first}
            if len(modes - {NOTHING}) > 1:
                raise Unclear("arrays with different boundaries")
            mode = next(iter(modes - {NOTHING}), NOTHING)
            for k, s in enumerate(first):
                axes = (*s.axes[:g], dataclasses.replace(s.axes[g], mode=mode), *s.axes[g + 1 :])
                self.sources[k] = first[k] = dataclasses.replace(s, axes=axes)
            for k, s in enumerate(self.sources):
                self.sources[k] = dataclasses.replace(
                    s, axes=(*s.axes[:g], _wrapped(s.axes[g], mode, self.shape[g]), *s.axes[g + 1 :])
                )

    def beyond(self, g: int) -> int:
        """How many reads find something beyond an array's ends on this axis."""
        last = self.shape[g] - 1
        out = 0
        for k, shifts in self.places:
            a = self.sources[k].axes[g]
            out += a.mode not in (NOTHING, BROADCAST) and not (shifts[g] >= a.lo and last + shifts[g] < a.size - a.hi)
        return out

    def _axes(self, r: Read) -> tuple[Axis, ...]:
        """Of a read: what one cell wants from far away is the same for all."""
        out = []
        for a in r.axes:
            far = a.only is not None and max(-a.shift, self.shape[a.along] + a.shift - a.size) > MOST_BEYOND
            out.append(Axis(FIXED, (a.only or 0) + a.shift, a.size) if far else a)
        return tuple(out)

    def _lanes(self, counted: Collection[int], arrays: Sequence[Read]) -> int:
        """How many of the grid's last axes are lanes: every cell reads its own position on them, and has one value to give."""

        def is_lane(g: int) -> bool:
            mine = [a for r in arrays for a in self.axes[r] if a.along == g]
            whole = all(a.shift == 0 and a.mode == "inside" and a.size == self.shape[g] for a in mine)
            return whole and len(mine) == len(arrays) and g not in counted and not any(self.keep[g])

        rank, lanes = len(self.shape), 0
        while lanes + 1 < rank and math.prod(self.shape[rank - 1 - lanes :]) <= MOST_LANES and is_lane(rank - 1 - lanes):
            lanes += 1
        return 0 if rank - 1 - lanes in counted else lanes  # lanes have no coordinates

    def _source(self, r: Read) -> tuple[Source, tuple[int, ...]]:
        axes, shifts = [], []
        where = {a.along: (k, a) for k, a in enumerate(self.axes[r]) if a.along != FIXED}
        for g, n in enumerate(self.shape):
            row = g == self.innermost
            if g not in where:  # along rows, vectors read cells side by side: one cell for all would be read lane by lane
                axes.append(SourceAxis(-1, n, NOTHING) if row else SourceAxis(-1, 1, BROADCAST))
                shifts.append(0)
                continue
            k, a = where[g]
            beyond = max(0, a.lo - a.shift) + max(0, n + a.shift - (a.size - a.hi))
            if row and beyond > MOST_BEYOND:
                raise Unclear("many cells of each row read beyond an array")
            mode = a.mode if a.mode != "inside" else ANY if beyond else NOTHING
            axes.append(SourceAxis(k, a.size, mode, a.lo, a.hi))
            shifts.append(a.shift)
        fixed = tuple((k, a.shift) for k, a in enumerate(self.axes[r]) if a.along == FIXED)
        return Source(r.var, tuple(axes), fixed, r.fill), tuple(shifts)

    # --- the call -----------------------------------------------------------------------------------------------------------

    def call(self, nodes: Sequence[Node], read: Sequence[Any], steps: int = 1) -> list[Any]:
        """The results: ``read`` has a value for each of ``variables``."""
        value = dict(zip(self.variables, read, strict=True))
        arrays = [self._operand(s, value[s.var]) for s in self.sources]
        captured = [value[v] for v in self.captured]

        def f(*xs: Any) -> list[Any]:
            held = dict(zip(self.captured, xs, strict=False))
            xs = xs[len(held) :]
            at = dict(zip(self.counted, xs[len(self.places) :], strict=True))
            known: dict[Node, Any] = {r: xs[k] for r, k in self.reads.items()}
            return [self._evaluate(node, known, held, at) for node in nodes]

        scalars = [jax.ShapeDtypeStruct((), self.sources[k].var.aval.dtype) for k, _ in self.places]
        scalars += [jax.ShapeDtypeStruct((), np.int32) for _ in self.counted]
        held = structs(self.captured)
        jaxpr = jax.make_jaxpr(f)(*held, *scalars).jaxpr
        n, used = len(held), looked(jaxpr)
        constvars = [k for k in range(n) if jaxpr.invars[k] in used]
        seen = [k for k in range(n, n + len(self.places)) if jaxpr.invars[k] in used]
        told = [k for k in range(n + len(self.places), len(jaxpr.invars)) if jaxpr.invars[k] in used]
        narrow = with_arguments(jaxpr, [jaxpr.invars[k] for k in constvars], [jaxpr.invars[k] for k in (*seen, *told)])
        inner = range(len(self.shape) - self.lanes)
        changed = len(nodes) if any(map(any, self.keep)) or steps > 1 else 0
        origins = [(0,) * len(self.shape)] * changed
        for k in range(changed, len(self.sources)):
            mine = [shifts for m, shifts in self.places if m == k]
            middle = tuple((min(x) + max(x)) // 2 for x in zip(*mine, strict=True))
            origins.append(middle if steps == 1 else (0,) * len(middle))
        places = [self.places[k - n] for k in seen]
        needed = sorted({*range(changed), *(k for k, _ in places)})
        static = StencilCall(
            make_traced(narrow, to_program(narrow)),
            tuple((needed.index(k), tuple(shifts[g] - origins[k][g] for g in inner)) for k, shifts in places),
            tuple(self.counted[k - n - len(self.places)] for k in told),
            tuple(tuple(self.sources[k].axes[g].bounds(origins[k][g]) for g in inner) for k in needed),
            tuple(fill_of(0 if s.fill is None else s.fill.value, s.var.aval.dtype) for s in (self.sources[k] for k in needed)),
            tuple(Window(0, self.shape[g], keep=self.keep[g]) for g in inner),
            steps,
            self.lanes,
            plans=forced_plans()
            or (AnyKernel("cpu"),),  # it has been weighed: cell by cell, as plain JAX would make it, is not how it was written
        )
        return bind(static, [*(arrays[k] for k in needed), *(captured[k] for k in constvars)])

    def _operand(self, s: Source, x: Any) -> Any:
        """The array with the grid's axes in their order, those that it lacks of size 1, but for that of rows."""
        for k, at in sorted(s.fixed, reverse=True):
            x = lax.index_in_dim(x, at, k, keepdims=False)
        kept = [k for k in range(s.var.aval.ndim) if k not in dict(s.fixed)]
        order = [kept.index(a.axis) for a in s.axes if a.axis >= 0]
        if order != list(range(x.ndim)):
            x = jnp.transpose(x, order)
        lacking = [g for g, a in enumerate(s.axes) if a.axis < 0]
        x = jnp.expand_dims(x, lacking) if lacking else x
        return jnp.broadcast_to(x, [a.size for a in s.axes]) if lacking else x

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


def _wrapped(a: SourceAxis, mode: str, size: int) -> SourceAxis:
    """Of one of the arrays in several steps, all of which wrap around, or none: steps are made beyond the ends then, where an
    array of another boundary would have to have what it has on the other side."""
    if (a.mode == "wrap") == (mode == "wrap"):
        return a
    if a.mode not in (NOTHING, ANY, BROADCAST) or (a.mode != BROADCAST and a.size != size):
        raise Unclear("arrays that wrap around differently")
    return SourceAxis(a.axis, size, "wrap")


def _position(a: Axis, at: Any) -> Any:
    if a.along == FIXED:
        return np.int32(a.shift)
    if a.mode == "wrap":
        return lax.rem(at[a.along] + np.int32(a.shift % a.size), np.int32(a.size))
    return lax.clamp(np.int32(0), at[a.along] + np.int32(a.shift), np.int32(a.size - 1))


def _parts(node: Node) -> Sequence[Node]:
    """The nodes that a node is made of."""
    return node.args if isinstance(node, Apply) else node.pieces if isinstance(node, Split) else ()
