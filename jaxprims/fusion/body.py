"""A loop's body: producers of its sites' operands, taken in as far as it pays, evaluated for one element."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from ..operators.operator import MAX_STRUCT_SLOTS
from ..tracing import lanewise
from ..tracing.emit import Unsupported
from ..tracing.labels import MOVES, NUMBER_BY_NUMBER, REDUCTIONS, Labels, own_shape, wanted
from ..tracing.lanewise import OWN, SAME, Lane
from .cut import count_of
from .exact_loops import each_step, is_exact_loop, steps
from .graph import Graph
from .products import is_product
from .sites import MOST_OWN, MOST_PASSING, Site
from .sorts import additions as of_sort
from .sorts import is_short, is_sort

Leaf = tuple[Var, Labels]

MOST_TAKEN = 300
"""Equations in a body, those nearest to its sites: what they need beyond is read."""

IN_ROWS = NUMBER_BY_NUMBER | REDUCTIONS
"""What a function of a row may do."""

MOST_IN_ROW = 8192
"""Numbers of a row: some arrays of so many are in the second-level cache together."""

LONGEST_COMBINED, LONGEST_COMBINED_DEAR = 16, 100
"""Numbers of a row that is combined as one element; where arithmetic is :data:`DEAR`, for which vectors along it wait."""

FEWEST_COMBINED, LONG_COMBINED = 16, 8
"""Rows that are alike in which arrays go along them, side by side, below which they fill no vectors; numbers of a row from above
which up to :data:`LONGEST_COMBINED` it takes twice as many."""

MOST_UNROLLED = 4096
"""Additions for a row of those that lie side by side, each of which has code of its own."""

MOST_MADE_SIDE_BY_SIDE = 3 * MAX_STRUCT_SLOTS
"""Numbers that are written for a row of those: gradients in several arrays."""

OF_A_VECTOR, LONG_ROW = 32, 128
"""Bytes of a row from which on vectors go along it: of each array in memory, if it is reduced once and cheaply and there are two
at least, which would have to be turned in registers; in registers, in any case."""

DEAR = 8
"""Additions for each element from which on arithmetic takes the time (an exponential does), not memory."""

ENOUGH_ROWS = 64
"""Rows of the innermost loops, from which on the others are a batch. Where there are several devices, which may share any of the
axes, all but the last are."""

ENOUGH_BEHIND = 40
"""Elements of the loops behind one whose positions are wanted, from which on these are rows, which take less than quotients."""

MOST_SLICED = 32
"""Numbers for an element that are read beside those that it wants, if these are a slice."""

LARGEST_PRODUCT = 64
"""Numbers of each side of a product that is a body's."""

_DEAR = {
    **dict.fromkeys("exp exp2 expm1 logistic sqrt rsqrt cbrt rem".split(), 8),
    **dict.fromkeys("log log1p tanh sin cos tan asin acos atan atan2 sinh cosh atanh erf erfc gather search".split(), 20),
    **dict.fromkeys("pow asinh acosh erf_inv lgamma digamma".split(), 80),
    "div": 4,
    "random_at": 80,
}
"""Operations that take longer than an addition, in additions."""

_COMBINING = REDUCTIONS | {"argmax", "argmin"}
"""What takes an addition for each number that it is given."""

_THROUGH_NUMBERS = _COMBINING | {"dot_general"}
"""What goes through numbers for one of its result."""

_FREE = MOVES | {"transpose", "slice"}


