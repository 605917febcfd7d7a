"""A traced function as a flat graph of equations: every call in it inlined, what nobody needs left out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..tracing.jaxprs import (
    CALLS,
    CHECKPOINTS,
    RULES,
    called,
    equations_in,
    interpret,
    opened,
    pruned,
    run_equation,
    scan_counts,
    value_of,
    variables,
)
from ..tracing.labels import NUMBER_BY_NUMBER
from .exact_loops import as_calls
from .sorts import by_result

OUTSIDE = -1
"""The user of what a function returns."""


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A flat jaxpr, with who makes and who uses each of its variables."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    producer: dict[Var, int]  # an equation's index
    users: dict[Var, list[int]]
    ancestors: list[int]  # of each equation: a bit for each equation that it depends on, itself too
    with_rules: bool = False  # will derivatives be taken of what becomes of it?
    in_loop: bool = False  # is it done in every turn of a loop?

    @property
    def eqns(self) -> Sequence[JaxprEqn]:
        return self.jaxpr.eqns

    def made_by(self, atom: Any) -> JaxprEqn | None:
        """The equation that makes a variable; None of arguments and literals."""
        index = None if isinstance(atom, Literal) else self.producer.get(atom)
        return None if index is None else self.eqns[index]

    def name_of(self, atom: Any) -> str:
        """The primitive that makes a variable; "" of arguments and literals."""
        eqn = self.made_by(atom)
        return "" if eqn is None else eqn.primitive.name

    def before(self, atom: Any, names: Collection[str]) -> Any:
        """What a variable, or literal, was before these primitives, of which the first operand counts."""
        while (eqn := self.made_by(atom)) is not None and eqn.primitive.name in names and eqn.invars:
            atom = eqn.invars[0]
        return atom

    def operands_of(self, atom: Any) -> list[Var]:
        """What the equation that makes a variable reads."""
        eqn = self.made_by(atom)
        return [] if eqn is None else variables(eqn.invars)

    def is_constant(self, var: Var) -> bool:
        """Is it one number, made of literals alone?"""
        return var in self._constants

    @functools.cached_property
    def _constants(self) -> set[Var]:
        out = set[Var]()
        for eqn in self.eqns:
            if eqn.primitive.name in NUMBER_BY_NUMBER and all(isinstance(v, Literal) or v in out for v in eqn.invars):
                out.update(v for v in eqn.outvars if v.aval.size == 1)
        return out

    def needs(self, atoms: Sequence[Any]) -> int:
        """The equations that these variables depend on, as bits."""
        bits = 0
        for v in variables(atoms):
            if v in self.producer:
                bits |= self.ancestors[self.producer[v]]
        return bits

    def needed(self, atoms: Sequence[Any]) -> list[int]:
        """The equations that these variables depend on, in their order."""
        bits = self.needs(atoms)
        return [k for k in range(len(self.eqns)) if bits >> k & 1]

    def evaluated(
        self, reads: Mapping[int, Sequence[Any]], wanted: Iterable[Any] | None = None, outside: Collection[int] | None = None
    ) -> set[int]:
        """The equations that are evaluated for what is ``wanted`` (None: the results) and for effects, but for those of which
        ``reads`` says what a kernel of theirs reads. ``outside``: among these alone."""
        among = range(len(self.eqns)) if outside is None else outside
        first = [*(self.jaxpr.outvars if wanted is None else wanted)]
        first += [v for k in among if self.eqns[k].effects for v in self.eqns[k].invars]

        def makers(atoms: Iterable[Any]) -> list[int]:
            return [k for v in variables(atoms) if (k := self.producer.get(v)) is not None and k in among]

        return {*reached(makers(first), lambda k: makers(reads.get(k, self.eqns[k].invars)))}.difference(reads)


Rewrite = Callable[[JaxprEqn], "Callable[..., Sequence[Any]] | None"]
"""What is done in place of an equation, as a function of its operands; None: nothing else."""


def flat_graph(
    closed: ClosedJaxpr, rewrite: Rewrite = lambda eqn: None, with_rules: bool = False, barriers: bool = True
) -> Graph:
    """``with_rules``: calls that have rules of their own for derivatives stay calls. ``barriers``: what a checkpoint makes again
    is behind one; not in a loop's body, which makes nothing that was made before the loop."""
    calls = CALLS - RULES - CHECKPOINTS if with_rules else CALLS

    def function(*xs: Any) -> list[Any]:
        return _Inlining(rewrite, calls, barriers).of(closed.jaxpr, closed.consts, xs)

    inlined = jax.make_jaxpr(function)(*(v.aval for v in closed.jaxpr.invars))
    jaxpr = by_result(as_calls(pruned(_shared(inlined.jaxpr)), with_rules))
    eqns = jaxpr.eqns
    producer: dict[Var, int] = {}
    users: dict[Var, list[int]] = {}
    ancestors: list[int] = []
    for index, eqn in enumerate(eqns):
        bits = 1 << index
        for v in variables(eqn.invars):
            users.setdefault(v, []).append(index)
            if v in producer:
                bits |= ancestors[producer[v]]
        producer.update((v, index) for v in eqn.outvars)
        ancestors.append(bits)
    for v in variables(jaxpr.outvars):
        users.setdefault(v, []).append(OUTSIDE)
    return Graph(jaxpr, tuple(inlined.consts), producer, users, ancestors, with_rules)


