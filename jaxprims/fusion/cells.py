"""What a cell of a grid is made of: a variable of a graph, followed backwards through shifts, borders and elementwise functions
to what is read.

The cell's own coordinates are all that moves. A *view* says, for each axis of a variable, which coordinate it goes along and at
which shift; a *region* is the box of cells that it is wanted for. What ``jnp.pad`` and ``jnp.roll`` put together is taken apart
by regions, and is one read again where its parts are what one boundary has beyond an array.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from ..primitives.stencil_xla import place
from ..tracing import elementwise
from ..tracing.jaxprs import IDENTITIES
from .body import operations
from .graph import Graph

FIXED = -1
"""In place of a coordinate: the same position for all cells, the shift."""

View = tuple[tuple[int, int], ...]
Region = tuple[tuple[int, int], ...]

MOST_VALUES = 1500
"""Values that are looked at, of all variables and regions together."""

DEEPEST = 120
"""Equations behind one another."""

MOST_TAPS = 128
"""Cells of a window or a convolution's weights."""

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
        if self.mode == "inside":
            return cell + self.shift
        return place(self.mode, cell + self.shift, self.lo, self.size - self.hi)


@dataclasses.dataclass(frozen=True, eq=False)
class Read(Node):
    var: Var
    axes: tuple[Axis, ...]
    fill: Number | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """A function of numbers. ``eqn``: the equation that says so."""

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


class Cells:
    """Cells of a grid of ``shape``, made of a graph's variables. ``cut``: variables that are read, whatever they are made of.

    ``counts``: of each equation, how often a cell evaluates it.
    """

    def __init__(self, graph: Graph, shape: tuple[int, ...], cut: Collection[Var]):
        self.graph, self.shape, self.cut = graph, shape, cut
        self.whole: Region = tuple((0, n) for n in shape)
        self.known: dict[Any, Node] = {}
        self.nodes: dict[Any, Node] = {}
        self.ops: dict[Any, Op] = {}
        self.counts: dict[int, float] = {}
        self.depth = 0

    def root(self, var: Var) -> Node:
        return self.value(var, tuple((g, 0) for g in range(len(self.shape))), self.whole)

    def value(self, var: Any, view: View, region: Region) -> Node:
        """What a variable holds there."""
        if isinstance(var, Literal):
            return self.number(np.asarray(var.val, var.aval.dtype))
        key = var, view, region
        if key not in self.known:
            if len(self.known) > MOST_VALUES:
                raise Unclear("more than a kernel should hold")
            self.known[key] = self._made(var, view, region)
        return self.known[key]

    def _made(self, var: Var, view: View, region: Region) -> Node:
        index = self.graph.producer.get(var)
        eqn = None if index is None or var in self.cut else self.graph.eqns[index]
        name = "" if eqn is None else eqn.primitive.name
        moves = name in RULES
        if name == "split":
            first = sum(eqn.params["sizes"][: eqn.outvars.index(var)])  # type: ignore[union-attr]
            return self.value(eqn.invars[0], _shifted(view, eqn.params["axis"], first), region)  # type: ignore[union-attr]
        if (
            eqn is None
            or eqn.effects
            or len(eqn.outvars) != 1
            or self.depth > DEEPEST
            or not (moves or name in elementwise.NAMES)
        ):
            return self.read(var, view, region)
        if not moves and all(g == FIXED for g, _ in view) and not self.graph.is_constant(var):
            return self.read(var, view, region)  # the same for all cells
        self.depth += 1
        try:
            if moves:
                made = RULES[name](self, eqn, view, region)
            else:
                made = self.apply(self.op(eqn), [self.value(v, _broadcast(v, var, view), region) for v in eqn.invars])
        finally:
            self.depth -= 1
        if made is None:
            return self.read(var, view, region)
        whole = math.prod(self.shape)
        part = math.prod(hi - lo for lo, hi in region) / whole
        assert index is not None
        self.counts[index] = self.counts.get(index, 0) + part
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
        """One node in place of all pieces; None if there is none."""
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
        if numbers:
            (number,) = numbers
            if len(reads) > 1 or axis.mode != "inside" or (fill is not None and fill is not number):
                return None
            lo = begin + axis.shift if begin > start else 0
            hi = axis.size - (end + axis.shift) if end < pieces[-1][0] else 0
            if g == len(self.shape) - 1 and len(range(start, pieces[-1][0])) - (end - begin) > MOST_BEYOND:
                return None
            axis, fill = Axis(g, axis.shift, axis.size, "constant", lo, hi), number
        elif any(r.fill is not fill for _, _, r in reads):
            return None
        else:
            modes = ("inside", "wrap", "edge", "reflect", "symmetric") if axis.mode == "inside" else (axis.mode,)
            found = [Axis(g, axis.shift, axis.size, m, axis.lo, axis.hi) for m in modes]
            if axis.mode == "inside":  # of the cells of the main piece alone
                lo = begin + axis.shift if begin > start else 0
                hi = axis.size - (end + axis.shift) if end < pieces[-1][0] else 0
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