class Body:
    """What sites of the same loops compute for one element. ``leaves``: the arrays that it reads; ``taken``: equations in it.

    ``cut``: variables that are read, though they could be computed here; so are those that other kernels make (``given``).
    """

    def __init__(self, graph: Graph, sites: Sequence[Site], cut: Collection[Var], given: Collection[Var] = ()):
        self.graph, self.sites, self.cut, self.given = graph, sites, cut, given
        self.leaves: dict[Leaf, None] = {}
        self.taken: set[int] = set()
        self.made: set[Leaf] = set()  # by these
        self.numbers: dict[int, float] = collections.defaultdict(float)  # of each equation taken, for one element
        self.common: set[int] = set()  # of these, what is the same in every turn of a loop
        self.repeated: set[int] = set()  # of these, what goes through numbers again for that
        self.counted: set[int] = set()  # loops whose positions are wanted
        self.batch = sites[0].kept
        self.widest = 0.0  # numbers, of what is computed for one element
        self.of_rows = sites[0].family == "rows"
        roots = {var for site in sites if site.family in ("map", "rows") for var, _ in site.roots}
        loops = set(range(len(sites[0].sizes)))
        seen: set[Leaf] = set()
        todo: collections.deque[tuple[Any, Labels]] = collections.deque(root for site in sites for root in site.roots)
        while todo:
            var, labels = leaf = todo.popleft()
            if isinstance(var, Literal) or leaf in seen:
                continue
            seen.add(leaf)
            full = len(self.taken) >= MOST_TAKEN or var in given or (var in cut and var not in roots)
            operands = None if full else self._operands(var, labels)
            if operands is None:
                self.leaves[leaf] = None
                continue
            index = graph.producer[var]
            self.taken.add(index)
            self.made.add(leaf)
            eqn = graph.eqns[index]
            of_operands = [own_numbers(v, k) for v, k in zip(eqn.invars, operands, strict=True)]
            self.numbers[index] += max(of_operands) if eqn.primitive.name in _COMBINING else own_numbers(var, labels)
            self.widest = max(self.widest, *of_operands, 0)
            if not loops <= set(labels):
                self.common.add(index)
                if eqn.primitive.name in _THROUGH_NUMBERS and max(of_operands) > 1:
                    self.repeated.add(index)
            if eqn.primitive.name == "iota" and labels[eqn.params["dimension"]] != OWN:
                self.counted.add(labels[eqn.params["dimension"]])
            todo += zip(eqn.invars, operands, strict=True)

    @property
    def inside(self) -> set[int]:
        """The sites' equations, and those that are in it."""
        return self.taken | {s.index for s in self.sites}

    def _operands(self, var: Var, labels: Labels) -> list[Labels] | None:
        """The labels of the operands of the equation that makes a variable; None if the variable is read."""
        eqn = self.graph.made_by(var)
        if eqn is None or not (any(k >= self.batch for k in labels) or self.graph.is_constant(var)):
            return None  # the same for all elements of a row
        if self.of_rows and not self._is_of_a_row(eqn, labels):
            return None
        out = wanted(eqn, labels)
        most = MOST_IN_ROW if self.of_rows else MOST_OWN * math.prod(self.sites[0].lanes)
        if out is None or (own_numbers(var, labels) > most and not self._passes(var, labels, eqn)):
            return None
        for v, k in zip(eqn.invars, out, strict=True):
            if max(k, default=OWN) >= 0 and own_numbers(v, k) > most and not self._is_computed(v, k):
                return None
        if eqn.primitive.name == "dot_general" and not self._is_small_product(eqn, out):
            return None
        if is_product(self.graph, eqn):
            return None
        if eqn.primitive.name == "slice" and own_numbers(eqn.invars[0], out[0]) > MOST_SLICED + own_numbers(var, labels):
            return None
        return out

    def _passes(self, var: Var, labels: Labels, eqn: JaxprEqn) -> bool:
        """Are its numbers few enough to be computed at once, if none is kept?"""
        few = own_numbers(var, labels) * max(1, operations(eqn)) <= MOST_PASSING
        return few and not self.of_rows and len(self.graph.users[var]) == 1

    def _is_computed(self, var: Var, labels: Labels) -> bool:
        return var not in self.cut and var not in self.given and self._operands(var, labels) is not None

    def _is_of_a_row(self, eqn: JaxprEqn, labels: Labels) -> bool:
        """Not what several rows have in common, if to have it is to go through other rows."""
        every = set(range(len(self.sites[0].sizes))) <= set(labels)
        return eqn.primitive.name in IN_ROWS and (every or eqn.primitive.name not in REDUCTIONS)

    def _is_small_product(self, eqn: JaxprEqn, labels: Sequence[Labels]) -> bool:
        """Not one of two matrices, whose rows and columns would be read again and again."""
        (x, y), (k, other) = eqn.invars, labels
        loops = [{n for n in mine if n != OWN} for mine in (k, other)]
        return max(own_numbers(x, k), own_numbers(y, other)) <= LARGEST_PRODUCT and (loops[0] == loops[1] or not all(loops))

    @functools.cached_property
    def combined(self) -> tuple[int, int] | None:
        """Of a reduction whose elements are short rows: the first of their loops, and that of the loops within the rows. None if
        they are not: what is read once for a row would make a reduction of every row by itself."""
        plain = self.sites[0].family == "reduce" and not self.counted and not any(s.positioned for s in self.sites)
        of_rows = (x for x in self.leaves if any(0 <= k < self.innermost for k in x[1]))
        plain &= all(own_numbers(*x) * in_register(x[0]) < LONG_ROW for x in of_rows)
        first = self._alike(self.innermost) if self.few_alike else self.innermost
        outer, row = self._alike(first), math.prod(self.sites[0].sizes[first:])
        if not plain or first == self.batch or row > LONGEST_COMBINED_DEAR or self._are_few(outer, first):
            return None
        unrolled, nested = self._unrolled(row), outer > self.batch or first < self.innermost
        if self.repeated and (nested or row > LONGEST_COMBINED):
            return None
        if unrolled > MOST_UNROLLED and (self.repeated or row > LONGEST_COMBINED):
            return None
        if row > LONGEST_COMBINED and not (self.few_alike or DEAR * row <= unrolled):
            return None
        return outer, first

    @property
    def has_pairs(self) -> bool:
        """Is something read along some of the loops only?"""
        loops = len(self.sites[0].sizes) - self.batch
        return any(0 < len({k for k in labels if k >= self.batch}) < loops for _, labels in self.leaves)

    @functools.cached_property
    def few_alike(self) -> bool:
        """Are there but a few rows side by side in those loops that all arrays go along, or not?"""
        return self._are_few(self._alike(self.innermost), self.innermost)

    def _are_few(self, outer: int, first: int) -> bool:
        sizes, before, rows = self.sites[0].sizes, set(range(outer)), set(range(outer, first))
        apart = outer > self.batch or any(before & set(k) and not rows & set(k) for _, k in self.leaves)
        fewest = FEWEST_COMBINED * (1 + (LONG_COMBINED < math.prod(sizes[first:]) <= LONGEST_COMBINED))
        return apart and math.prod(sizes[outer:first]) < fewest

    @functools.cached_property
    def side_by_side(self) -> bool:
        """Are rows so short that a vector holds a number of each of several rows, and registers those of an array?"""
        rows = [(own_numbers(*x), x[0].aval.dtype.itemsize) for x in self.read_and_written if own_numbers(*x) > 1]
        turned = self.reduced_once and len(rows) > 1 and min(math.prod(row) for row in rows) >= OF_A_VECTOR
        written = sum(own_numbers(*root) for site in self.sites for root in site.roots)
        fit = self._held_bytes < LONG_ROW and written <= MOST_MADE_SIDE_BY_SIDE
        return self.of_rows and fit and not turned and self._unrolled() <= MOST_UNROLLED

    @property
    def read_and_written(self) -> set[Leaf]:
        """Arrays in memory."""
        return {*self.leaves, *(root for site in self.sites for root in site.roots)}

    @functools.cached_property
    def row_bytes(self) -> float:
        """Of the longest array of a row in registers."""
        arrays = self.read_and_written
        return max(self.widest, *(own_numbers(*x) for x in arrays)) * max(in_register(v) for v, _ in arrays)

    @property
    def _held_bytes(self) -> float:
        """Of the longest array that each of several rows has in registers: not what is reduced as it is made."""
        graph, inside = self.graph, self.inside

        def is_reduced(var: Var) -> bool:
            users = graph.users[var]
            if len(users) != 1 or users[0] not in inside:
                return False
            name, outs = graph.eqns[users[0]].primitive.name, graph.eqns[users[0]].outvars
            return name in REDUCTIONS or (name in NUMBER_BY_NUMBER | MOVES and is_reduced(outs[0]))

        arrays = [*self.streamed, *(root for site in self.sites for root in site.roots)]
        arrays += [leaf for leaf in self.made if not is_reduced(leaf[0])]
        return max(own_numbers(*x) * in_register(x[0]) for x in arrays)

    @functools.cached_property
    def reduced_once(self) -> bool:
        """Is there one reduction of a row at most, and little arithmetic?"""
        reductions = sum(self.graph.eqns[k].primitive.name in REDUCTIONS for k in self.inside)
        return reductions < 2 and self._unrolled() < DEAR * self.widest

    def _unrolled(self, row: int = 1) -> float:
        """Additions for a row of so many elements."""
        return sum(operations(self.graph.eqns[k]) * self.numbers[k] * (1 if k in self.common else row) for k in self.taken)

    def times(self, index: int) -> float:
        """How many numbers an equation makes, in all."""
        sizes = self.sites[0].sizes
        once = self.combined if index in self.common else None
        return self.numbers[index] * math.prod(sizes[: once[1]] if once else sizes)

    @property
    def innermost(self) -> int:
        """The first of the innermost loops that every array read goes along together, or not at all: behind those of positions,
        if there are enough others."""
        sizes = self.sites[0].sizes
        counted = [k + 1 for k in self.counted if k + 1 < len(sizes) and math.prod(sizes[k + 1 :]) >= ENOUGH_BEHIND]
        return max([self._alike(len(sizes)), *counted])

    def _alike(self, last: int) -> int:
        for first in range(self.batch, last):
            found = [sum(first <= k < last for k in labels) for _, labels in self.leaves]
            if all(n in (0, last - first) for n in found):
                return first
        return last - 1

    @property
    def streamed(self) -> list[Leaf]:
        """What is read for every element."""
        loops = set(range(len(self.sites[0].sizes)))
        return [leaf for leaf in self.leaves if loops <= set(leaf[1])]

    def evaluate(self, read: Sequence[Any], position: Callable[[int], Any]) -> list[list[Any]]:
        """The roots of every site, from what is read of each leaf (its own axes) and the loops' positions."""
        known: dict[tuple[Any, Labels], Lane] = {
            (var, labels): Lane(x, tuple(var.aval.shape), labels) for (var, labels), x in zip(self.leaves, read, strict=True)
        }

        def lane(var: Any, labels: Labels) -> Lane:
            if isinstance(var, Literal):
                return lanewise.constant(var.val)
            if (var, labels) not in known:
                known[var, labels] = _labelled(self._equation(var, labels, lane, position), labels)
            return known[var, labels]

        return [[_data(lane(*root), root[1]) for root in site.roots] for site in self.sites]

    def _equation(self, var: Var, labels: Labels, lane: Callable[..., Lane], position: Callable[[int], Any]) -> Lane:
        eqn = self.graph.made_by(var)
        assert eqn is not None
        if eqn.primitive.name == "iota" and labels[eqn.params["dimension"]] != OWN:
            axis = eqn.params["dimension"]
            at = lax.convert_element_type(position(labels[axis]), eqn.params["dtype"])
            return Lane(at, tuple(var.aval.shape), tuple(labels[axis] if k == axis else SAME for k in range(len(labels))))
        operands = wanted(eqn, labels)
        assert operands is not None
        (result,) = lanewise.equation(eqn, [lane(*operand) for operand in zip(eqn.invars, operands, strict=True)])
        return result


