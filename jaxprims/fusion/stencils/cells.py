"""What a cell of a grid is made of: a variable of a graph, followed backwards through shifts, borders and elementwise functions
to what is read.

The cell's own coordinates are all that moves. A *view* says, for each axis of a variable, which coordinate it goes along and at
which shift; a *region* is the box of cells that it is wanted for. What ``jnp.pad`` and ``jnp.roll`` put together is taken apart
by regions, and is one read again where its parts are what one boundary has beyond an array.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from ...primitives.stencil.xla import place
from ...tracing import elementwise
from ..graph import Graph

FIXED = -1
"""In place of a coordinate: the same position for all cells, the shift."""

View = tuple[tuple[int, int], ...]
Region = tuple[tuple[int, int], ...]

MOST_VALUES, NEARLY_MOST = 1500, 1200
"""Values that are looked at, of all variables and regions together; and those of a part of what is more, from which on the part
is taken to be more by itself."""

DEEPEST = 120
"""Equations behind one another."""

MOST_PIECES = 16
"""Parts that a border is made of."""


MOST_BEYOND = 16
"""Cells of a row that read beyond an array: each is made by itself."""


class Node:
    """What a cell holds. Two of them are the same if they are the same object."""


@dataclasses.dataclass(frozen=True, eq=False)
class Number(Node):
    value: np.ndarray  # of no axes


@dataclasses.dataclass(frozen=True)
class Axis:
    """Where an axis of an array is read: ``mode`` beyond its cells, of which all but the first ``lo`` and last ``hi`` count;
    "inside": wherever it matters, it is not beyond. ``only``: the one cell that it matters for."""

    along: int
    shift: int
    size: int
    mode: str = "inside"
    lo: int = 0
    hi: int = 0
    only: int | None = None

    def at(self, cell: int) -> int | None:
        """The position that a cell reads; None: nowhere."""
        if self.along == FIXED:
            return self.shift
        at = cell + self.shift
        if self.mode == "inside" or self.lo <= at < self.size - self.hi:
            return at
        return place(self.mode, at, self.lo, self.size - self.hi)


@dataclasses.dataclass(frozen=True, eq=False)
class Read(Node):
    var: Var
    axes: tuple[Axis, ...]
    fill: Number | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """A function of numbers."""

    name: str
    fn: Callable[..., Any]
    dtype: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Apply(Node):
    op: Op
    args: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Coordinate(Node):
    axis: int
    shift: int
    dtype: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Split(Node):
    """Along one coordinate, pieces with their ends."""

    axis: int
    ends: tuple[int, ...]
    pieces: tuple[Node, ...]


class Unclear(Exception):
    """It cannot be said what a cell is made of."""


class TooLarge(Unclear):
    """A cell is made of more than :data:`MOST_VALUES`. ``known``: of something of which that was known."""

    def __init__(self, known: bool):
        super().__init__("more than a kernel should hold")
        self.known = known


TooMany = dict[tuple[Any, ...], int]
"""Cells, by what is wanted of them."""

Rule = Callable[["Cells", Any, View, Region], Node | None]
"""What a primitive makes of a view and a region; None: its result is read."""


class Cells:
    """Cells of a grid of ``shape``, made of a graph's variables. ``cut``: variables that are read, whatever they are made of;
    ``rules``: of the primitives that move (``moves.py``).

    ``counts``: of each equation, how often a cell evaluates it. ``too_large``: by variables and coordinates along their axes, the
    fewest cells that are known to be made of too much if nothing is cut, to which is added what is found out. What is made of
    such is too large as well: a long chain of equations is not looked through again from each of them.
    """

    def __init__(
        self,
        graph: Graph,
        shape: tuple[int, ...],
        cut: Collection[Var],
        rules: Mapping[str, Rule],
        too_large: TooMany | None = None,
    ):
        self.graph, self.shape, self.cut, self.rules = graph, shape, cut, rules
        self.too_large: TooMany = {} if too_large is None or cut else too_large

        self.known: dict[Any, Node] = {}
        self.nodes: dict[Any, Node] = {}
        self.ones: dict[Any, Node | None] = {}
        self.ops: dict[Any, Op] = {}
        self.counts: dict[int, float] = {}
        self.depth = 0

    def root(self, var: Var) -> Node:
        return self.value(var, tuple((g, 0) for g in range(len(self.shape))), tuple((0, n) for n in self.shape))

    def value(self, var: Any, view: View, region: Region) -> Node:
        """What a variable holds there."""
        if isinstance(var, Literal):
            return self.number(np.asarray(var.val, var.aval.dtype))
        key = var, view, region
        if key not in self.known:
            before, part, cells = len(self.known), (var, *(g for g, _ in view)), math.prod(hi - lo for lo, hi in region)
            known = cells >= self.too_large.get(part, math.inf)
            if known or before > MOST_VALUES:
                raise TooLarge(known)
            try:
                self.known[key] = self._made(var, view, region)
            except TooLarge as e:
                if e.known or len(self.known) - before >= NEARLY_MOST:
                    self.too_large[part] = min(cells, self.too_large.get(part, cells))
                raise
        return self.known[key]

    def _made(self, var: Var, view: View, region: Region) -> Node:
        index = self.graph.producer.get(var)
        eqn = None if index is None or var in self.cut else self.graph.eqns[index]
        name = "" if eqn is None else eqn.primitive.name
        moves = name in self.rules
        if name == "split":
            first = sum(eqn.params["sizes"][: eqn.outvars.index(var)])  # type: ignore[union-attr]
            return self.value(eqn.invars[0], shifted(view, eqn.params["axis"], first), region)  # type: ignore[union-attr]
        if (
            eqn is None
            or eqn.effects
            or len(eqn.outvars) != 1
            or self.depth > DEEPEST
            or not all(isinstance(n, int) for v in eqn.invars for n in v.aval.shape)
            or not (moves or elementwise.is_elementwise(eqn))
            or (name == "stop_gradient" and self.graph.with_rules)
        ):
            return self.read(var, view, region)
        if not moves and all(g == FIXED for g, _ in view) and not self.graph.is_constant(var):
            return self.read(var, view, region)  # the same for all cells
        self.depth += 1
        try:
            if moves:
                made = self.rules[name](self, eqn, view, region)
            else:
                made = self.apply(self.op(eqn), [self.value(v, _broadcast(v, var, view), region) for v in eqn.invars])
        finally:
            self.depth -= 1
        if made is None:
            return self.read(var, view, region)
        assert index is not None
        self.counts[index] = self.counts.get(index, 0) + math.prod(hi - lo for lo, hi in region) / math.prod(self.shape)
        return made

    # --- nodes, each once ---------------------------------------------------------------------------------------------------

    def _once(self, key: Any, make: Callable[[], Node]) -> Any:
        if key not in self.nodes:
            self.nodes[key] = make()
        return self.nodes[key]

    def number(self, value: np.ndarray) -> Number:
        if value.ndim:
            raise Unclear("an array among the literals")
        return self._once((str(value.dtype), value.tobytes()), lambda: Number(value))

    def read(self, var: Var, view: View, region: Region) -> Read:
        if not all(isinstance(n, int) for n in var.aval.shape):
            raise Unclear("a size that is no number")

        def axis(g: int, s: int, n: int) -> Axis:
            begin, end = (0, 0) if g == FIXED else region[g]
            return Axis(g, s, n, only=begin if end - begin == 1 < self.shape[g] else None)

        return self.read_at(var, tuple(axis(g, s, n) for (g, s), n in zip(view, var.aval.shape, strict=True)))

    def read_at(self, var: Var, axes: tuple[Axis, ...], fill: Number | None = None) -> Read:
        return self._once((var, axes, fill), lambda: Read(var, axes, fill))

    def coordinate(self, axis: int, shift: int, dtype: Any) -> Coordinate:
        return self._once(("at", axis, shift, str(dtype)), lambda: Coordinate(axis, shift, dtype))

    def op(self, eqn: JaxprEqn) -> Op:
        def fn(*xs: Any) -> Any:
            return eqn.primitive.bind(*xs, **eqn.params)

        return self.named(eqn, eqn.primitive.name, fn, eqn.outvars[0].aval.dtype)

    def named(self, key: Any, name: str, fn: Callable[..., Any], dtype: Any) -> Op:
        if key not in self.ops:
            self.ops[key] = Op(name, fn, dtype)
        return self.ops[key]

    def apply(self, op: Op, args: Sequence[Node]) -> Node:
        if op.name in ("add", "add_any") and len(args) == 2:
            one = self._sum(*args)
            if one is not None:
                return one

        def make() -> Node:
            numbers = [a.value for a in args if isinstance(a, Number)]
            if len(numbers) < len(args):
                return Apply(op, tuple(args))
            with jax.ensure_compile_time_eval():
                return self.number(np.asarray(op.fn(*map(jnp.asarray, numbers))))

        return self._once((op, tuple(args)), make)

    def binary(self, name: str, a: Node, b: Node, dtype: Any) -> Node:
        fn = {"add": lax.add, "mul": lax.mul, "max": lax.max, "min": lax.min}[name]
        return self.apply(self.named((name, str(dtype)), name, fn, dtype), [a, b])

    def _sum(self, a: Node, b: Node) -> Node | None:
        """The sum of what is zero where the other is not, as one: what the adjoints of slices are added up to."""
        for g in range(len(self.shape)):
            x, y = self._pieces(a, g), self._pieces(b, g)
            if x is None or y is None or x[-1][0] != y[-1][0]:
                continue
            out = []
            for end in sorted({e for e, _ in (*x, *y)}):
                p, q = (next(node for e, node in pieces if end <= e) for pieces in (x, y))
                if _is_zero(p) or _is_zero(q):
                    out.append((end, q if _is_zero(p) else p))
            if len(out) == len({e for e, _ in (*x, *y)}):
                return self.joined(g, 0, out)
        return None

    def _pieces(self, node: Node, g: int) -> list[tuple[int, Node]] | None:
        """Along a coordinate, with their ends, from the grid's first cell to its last."""
        n = self.shape[g]
        if isinstance(node, Split) and node.axis == g and node.ends[-1] == n:
            return list(zip(node.ends, node.pieces, strict=True))
        if isinstance(node, Read) and node.fill is not None and sum(a.mode == "constant" for a in node.axes) == 1:
            (d,) = (k for k, a in enumerate(node.axes) if a.mode == "constant")
            a = node.axes[d]
            if a.along == g:
                begin, end = max(a.lo - a.shift, 0), min(a.size - a.hi - a.shift, n)
                bare = Axis(g, a.shift, a.size, only=begin if end - begin == 1 < n else None)
                inner = self.read_at(node.var, (*node.axes[:d], bare, *node.axes[d + 1 :]))
                parts = [(begin, node.fill), (end, inner), (n, node.fill)]
                return [(e, p) for k, (e, p) in enumerate(parts) if e > (parts[k - 1][0] if k else 0)]
        return None

    # --- pieces along a coordinate --------------------------------------------------------------------------------------------

    def joined(self, g: int, start: int, pieces: Sequence[tuple[int, Node]]) -> Node:
        """Pieces with their ends, from ``start`` on, as one node where they are."""
        flat: list[tuple[int, Node]] = []
        for end, piece in pieces:
            inner = isinstance(piece, Split) and piece.axis == g
            flat += zip(piece.ends, piece.pieces, strict=True) if inner else [(end, piece)]  # type: ignore[attr-defined]
        merged: list[tuple[int, Node]] = []
        for end, piece in flat:
            if merged and merged[-1][1] is piece:
                merged[-1] = end, piece
            else:
                merged.append((end, piece))
        if len(merged) == 1:
            return merged[0][1]
        one = self._one(g, start, merged)
        if one is not None:
            return one
        if len(merged) > MOST_PIECES:
            raise Unclear("a border of many pieces")
        ends, parts = zip(*merged, strict=True)
        return self._once(("split", g, ends, parts), lambda: Split(g, ends, parts))

    def _one(self, g: int, start: int, pieces: Sequence[tuple[int, Node]]) -> Node | None:
        """One node in place of all pieces; None if there is none. Found once: a product of two results of one, of which the next
        is a product, is a tree with as many leaves as 2 to their number."""
        key = g, start, *pieces
        if key not in self.ones:
            self.ones[key] = self._combined(g, start, pieces)
        return self.ones[key]

    def _combined(self, g: int, start: int, pieces: Sequence[tuple[int, Node]]) -> Node | None:
        nodes = [p for _, p in pieces]
        if all(p is nodes[0] for p in nodes):
            return nodes[0]
        first = nodes[0]
        if isinstance(first, Apply):
            if not all(isinstance(p, Apply) and p.op is first.op for p in nodes):
                return None
            args = []
            for parts in zip(*(p.args for p in nodes if isinstance(p, Apply)), strict=True):
                arg = self._one(g, start, [(end, x) for (end, _), x in zip(pieces, parts, strict=True)])
                if arg is None:
                    return None
                args.append(arg)
            return self.apply(first.op, args)
        if all(isinstance(p, (Read, Number)) for p in nodes):
            return self._one_read(g, start, pieces)
        return None

    def _one_read(self, g: int, start: int, pieces: Sequence[tuple[int, Any]]) -> Node | None:
        begins = [start, *(end for end, _ in pieces[:-1])]
        parts = [(b, e, p) for b, (e, p) in zip(begins, pieces, strict=True)]
        reads = [part for part in parts if isinstance(part[2], Read)]
        numbers = {part[2] for part in parts if isinstance(part[2], Number)}
        mains = [r for r in reads if any(a.along == g for a in r[2].axes)]
        if not mains or len(numbers) > 1:
            return None
        begin, end, main = max(mains, key=lambda r: r[1] - r[0])
        (d,) = (k for k, a in enumerate(main.axes) if a.along == g)
        axis, others = main.axes[d], (*main.axes[:d], *main.axes[d + 1 :])
        for _, _, r in reads:
            if r.var is not main.var or (*r.axes[:d], *r.axes[d + 1 :]) != others or r.axes[d].along not in (g, FIXED):
                return None
        fill = main.fill
        lo = begin + axis.shift if begin > start else 0
        hi = axis.size - (end + axis.shift) if end < pieces[-1][0] else 0
        if numbers:
            (number,) = numbers
            if len(reads) > 1 or axis.mode != "inside" or (fill is not None and fill is not number):
                return None
            if g == len(self.shape) - 1 and len(range(start, pieces[-1][0])) - (end - begin) > MOST_BEYOND:
                return None
            axis, fill = Axis(g, axis.shift, axis.size, "constant", lo, hi), number
        elif any(r.fill is not fill for _, _, r in reads):
            return None
        else:
            modes = ("inside", "wrap", "edge", "reflect", "symmetric") if axis.mode == "inside" else (axis.mode,)
            found = [Axis(g, axis.shift, axis.size, m, axis.lo, axis.hi) for m in modes]
            if axis.mode == "inside":  # of the cells of the main piece alone
                found += [Axis(g, axis.shift, axis.size, m, lo, hi) for m in modes[1:]]
            fits = [a for a in found if all(_agree(a, r.axes[d], b, e) for b, e, r in reads)]
            if not fits:
                return None
            axis = fits[0]
        return self.read_at(main.var, (*main.axes[:d], axis, *main.axes[d + 1 :]), fill)