def _broadcast(operand: Any, result: Any, view: View) -> View:
    """The operand's view, which may have axes of size 1, or none."""
    if not operand.aval.ndim:
        return ()
    pairs = zip(view, operand.aval.shape, result.aval.shape, strict=True)
    return tuple((FIXED, 0) if n == 1 != m else v for v, n, m in pairs)


def _is_zero(node: Node) -> bool:
    return isinstance(node, Number) and node.value == 0


# --- primitives that move -------------------------------------------------------------------------------------------------------


def _within(region: Region, g: int, lo: int, hi: int) -> tuple[int, int]:
    return max(region[g][0], lo), min(region[g][1], hi)


def _narrowed(region: Region, g: int, part: tuple[int, int]) -> Region:
    return (*region[:g], part, *region[g + 1 :])


def _shifted(view: View, axis: int, by: int) -> View:
    g, s = view[axis]
    return (*view[:axis], (g, s + by), *view[axis + 1 :])


def _slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    starts, strides = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(view)
    out = []
    for (g, s), start, stride in zip(view, starts, strides, strict=True):
        if g != FIXED and stride != 1:
            return None
        out.append((g, s * stride + start if g == FIXED else s + start))
    return c.value(eqn.invars[0], tuple(out), region)


def _start(c: Cells, var: Any) -> int | None:
    """A number that is known."""
    found = c.value(var, (), ())
    return int(found.value) if isinstance(found, Number) else None


def _dynamic_slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, *starts = eqn.invars
    out = view
    for axis, (var, n, size) in enumerate(zip(starts, x.aval.shape, eqn.params["slice_sizes"], strict=True)):
        at = _start(c, var)
        if at is None:
            return None
        out = _shifted(out, axis, min(max(at, 0), n - size))
    return c.value(x, out, region)


def _placed(c: Cells, view: View, region: Region, box: Region, inside: Callable[[Region], Node], outside: Any) -> Node:
    """``inside`` where the variable's axes are in the box, ``outside`` elsewhere: functions of a region."""

    def along(axis: int, region: Region) -> Node:
        if axis == len(view):
            return inside(region)
        (g, s), (lo, hi) = view[axis], box[axis]
        if g == FIXED:
            return along(axis + 1, region) if lo <= s < hi else outside(region)
        begin, end = region[g]
        lo, hi = min(max(lo - s, begin), end), max(min(hi - s, end), begin)
        if hi <= lo:
            return outside(region)
        pieces = []
        if begin < lo:
            pieces.append((lo, outside(_narrowed(region, g, (begin, lo)))))
        pieces.append((hi, along(axis + 1, _narrowed(region, g, (lo, hi)))))
        if hi < end:
            pieces.append((end, outside(_narrowed(region, g, (hi, end)))))
        return c.joined(g, begin, pieces)

    return along(0, region)


