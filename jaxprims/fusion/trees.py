"""``lax.associative_scan``: the slices of every second element, of every fourth ..., that it is traced to, as one scan.

A level of that tree combines neighbours, scans what comes of them, by another level, and combines each of the results with the
element behind it. That all levels do so by the same function is what is looked for, from what the last one makes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..api.scan import scan
from ..ir.program import Program
from ..operators.classify import is_associative, recognise
from ..primitives.avals import typed
from ..primitives.ordered.scan_xla import CUMULATIVE, STEPS
from ..tracing import lanewise
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import RULES, run_equation, run_in, structs, variables
from ..tracing.lanewise import OWN, SAME, Lane
from ..tracing.lower import to_program
from .graph import OUTSIDE, Graph, with_equations
from .pulled import Pulled, pulled
from .tree_levels import Level, level_of, sliced

FEWEST = 8
"""Elements below which a tree has too few levels to be known by them."""

_SPLITTING = frozenset("max min reduce_max reduce_min clamp".split())
"""What divides a derivative among equal operands, which depends on the order in which they are combined."""

_OPERATORS = STEPS | {"logaddexp": jnp.logaddexp}

FEWEST_NAMED = 2**10
"""Numbers from which on JAX's own cumulative functions are kernels, which take in what makes these; XLA has windows for them."""


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
                made[tree] = tree.scanned([value(x) for x in tree.leaves], value, with_names)
            return [typed(made[tree][i], out.aval)]
        if out in pulled_by:
            tree, gradient, i = pulled_by[out]
            if gradient not in made:
                made[gradient] = tree.pull([value(x) for x in gradient.begins])
            return [typed(functools.reduce(lax.add, [*map(value, gradient.more[i]), made[gradient][i]]), out.aval)]
        return run_equation(eqn, operands)

    return with_equations(graph, equation)


_TREES: dict[str, Callable[..., Any]] = {"cumlogsumexp": jnp.logaddexp, "cumprod": jnp.multiply}
"""Cumulative functions whose derivatives JAX makes of such trees."""


