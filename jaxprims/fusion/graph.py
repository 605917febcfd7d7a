"""A traced function as a flat graph of equations: every call in it inlined, what nobody needs left out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..tracing.jaxprs import CALLS, CHECKPOINTS, RULES, called, interpret, pruned, run_equation, value_of, variables
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
    inlined = jax.make_jaxpr(lambda *xs: _inlined(closed.jaxpr, closed.consts, xs, rewrite, calls, barriers))(
        *(v.aval for v in closed.jaxpr.invars)
    )
    jaxpr = by_result(as_calls(pruned(_shared(inlined.jaxpr))))
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


def with_equations(graph: Graph, equation: Equation) -> ClosedJaxpr:
    """The function with each of its equations done so."""

    def function(*args: Any) -> list[Any]:
        known: dict[Var, Any] = dict(zip((*graph.jaxpr.constvars, *graph.jaxpr.invars), (*graph.consts, *args), strict=True))
        value = functools.partial(value_of, known=known)

        def one(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
            known.update((v, x) for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, Literal))
            out = equation(eqn, operands, value)
            known.update(zip(eqn.outvars, out, strict=True))
            return out

        return interpret(graph.jaxpr, graph.consts, args, one)

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


def _inlined(
    jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], rewrite: Rewrite, calls: Collection[str], apart: bool
) -> list[Any]:
    def equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        inner = called(eqn) if eqn.primitive.name in calls else None
        if inner is not None:
            return _inlined(*inner, _apart(eqn, operands) if apart else operands, rewrite, calls, apart)
        instead = rewrite(eqn)
        if instead is None:
            return run_equation(eqn, operands)
        traced = {k: x for k, x in enumerate(operands) if isinstance(x, jax.core.Tracer)}  # other numbers stay known
        closed = jax.make_jaxpr(lambda xs: instead(*(xs.get(k, x) for k, x in enumerate(operands))))(traced)
        return _inlined(closed.jaxpr, closed.consts, list(traced.values()), lambda eqn: None, calls, apart)

    return interpret(jaxpr, consts, args, equation)


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