def own_numbers(var: Any, labels: Labels) -> float:
    """Infinite where it is not known how many."""
    mine = own_shape(var, labels)
    return math.prod(mine) if all(isinstance(n, int) for n in mine) else math.inf


def operations(eqn: JaxprEqn) -> float:
    """Additions that an equation takes for one number of its result."""
    if eqn.primitive.name == "dot_general":
        (sums, _), _ = eqn.params["dimension_numbers"]
        return 2 * count_of(eqn.invars[0].aval.shape[a] for a in sums)
    if is_sort(eqn):
        return of_sort(eqn) if is_short(eqn) else math.inf
    if is_exact_loop(eqn):
        return steps(eqn) * sum(map(operations, each_step(eqn)))
    return 0 if eqn.primitive.name in _FREE else additions(eqn.primitive.name)


def in_register(v: Any) -> int:
    """Bytes of each number there: halves are held as f32."""
    return max(4, v.aval.dtype.itemsize)


def additions(name: str) -> float:
    """That an elementwise operation takes."""
    return _DEAR.get(name, 1)


def _labelled(x: Lane, labels: Labels) -> Lane:
    """With these labels: an axis along which all is the same may have any."""
    x = x.own(*(a for a, k in enumerate(labels) if k == OWN))
    if any(mine not in (SAME, k) for mine, k in zip(x.labels, labels, strict=True)):
        raise Unsupported("fuse", "an equation that mixes its elements")
    return Lane(x.data, x.shape, labels)


def _data(x: Lane, labels: Labels) -> Any:
    return x.data if not x.shape or x.labels == labels else _labelled(x, labels).data