def with_rule(eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
    """One of those as a scan that has a rule of its own; None for anything else."""
    op = _TREES.get(eqn.primitive.name)
    if op is None or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return None
    return lambda x: [typed(scan(x, op, axis=eqn.params["axis"], reverse=eqn.params["reverse"]), eqn.outvars[0].aval)]


def _trees(graph: Graph) -> Iterator[_Tree]:
    """The outermost ones."""
    found = {
        v: level for eqn in graph.eqns if (level := level_of(graph, v := eqn.outvars[0] if eqn.outvars else None)) is not None
    }
    inside = set[int]()
    for out, level in reversed(found.items()):
        if level.size >= FEWEST and graph.producer[out] not in inside:
            tree = _Tree(graph, level.axis)
            if tree.reads(out, {v: k for k, v in found.items()}):
                inside |= tree.inside
                if tree.is_worth_a_scan():
                    yield tree


# --- all levels -----------------------------------------------------------------------------------------------------------------


class _Other(Exception):
    """It is no such tree."""


BEFORE, BEHIND = 0, 1
"""Which of two neighbours."""


class _Ends(NamedTuple):
    """What one element is made of: slices of these, by leaf, of which it says which of two neighbours they are; or these."""

    sliced: dict[tuple[Any, tuple[int, int, int]], tuple[int, int]]
    whole: dict[Any, tuple[int, int]]

    def slot(self, graph: Graph, axis: int, v: Any) -> tuple[int, int] | None:
        eqn = graph.made_by(v)
        if v.aval.shape[axis : axis + 1] != (1,) or eqn is None:
            return None
        if v in self.whole or eqn.primitive.name != "slice":
            return self.whole.get(v)
        return self.sliced.get((eqn.invars[0], sliced(eqn, axis) or (0, 0, 0)))


@dataclasses.dataclass(eq=False)
class _Tree:
    """``leaves``: what is scanned; ``outs``: the results, by leaf; ``inside``: equations; ``gradient``: if that is there, too."""

    graph: Graph
    axis: int
    leaves: list[Any] = dataclasses.field(default_factory=list)
    outs: dict[int, Any] = dataclasses.field(default_factory=dict)
    inside: set[int] = dataclasses.field(default_factory=set)
    gradient: Pulled | None = None

    def reads(self, out: Any, levels: dict[Level, Any]) -> bool:
        """Is it one, with this result?"""
        try:
            self._read(out, levels)
            self._traced((self.axis,))
        except (_Other, Unsupported):
            return False
        return True

    def is_worth_a_scan(self) -> bool:
        """Is its function associative, as far as that can be tried, and does nobody want the middle of it, but its own gradient,
        which is there, too?"""
        program = self._program()
        if program is None or not is_associative(program[0], program[1]):
            return False
        name = self._name()
        parts = {self.graph.name_of(v) for v in self._between}
        splits = name != "logaddexp" and not parts.isdisjoint(_SPLITTING)
        if self._is_alone(self.inside, self.outs.values()):
            return not (splits and self.graph.with_rules)
        if splits:
            return False
        known = CUMULATIVE.get(name)
        by_jax = None if known is None else lambda x: [known(x, axis=self.axis)]
        self.gradient = pulled(self.graph, self.leaves, list(self.outs.values()), by_jax)
        if self.gradient is None:
            return False
        return self._is_alone(self.inside | self.gradient.inside, [*self.outs.values(), *self.gradient.results])

    def _is_alone(self, inside: Collection[int], results: Collection[Any]) -> bool:
        """Does nobody else want what these equations make, but for the results and slices of the leaves?"""
        within = [v for k in inside if not self._is_slice_of_leaf(k) for v in self.graph.eqns[k].outvars if v not in results]
        return all(u in inside or self._is_of_none(u) for v in within for u in self.graph.users.get(v, ()))

    def _is_slice_of_leaf(self, index: int) -> bool:
        eqn = self.graph.eqns[index]
        return eqn.primitive.name == "slice" and eqn.invars[0] in self.leaves

    def _is_of_none(self, user: int) -> bool:
        return user != OUTSIDE and all(v.aval.size == 0 for v in self.graph.eqns[user].outvars)

    def _read(self, out: Any, levels: dict[Level, Any]) -> None:
        graph = self.graph
        chain: list[Any] = []
        at = out
        while True:
            level = level_of(graph, at)
            if level is None or level.axis != self.axis or level.size < 2:
                raise _Other
            chain.append(level.x)
            at = level.odd
            if level.size < 4:
                chain.append(at)
                break
        self.count = out.aval.shape[self.axis]
        self.counts = [self.count >> k for k in range(len(chain))]
        self.elements: list[list[Any]] = []  # of each leaf those of each level
        self.slots: dict[Any, tuple[int, int]] = {}
        self._add(chain[0], chain)
        self.known: set[tuple[int, int]] = set()
        self._reduce()
        self.outs = {0: out} | {self.leaves.index(level.x): v for level, v in levels.items() if self._is_mine(level)}
        todo, seen = [(i, 0, v) for i, v in self.outs.items()], dict[tuple[int, int], Any]()
        while todo:
            i, depth, v = todo.pop()
            if (i, depth) in seen:
                if seen[i, depth] is not v:
                    raise _Other
                continue
            seen[i, depth] = v
            if depth == len(self.counts) - 1:
                self._is(i, depth, v)
            else:
                todo += self._combined(i, depth, v)
        self._reduce()
        if any(first is None for _, first, *_ in self.elements):
            raise _Other

    def _is_mine(self, level: Level) -> bool:
        """Is it of a leaf beside the first, and of this tree?"""
        if level.x not in self.leaves[1:] or level.axis != self.axis or level.size != self.count:
            return False
        below = level_of(self.graph, level.odd)
        return self.elements[self.leaves.index(level.x)][1] in (level.odd, None if below is None else below.x)

    def _reduce(self) -> None:
        """Whatever is known of the levels' elements is made of the level before."""
        while (
            todo := {(i, k) for i, every in enumerate(self.elements) for k, v in enumerate(every) if k and v is not None}
            - self.known
        ):
            for i, depth in sorted(todo):
                self._reduced(i, depth)
            self.known |= todo

    def _add(self, x: Any, chain: Sequence[Any] = ()) -> int:
        self.leaves.append(x)
        self.elements.append([*chain] if chain else [x, *[None] * (len(self.counts) - 1)])
        return len(self.leaves) - 1

    def _is(self, i: int, depth: int, v: Any) -> None:
        """A leaf's elements at a level are these."""
        known = self.elements[i][depth]
        if known is None:
            self.elements[i][depth] = v
        elif known is not v:
            raise _Other

    def _reduced(self, i: int, depth: int) -> None:
        """Neighbours of a level are combined to these elements as those of the first level are."""
        first, made, count = self.elements[i][1], self.elements[i][depth], self.counts[depth - 1]
        if depth == 1:
            return self._find_slots(first, count)

        def neighbour(which: int, j: int, v: Any) -> None:
            eqn = self._slice(v)
            if sliced(eqn, self.axis) != (which, count - 1 + which, 2):
                raise _Other
            self._is(j, depth - 1, eqn.invars[0])

        behind, before = (self._slices(depth - 1, (k, count - 1 + k, 2), which) for k, which in ((1, BEHIND), (0, BEFORE)))
        of_one = _Ends(behind | before, {})
        self._align(i, made, self.counts[depth], neighbour, of_one)

    def _find_slots(self, v: Any, n: int) -> None:
        """The slices of the first level's elements that a variable is made of."""
        todo, seen = [v], set[Any]()
        while todo:
            x = todo.pop()
            if isinstance(x, Literal) or x in seen or x in self.slots:
                continue
            seen.add(x)
            eqn = self.graph.made_by(x)
            if eqn is None:
                continue
            if eqn.primitive.name == "slice" and eqn.invars[0].aval.shape[self.axis :][:1] == (n,):
                how = sliced(eqn, self.axis)
                which = {(0, n - 1, 2): BEFORE, (1, n, 2): BEHIND}.get(how) if how is not None else None
                if which is not None:
                    x_of = eqn.invars[0]
                    i = self.leaves.index(x_of) if x_of in self.leaves else self._add(x_of)
                    self.slots[x] = which, i
                    self.inside.add(self.graph.producer[x])
                    continue
            todo += variables(eqn.invars)

    def _combined(self, i: int, depth: int, v: Any) -> list[tuple[int, int, Any]]:
        """Each odd result is combined with the element behind it; those of other leaves that are, with their depth."""
        level, count = level_of(self.graph, v), self.counts[depth]
        if level is None or level.axis != self.axis:
            raise _Other
        self._is(i, depth, level.x)
        self.inside.update(level.inside)
        found = [(i, depth + 1, level.odd)]
        if level.rest is None:
            if count > 2:
                raise _Other
            return found

        def neighbour(which: int, j: int, x: Any) -> None:
            if which == BEFORE and count % 2:
                found.append((j, depth + 1, x))
                return
            eqn = self._slice(x)
            if which == BEFORE and sliced(eqn, self.axis) == (0, count // 2 - 1, 1):
                found.append((j, depth + 1, eqn.invars[0]))
            elif which == BEHIND and sliced(eqn, self.axis) == (2, count, 2):
                self._is(j, depth, eqn.invars[0])
            else:
                raise _Other

        behind, before = self._slices(depth, (2, count, 2), BEHIND), {(level.odd, (0, 1, 1)): (BEFORE, i)}
        whole = {e[-1]: (BEFORE, j) for j, e in enumerate(self.elements) if e[-1] is not None} if count == 3 else {}
        self._align(i, level.rest, (count - 1) // 2, neighbour, _Ends(behind | before, whole))
        return found

    def _slices(self, depth: int, how: tuple[int, int, int], which: int) -> dict[Any, tuple[int, int]]:
        """Of what is known of a level's elements."""
        return {(e[depth], how): (which, i) for i, e in enumerate(self.elements) if e[depth] is not None}

    def _slice(self, v: Any) -> JaxprEqn:
        eqn = self.graph.made_by(v)
        if eqn is None or eqn.primitive.name != "slice":
            raise _Other
        self.inside.add(self.graph.producer[v])
        return eqn

    def _align(self, i: int, made: Any, count: int, neighbour: Callable[[int, int, Any], None], of_one: _Ends) -> None:
        """These elements are made of ``count`` others as a leaf's are at the first level."""
        before = set(self.inside)
        try:
            self._align_all(self.elements[i][1], made, self.counts[1], count, neighbour)
        except _Other:
            self.inside = before
            if count > 1 or not self._computes(i, made, of_one):
                raise

    def _computes(self, i: int, made: Any, ends: _Ends) -> bool:
        """Is one element the same function of others? JAX writes the product of two matrices otherwise than those of more."""
        slots, between, todo = dict[Any, tuple[int, int]](), set[int](), [made]
        while todo:
            v = todo.pop()
            slot = ends.slot(self.graph, self.axis, v)
            if slot is not None:
                slots[v] = slot
                self.inside |= set() if v in ends.whole else {self.graph.producer[v]}
            elif v not in self._captured:
                eqn = self.graph.made_by(v)
                if eqn is None or eqn.effects:
                    return False
                between.add(self.graph.producer[v])
                todo += variables(eqn.invars)

        def function(p: Sequence[Any], q: Sequence[Any], value: Callable[[Any], Any]) -> list[Any]:
            env = {v: jnp.expand_dims((p, q)[which][j], self.axis) for v, (which, j) in slots.items()}
            env |= {v: value(v) for v in self._captured}
            for k in sorted(between):
                run_in(env, self.graph.eqns[k])
            return [jnp.squeeze(env[made], self.axis)]

        self.inside |= between
        one = self._traced((self.axis,), lambda p, q, value: [self._op(p, q, value, (self.axis,))[i]])
        return to_program(one.jaxpr) == to_program(self._traced((self.axis,), function).jaxpr)

    def _align_all(self, a: Any, b: Any, of_a: int, of_b: int, neighbour: Callable[[int, int, Any], None]) -> None:
        todo, seen = [(a, b)], set[tuple[Any, Any]]()
        while todo:
            p, q = todo.pop()
            if isinstance(p, Literal) or isinstance(q, Literal):
                if str(p) != str(q) or p.aval.dtype != q.aval.dtype:
                    raise _Other
                continue
            if (p, q) in seen:
                continue
            seen.add((p, q))
            if p in self.slots:
                neighbour(*self.slots[p], q)
                continue
            if p is q:
                continue
            one, other = self.graph.made_by(p), self.graph.made_by(q)
            if one is None or other is None or one.primitive is not other.primitive or one.primitive.name in RULES:
                raise _Other
            alike = one.params.keys() == other.params.keys() and len(one.invars) == len(other.invars)
            if not alike or not all(_are_alike(x, other.params[k], of_a, of_b) for k, x in one.params.items()):
                raise _Other
            if one.outvars.index(p) != other.outvars.index(q) or one.effects:
                raise _Other
            self.inside |= {self.graph.producer[p], self.graph.producer[q]}
            todo += zip(one.invars, other.invars, strict=True)

    # --- the scan

    def scanned(self, leaves: Sequence[Any], value: Callable[[Any], Any], with_names: bool) -> dict[int, Any]:
        """The results."""
        name = self._name()
        if name in CUMULATIVE and with_names and not self.gradient and leaves[0].size >= FEWEST_NAMED:
            return {0: CUMULATIVE[name](leaves[0], axis=self.axis)}

        def op(p: Sequence[Any], q: Sequence[Any]) -> tuple[Any, ...]:
            return (_OPERATORS[name](p[0], q[0]),) if name in _OPERATORS else self._op(p, q, value, (self.axis,))

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

    def _op(self, p: Sequence[Any], q: Sequence[Any], value: Callable[[Any], Any], lanes: Collection[int]) -> tuple[Any, ...]:
        """The combined elements, from one of each leaf, of one lane along these axes, which are to be treated alike."""
        env, between = dict[Any, Lane](), self._between
        for v, (which, i) in self.slots.items():
            labels = tuple(a if a in lanes else OWN for a in range(v.aval.ndim))
            env[v] = Lane((p, q)[which][i], tuple(v.aval.shape), labels)

        def lane(v: Any) -> Lane:
            if isinstance(v, Literal):
                return lanewise.constant(jnp.asarray(v.val, v.aval.dtype))
            if v not in env and v not in between:
                env[v] = lanewise.constant(value(v))
            elif v not in env:
                eqn = self.graph.eqns[self.graph.producer[v]]
                env.update(zip(eqn.outvars, lanewise.equation(eqn, [lane(x) for x in eqn.invars]), strict=True))
            return env[v]

        return tuple(_settled(lane(levels[1]), lanes) for levels in self.elements)

    @property
    def _between(self) -> set[Any]:
        """What depends on the first level's slices, and the first combined elements do on."""
        bits = sum(1 << self.graph.producer[v] for v in self.slots)
        needed = self.graph.needed([levels[1] for levels in self.elements])
        ours = [k for k in needed if self.graph.ancestors[k] & bits and not 1 << k & bits]
        return {v for k in ours for v in self.graph.eqns[k].outvars}

    def _program(self) -> tuple[Program, int] | None:
        """The function of two elements, and how many numbers one has: of as few lanes as it can be; None if that is too large."""
        for count in range(min(v.aval.ndim for v in self.leaves), self.axis, -1):
            try:
                program = to_program(self._traced(range(count)).jaxpr)
            except Unsupported:
                continue
            return program, len(program.results)
        return None

    def _traced(self, lanes: Collection[int], function: Callable[..., Sequence[Any]] | None = None) -> ClosedJaxpr:
        """A function, by default the one that combines elements, of one of each leaf, of another of each, and of what is
        captured."""
        function = functools.partial(self._op, lanes=lanes) if function is None else function
        kept = [tuple(n for a, n in enumerate(x.aval.shape) if a not in lanes) for x in self.leaves]
        elements = [jax.ShapeDtypeStruct(shape, x.aval.dtype) for shape, x in zip(kept, self.leaves, strict=True)]

        def flat(p: Sequence[Any], q: Sequence[Any], captured: Sequence[Any]) -> Sequence[Any]:
            return function(p, q, dict(zip(self._captured, captured, strict=True)).__getitem__)

        return jax.make_jaxpr(flat)(elements, elements, structs(self._captured))

    @property
    def _captured(self) -> list[Any]:
        """What elements are combined with, besides."""
        between = self._between
        read = dict.fromkeys(v for made in between for v in self.graph.operands_of(made))
        return sorted((v for v in read if v not in between and v not in self.slots), key=self._place)

    def _place(self, v: Any) -> int:
        known = [*self.graph.jaxpr.constvars, *self.graph.jaxpr.invars]
        return self.graph.producer[v] if v in self.graph.producer else known.index(v) - len(known)

    def _name(self) -> str | None:
        """Of the operator, where it is one of numbers that is known."""
        program = None if len(self.leaves) > 1 or self._captured else self._program()
        return None if program is None or program[1] > 1 else recognise(program[0])


def _settled(x: Lane, lanes: Collection[int]) -> Any:
    """What there is of one lane."""
    x = x.own(*(a for a in range(len(x.shape)) if a not in lanes))
    if any(k not in ((a, SAME) if a in lanes else (OWN,)) for a, k in enumerate(x.labels)):
        raise Unsupported("associative_scan", "its function mixes elements")
    return x.data


def _are_alike(p: Any, q: Any, of_a: int, of_b: int) -> bool:
    """Parameters of an equation on so many elements, and of one on so many others."""
    if isinstance(p, tuple) and isinstance(q, tuple) and len(p) == len(q) and type(p) is type(q):
        return all(_are_alike(x, y, of_a, of_b) for x, y in zip(p, q, strict=True))
    return bool(p == q) or (isinstance(p, int) and (p, q) == (of_a, of_b))