Equation = Callable[[JaxprEqn, Sequence[Any], Callable[[Any], Any]], Sequence[Any]]
"""The results of an equation, from its operands and the values of all atoms before it."""


def with_equations(graph: Graph, equation: Equation, *kept: dict[Any, Any]) -> ClosedJaxpr:
    """The function with each of its equations done so. ``kept``: what they keep for those behind them, and no longer."""

    def function(*args: Any) -> list[Any]:
        known: dict[Var, Any] = dict(zip((*graph.jaxpr.constvars, *graph.jaxpr.invars), (*graph.consts, *args), strict=True))
        value = functools.partial(value_of, known=known)

        def one(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
            known.update((v, x) for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, Literal))
            out = equation(eqn, operands, value)
            known.update(zip(eqn.outvars, out, strict=True))
            return out

        out = interpret(graph.jaxpr, graph.consts, args, one)
        for made in kept:
            made.clear()
        return out

    return jax.make_jaxpr(function)(*(v.aval for v in graph.jaxpr.invars))


T = TypeVar("T")


def needs_itself(made: int, needed: int, others: Iterable[T], made_by: Callable[[T], int], needed_by: Callable[[T], int]) -> bool:
    """Does what has ``made`` some equations need one of them itself, be it by way of ``others``? Equations are bits."""
    todo = list(others)
    while not needed & made:
        found = [o for o in todo if made_by(o) & needed]
        if not found:
            return False
        todo = [o for o in todo if o not in found]
        for o in found:
            needed |= needed_by(o)
    return True