def _agree(one: Axis, other: Axis, begin: int, end: int) -> bool:
    """Do both read the same positions for these cells?"""
    if one == other:
        return True
    if one.at(begin) != other.at(begin) or one.at(end - 1) != other.at(end - 1):
        return False
    if end - begin <= 2:
        return True
    if other.along == FIXED:
        return one.mode == "edge" or (end - begin <= 64 and all(one.at(c) == other.at(c) for c in range(begin, end)))
    # what goes from end to end without a fold goes straight
    straight = other.mode == "inside" and one.at(end - 1) == (one.at(begin) or 0) + end - 1 - begin
    return straight and (one.mode != "wrap" or end - begin <= one.size)


def shifted(view: View, axis: int, by: int) -> View:
    g, s = view[axis]
    return (*view[:axis], (g, s + by), *view[axis + 1 :])


def _broadcast(operand: Any, result: Any, view: View) -> View:
    """The operand's view, which may have axes of size 1, or none."""
    if not operand.aval.ndim:
        return ()
    pairs = zip(view, operand.aval.shape, result.aval.shape, strict=True)
    return tuple((FIXED, 0) if n == 1 != m else v for v, n, m in pairs)


def _is_zero(node: Node) -> bool:
    return isinstance(node, Number) and node.value == 0