def _pad(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, filler = eqn.invars
    config = [tuple(map(int, row)) for row in eqn.params["padding_config"]]
    if any(interior for _, _, interior in config):
        return None
    inner = tuple((g, s - lo) for (g, s), (lo, _, _) in zip(view, config, strict=True))
    box = tuple((0, n) for n in x.aval.shape)
    return _placed(c, inner, region, box, lambda r: c.value(x, inner, r), lambda r: c.value(filler, (), r))


def _concatenate(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    d = eqn.params["dimension"]
    g, s = view[d]
    first, pieces = 0, []
    for v in eqn.invars:
        n = v.aval.shape[d]
        mine = _shifted(view, d, -first)
        if g == FIXED:
            if first <= s < first + n:
                return c.value(v, mine, region)
        else:
            begin, end = _within(region, g, first - s, first + n - s)
            if begin < end:
                pieces.append((end, c.value(v, mine, _narrowed(region, g, (begin, end)))))
        first += n
    return c.joined(g, region[g][0], pieces)


def _broadcast_in_dim(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, out = eqn.invars[0], []
    for n, axis in zip(x.aval.shape, eqn.params["broadcast_dimensions"], strict=True):
        out.append(view[axis] if n == eqn.outvars[0].aval.shape[axis] else (FIXED, 0))
    return c.value(x, tuple(out), region)


def _reshape(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    """Of axes of size 1 alone."""
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        return None
    x, out = eqn.invars[0], eqn.outvars[0]
    kept = [k for k, n in enumerate(out.aval.shape) if n != 1]
    own = [k for k, n in enumerate(x.aval.shape) if n != 1]
    if [out.aval.shape[k] for k in kept] != [x.aval.shape[k] for k in own]:
        return None
    there = dict(zip(own, kept, strict=True))
    return c.value(x, tuple(view[there[k]] if k in there else (FIXED, 0) for k in range(x.aval.ndim)), region)


def _transpose(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    there = eqn.params["permutation"]
    return c.value(eqn.invars[0], tuple(view[there.index(k)] for k in range(len(there))), region)


def _rev(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x = eqn.invars[0]
    wide = [d for d in eqn.params["dimensions"] if view[d][0] != FIXED]
    for d in wide:
        g = view[d][0]
        begin, end = region[g]
        if end - begin > MOST_PIECES:
            return None
        if end - begin > 1:
            cells = [(k + 1, _rev(c, eqn, view, _narrowed(region, g, (k, k + 1)))) for k in range(begin, end)]
            if any(node is None for _, node in cells):
                return None
            return c.joined(g, begin, [(k, node) for k, node in cells if node is not None])
    out = list(view)
    for d in eqn.params["dimensions"]:
        g, s = view[d]
        out[d] = FIXED, x.aval.shape[d] - 1 - (s if g == FIXED else region[g][0] + s)
    return c.value(x, tuple(out), region)


def _iota(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    g, s = view[eqn.params["dimension"]]
    dtype = eqn.outvars[0].aval.dtype
    return c.number(np.asarray(s, dtype)) if g == FIXED else c.coordinate(g, s, dtype)


def _same(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    return c.value(eqn.invars[0], view, region)


def _updated(
    c: Cells, x: Any, new: Any, starts: Sequence[int], axes: Sequence[int], view: View, region: Region, add: bool
) -> Node:
    """``x`` with ``new`` written from ``starts`` on; ``axes``: those of ``x`` that ``new`` has, in order; the others have one
    position."""
    sizes = [1] * x.aval.ndim
    for k, a in enumerate(axes):
        sizes[a] = new.aval.shape[k]
    box = tuple((lo, lo + n) for lo, n in zip(starts, sizes, strict=True))
    mine = tuple((g, s - starts[a]) for a, (g, s) in enumerate(view) if a in axes)

    def inside(r: Region) -> Node:
        value = c.value(new, mine, r)
        return c.binary("add", c.value(x, view, r), value, x.aval.dtype) if add else value

    return _placed(c, view, region, box, inside, lambda r: c.value(x, view, r))


def _scatter(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, indices, new = eqn.invars
    d = eqn.params["dimension_numbers"]
    if (
        indices.aval.ndim != 1
        or d.operand_batching_dims
        or eqn.params["mode"].name not in ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")
    ):
        return None
    starts = [0] * x.aval.ndim
    for k, a in enumerate(d.scatter_dims_to_operand_dims):
        found = c.value(indices, ((FIXED, k),), ())
        if not isinstance(found, Number):
            return None
        starts[a] = int(found.value)
    axes = [a for a in range(x.aval.ndim) if a not in d.inserted_window_dims]
    if tuple(d.update_window_dims) != tuple(range(len(axes))):
        return None
    for a, start in enumerate(starts):
        n = new.aval.shape[axes.index(a)] if a in axes else 1
        if not 0 <= start <= x.aval.shape[a] - n:
            return None
    return _updated(c, x, new, starts, axes, view, region, eqn.primitive.name != "scatter")


def _dynamic_update_slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, new, *at = eqn.invars
    starts = []
    for var, n, size in zip(at, x.aval.shape, new.aval.shape, strict=True):
        start = _start(c, var)
        if start is None:
            return None
        starts.append(min(max(start, 0), n - size))
    return _updated(c, x, new, starts, range(x.aval.ndim), view, region, False)


def _window(name: str) -> Callable[..., Node | None]:
    """A window's sum, maximum or minimum, cell by cell."""

    def rule(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
        p, x = eqn.params, eqn.invars[0]
        sizes, dtype = p["window_dimensions"], x.aval.dtype
        moved = [
            n != 1 or s != 1 or tuple(pad) != (0, 0) for n, s, pad in zip(sizes, p["window_strides"], p["padding"], strict=True)
        ]
        strided = any(n != 1 for n in (*p["window_strides"], *p["base_dilation"]))
        if strided or math.prod(sizes) > MOST_TAPS or any(m and g == FIXED for m, (g, _) in zip(moved, view, strict=True)):
            return None
        neutral: Any = 0
        if name == "add":
            pass
        elif jnp.issubdtype(dtype, jnp.floating):
            neutral = -np.inf if name == "max" else np.inf
        elif jnp.issubdtype(dtype, jnp.integer):
            neutral = jnp.iinfo(dtype).min if name == "max" else jnp.iinfo(dtype).max
        else:
            return None
        outside = c.number(np.asarray(neutral, dtype))
        box = tuple((0, n) for n in x.aval.shape)
        out: Node | None = None
        for offsets in np.ndindex(*sizes):
            steps = [o * d - lo for o, d, (lo, _) in zip(offsets, p["window_dilation"], p["padding"], strict=True)]
            mine = tuple((g, s + o) for (g, s), o in zip(view, steps, strict=True))
            term = _placed(c, mine, region, box, lambda r, mine=mine: c.value(x, mine, r), lambda r: outside)  # type: ignore[misc]
            out = term if out is None else c.binary(name, out, term, dtype)
        return out

    return rule


def _convolution(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    """By few weights, of each channel by itself or to one channel."""
    p, (x, w) = eqn.params, eqn.invars
    d, dtype = p["dimension_numbers"], eqn.outvars[0].aval.dtype
    if x.aval.dtype != dtype or w.aval.dtype != dtype or dtype not in (np.float32, np.float64, np.int32):
        return None
    if any(n != 1 for n in (*p["window_strides"], *p["lhs_dilation"], p["batch_group_count"])):
        return None
    (n, f, *xs), (o, i, *ws), (b, q, *outs) = d.lhs_spec, d.rhs_spec, d.out_spec
    groups, inputs, channels = p["feature_group_count"], w.aval.shape[i], w.aval.shape[o]
    depthwise = inputs == 1 and channels == groups
    sizes = [w.aval.shape[k] for k in ws]
    if not (depthwise or (channels == 1 and groups == 1)) or math.prod(sizes) * inputs > MOST_TAPS:
        return None
    if any(view[k][0] == FIXED for k in outs):
        return None
    box = tuple((0, m) for m in x.aval.shape)
    zero = c.number(np.asarray(0, dtype))
    out: Node | None = None
    for channel in range(inputs):
        for offsets in np.ndindex(*sizes):
            mine = [(FIXED, 0)] * x.aval.ndim
            mine[n] = view[b]
            mine[f] = view[q] if depthwise else (FIXED, channel)
            weight = [(FIXED, 0)] * w.aval.ndim
            weight[o] = view[q] if depthwise else (FIXED, 0)
            weight[i] = FIXED, channel
            for k, (axis, off) in enumerate(zip(xs, offsets, strict=True)):
                g, s = view[outs[k]]
                mine[axis] = g, s + off * p["rhs_dilation"][k] - p["padding"][k][0]
                weight[ws[k]] = FIXED, off
            at, by = tuple(mine), tuple(weight)
            term = _placed(c, at, region, box, lambda r, at=at: c.value(x, at, r), lambda r: zero)  # type: ignore[misc]
            term = c.binary("mul", term, c.value(w, by, region), dtype)
            out = term if out is None else c.binary("add", out, term, dtype)
    return out


RULES: dict[str, Callable[[Cells, Any, View, Region], Node | None]] = {
    **dict.fromkeys(IDENTITIES & {"copy", "copy_p", "stop_gradient", "name"}, _same),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "expand_dims": _reshape,
    "iota": _iota,
    "pad": _pad,
    "reduce_window_max": _window("max"),
    "reduce_window_min": _window("min"),
    "reduce_window_sum": _window("add"),
    "reshape": _reshape,
    "rev": _rev,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter_add": _scatter,
    "slice": _slice,
    "squeeze": _reshape,
    "transpose": _transpose,
}
"""Primitives that a cell's neighbourhood goes through: what one makes of a view and a region; None: its result is read."""


def work(graph: Graph, index: int) -> float:
    """Additions that an equation takes for one number of its result."""
    eqn = graph.eqns[index]
    name = eqn.primitive.name
    if name.startswith("reduce_window"):
        return math.prod(eqn.params["window_dimensions"])
    if name == "conv_general_dilated":
        w, o = eqn.invars[1].aval, eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(w.shape) / w.shape[o]
    return operations(eqn) if name in elementwise.NAMES else float(name in ("scatter-add", "scatter_add"))