def reached(starts: Iterable[Any], onward: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """These, and what each leads on to, once, in any order."""
    todo, seen = [*starts], set[Any]()
    while todo:
        x = todo.pop()
        if x not in seen:
            seen.add(x)
            yield x
            todo += onward(x)


@dataclasses.dataclass(frozen=True)
class _Inlining:
    """Calls done where they stand, and loops that JAX itself unrolls. ``apart``: behind barriers, where checkpoints want them;
    ``stacked``: what steps have made, by the array's number, with the array, so that no other has it."""

    rewrite: Rewrite
    calls: Collection[str]
    apart: bool
    stacked: dict[int, tuple[Any, Sequence[Any]]] = dataclasses.field(default_factory=dict)

    def of(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        return interpret(jaxpr, consts, args, self._equation)

    def _equation(self, eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        inner = called(eqn) if eqn.primitive.name in self.calls else None
        if inner is not None:
            return self.of(*inner, _apart(eqn, operands) if self.apart else operands)
        if _is_unrolled(eqn):
            return self._steps(eqn, operands)
        instead = self.rewrite(eqn)
        if instead is None:
            return run_equation(eqn, operands)
        traced = {k: x for k, x in enumerate(operands) if isinstance(x, jax.core.Tracer)}  # other numbers stay known
        closed = jax.make_jaxpr(lambda xs: instead(*(xs.get(k, x) for k, x in enumerate(operands))))(traced)
        plain = dataclasses.replace(self, rewrite=lambda eqn: None)
        return plain.of(closed.jaxpr, closed.consts, list(traced.values()))

    def _steps(self, eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        body, captured = opened(eqn.params["jaxpr"])
        (count, carried), steps = scan_counts(eqn), range(eqn.params["length"])
        consts, carry, rows = operands[:count], operands[count : count + carried], operands[count + carried :]
        parts = [self._parts(x) for x in rows]
        made: list[dict[int, Any]] = [{} for _ in eqn.outvars[carried:]]
        for k in reversed(steps) if eqn.params["reverse"] else steps:
            out = self.of(body, captured, [*consts, *carry, *(p[k] for p in parts)])
            carry = out[:carried]
            for mine, x in zip(made, out[carried:], strict=True):
                mine[k] = x
        ordered = [[mine[k] for k in steps] for mine in made]
        together = [jnp.stack(mine) for mine in ordered]
        self.stacked.update((id(x), (x, mine)) for x, mine in zip(together, ordered, strict=True))
        return [*carry, *together]

    def _parts(self, x: Any) -> Sequence[Any]:
        """What each step takes of an array; of one that steps have made, as it was."""
        known = self.stacked.get(id(x))
        return [lax.index_in_dim(x, k, keepdims=False) for k in range(x.shape[0])] if known is None else known[1]


MOST_UNROLLED = 256
"""Equations, of all steps of a loop."""


def _is_unrolled(eqn: JaxprEqn) -> bool:
    """Does JAX make no loop of it, as of a polynomial's coefficients, but all steps in turn?"""
    if eqn.primitive.name != "scan" or eqn.effects or not isinstance(eqn.params["length"], int):
        return False
    steps = eqn.params["length"] * sum(1 for _ in equations_in(opened(eqn.params["jaxpr"])[0]))
    return 0 < eqn.params["length"] <= int(eqn.params["unroll"]) and steps <= MOST_UNROLLED


def _apart(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """A call's operands; of a checkpoint that makes again what was made before, behind a barrier, as JAX itself has it: it is not
    to be shared."""
    which = eqn.params.get("prevent_cse") if eqn.params.get("differentiated") else None
    behind = [k for k in range(len(operands)) if which and (which is True or which[k])]
    if not behind:
        return operands
    again = dict(zip(behind, lax.optimization_barrier([operands[k] for k in behind]), strict=True))
    return [again.get(k, x) for k, x in enumerate(operands)]


def _shared(jaxpr: Jaxpr) -> Jaxpr:
    """Equations that are there twice, once; but for what is behind barriers."""
    same: dict[Var, Var] = {}
    known: dict[Any, JaxprEqn] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=[v if isinstance(v, Literal) else same.get(v, v) for v in eqn.invars])
        atoms = tuple((str(v.aval), repr(v.val)) if isinstance(v, Literal) else v for v in eqn.invars)
        try:
            key = eqn.primitive, atoms, tuple(sorted(eqn.params.items()))
            alone = eqn.effects or not eqn.outvars or eqn.primitive.name == "optimization_barrier"
            first = eqn if alone else known.setdefault(key, eqn)
        except TypeError:  # parameters without a hash or an order
            first = eqn
        if first is eqn:
            eqns.append(eqn)
        else:
            same.update(zip(eqn.outvars, first.outvars, strict=True))
    return jaxpr.replace(eqns=eqns, outvars=[v if isinstance(v, Literal) else same.get(v, v) for v in jaxpr.outvars])
