"""A graph rewritten: which sites share a kernel, what their bodies take in, and the program that calls them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from ..primitives.held import argument, held, table
from ..tracing.jaxprs import run_equation, run_in, value_of, variables
from ..tracing.labels import NUMBER_BY_NUMBER
from . import loops
from .agreed import (
    WHY,
    arguments_to_be_held,
    disagreeing,
    has_its_own_way,
    made_apart,
    made_to_be_compared,
    read_in_any_case,
    to_be_held,
)
from .as_made import along_rows, of_sorted, scanned_as_made
from .body import Body
from .chains import chained
from .compared import Compared, compared
from .cut import CACHE, IN_CACHE, MEMORY, ByteAt
from .epilogues import finished
from .exact_loops import title
from .graph import Graph, needs_itself
from .kernels import Kernel, kernel_from, kernel_of, with_stencil
from .maps import find_maps, is_worth_one
from .pays import is_held, why_no_rows, why_not
from .priced import SAVED, bytes_around, price
from .products import as_matrices
from .rows import find_rows, leaves_short_ones
from .sites import MOST_OWN, Site, find_sites, small_reductions
from .stencils.pays import folds, why_no_stencil
from .stencils.sites import find_stencils
from .stencils.stencil import Root, Seen, Stencil
from .written import made_once, read_of

_MOVES = frozenset("slice concatenate pad rev split scatter dynamic_slice dynamic_update_slice conv_general_dilated".split()) | {
    f"reduce_window_{how}" for how in ("sum", "max", "min")
}


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
    """A function with its sites in kernels; why the others are not, by equation. ``chains``: of kernels, in words. ``held``: is
    an argument to be, if any is? ``multiplies``: has it matrices that were not written as such?"""

    closed: ClosedJaxpr
    kernels: tuple[Kernel, ...]
    left: tuple[tuple[str, str], ...]
    chains: tuple[str, ...] = ()
    held: tuple[bool, ...] = ()
    multiplies: bool = False

    def as_it_stands(self, *args: Any) -> list[Any]:
        """Called where it is seen what made the arguments."""
        given = [argument(x) if held else x for x, held in zip(args, self.held, strict=True)] if self.held else args
        return jaxpr_as_fun(self.closed)(*given)

    def in_words(self) -> list[str]:
        """A line for each kernel, and for each site that XLA does."""
        lines = [k.in_words() for k in self.kernels] + list(self.chains)
        return lines + [f"{what}: left to XLA: {why}" for what, why in self.left]


def rewritten(graph: Graph) -> Rewritten:
    plan, kernels = _cheapest(graph)
    by_xla = _beside(graph, kernels)
    once: dict[Any, Any] = dict.fromkeys(made_once(graph, {v for k in kernels for v in k.inputs}, by_xla), lambda x: table(x, 2))
    once |= dict.fromkeys(to_be_held(graph, plan.compared, kernels, by_xla), lambda x: held([x])[0])
    of_arguments = set(arguments_to_be_held(graph, plan.compared, kernels, by_xla))
    args = graph.jaxpr.invars
    called: list[Kernel] = []
    products = {k: product for k in by_xla if (product := as_matrices(graph, graph.eqns[k])) is not None}
    closed = jax.make_jaxpr(lambda *xs: _run(graph, kernels, xs, called, once, products))(*(v.aval for v in args))
    kernels = [k for k in kernels if k in called]  # others take in what some are for
    closed, chains = (closed, []) if graph.with_rules else chained(closed)
    done = {index for k in kernels for index in k.inside}
    left = tuple((_title(graph.eqns[k]), why) for k, why in sorted(plan.left.items()) if k not in done)
    holds = tuple(v in of_arguments for v in args) if of_arguments else ()
    return Rewritten(closed, tuple(kernels), left, chains=tuple(chains), held=holds, multiplies=bool(products))


def _cheapest(graph: Graph) -> tuple[_Plan, list[Kernel]]:
    """What is planned as if all arrays lay in memory, and others made for themselves what they want of short rows; as if these
    were written for them, if XLA is left with some; or, if all arrays fit into a core's cache, as if they lay there, where that
    saves something."""
    plan = _Plan(graph, compared=compared(graph))
    kernels = _planned(plan)

    def cost(kernels: Sequence[Kernel]) -> float:
        return price(graph, kernels, _beside(graph, kernels))

    if bytes_around(graph) < math.inf and leaves_short_ones(graph, _beside(graph, kernels)):
        written = _Plan(graph, compared=plan.compared, written=True)
        others = _planned(written)
        if others and cost(others) < cost(kernels):
            plan, kernels = written, others
    if not kernels or bytes_around(graph) > IN_CACHE:
        return plan, kernels
    near = _Plan(graph, compared=plan.compared, made=plan.made, seen=plan.seen, byte=CACHE, written=plan.written)
    others = _planned(near)
    return (near, others) if cost(others) < SAVED * cost(kernels) else (plan, kernels)


def _planned(plan: _Plan) -> list[Kernel]:
    graph = plan.graph
    rows = plan.rows()
    plan.find_moved()
    kernels = rows + [k if graph.with_rules or _is_compared(plan, k) else _with_stencil(plan, k) for k in plan.kernels()]
    kernels += [k for k in plan.stencils(kernels) if not (_compares_in_its_own_way(plan, k) or _is_searched(plan, k))]
    kernels += plan.maps(kernels)
    if not graph.with_rules:
        for n, kernel in enumerate(kernels):  # what one has taken is not for the next
            more = kernel if _is_compared(plan, kernel) else _finished(graph, kernel, kernels)
            if more is not kernel and _can_be_run(graph, more, [*kernels[:n], *kernels[n + 1 :]]):
                kernels[n] = more
    while bad := disagreeing(graph, plan.compared, kernels, _beside(graph, kernels)):
        plan.left.update((s.index, WHY) for k in bad for s in k.body.sites)
        kernels = [k for k in kernels if k not in bad]
    return kernels


def _title(eqn: Any) -> str:
    return f"{title(eqn)} of {eqn.invars[0].aval.str_short(short_dtypes=True)}"


@dataclasses.dataclass
class _Plan:
    """Which sites are kernels. ``left``: why an equation's site is none; ``moved``: what other kernels make for sites, of
    stencils or rows; ``of_rows``: the sites of those of rows; ``inside``: what is in them; ``seen``: cells of stencils; ``byte``:
    what one takes; ``written``: is what others want of short rows?"""

    graph: Graph
    moved: frozenset[Var] = frozenset()
    of_rows: tuple[Sequence[Any], ...] = ()
    inside: frozenset[int] = frozenset()
    left: dict[int, str] = dataclasses.field(default_factory=dict)
    bodies: dict[Any, Body] = dataclasses.field(default_factory=dict)
    compared: Sequence[Compared] = ()
    made: dict[Any, Kernel | str] = dataclasses.field(default_factory=dict)
    seen: Seen = dataclasses.field(default_factory=Seen)
    byte: ByteAt = MEMORY
    written: bool = False

    def rows(self) -> list[Kernel]:
        """Functions of rows, before any other site: what they make is given to these."""
        if self.graph.with_rules:
            return []
        kernels: list[Kernel] = []
        groups = find_rows(self.graph, self.compared, self.written)
        for sites in groups:
            roots = {s.eqn.outvars[0] for s in sites}
            others = (s.eqn.outvars[0] for group in groups for s in group if group[0].sizes == sites[0].sizes)
            self.moved = frozenset(others) - roots
            body, made_here = self._body(sites), {s.index for s in sites}
            (read,) = _cuts(self.graph, [body], self.byte)
            body = self._body(sites, read | made_apart(self.graph, self.compared, body.inside, made_here))
            why = why_no_rows(body)
            kernel: Kernel | str = why or self._kernel(body)
            if isinstance(kernel, Kernel) and _can_be_run(self.graph, kernel, kernels):
                kernels.append(kernel)
        self.of_rows = tuple(k.body.sites for k in kernels)
        self.moved = frozenset(v for k in kernels for v in k.results)
        self.inside = frozenset(t for k in kernels for t in k.body.taken)
        return kernels

    def kernels(self) -> list[Kernel]:
        sites = self._sites()
        tried: set[int] = set()
        while True:
            kernels = self._of(self._merged(sites))
            more = self._small_reductions([k.body for k in kernels if isinstance(k.body, Body)], tried)
            if more is None:
                return kernels
            inside = [s for k in kernels if isinstance(k.body, Body) for s in k.body.sites]
            sites = sorted([*inside, *more], key=lambda s: s.index)

    def find_moved(self) -> None:
        """What sites combine that XLA would write shifted arrays for: a stencil makes it, and is read."""
        wanted, inside, others = set[Any](), set[int](), set[Any]()
        for site in self._sites():
            if site.kept and math.prod(site.sizes[site.kept :]) <= MOST_OWN:
                continue  # for each element a few numbers, which another kernel may take in
            body = self._body([site])
            moved = [var for var, _ in body.streamed if self.graph.name_of(var) in _MOVES]
            bits = sum(1 << self.graph.producer[var] for var in dict.fromkeys(moved))
            if moved:
                made = {_unwrapped(self.graph, var) for var, _ in site.roots if self.graph.needs([var]) & bits}
                wanted |= made
                others |= made if site.family != "reduce" or site.lanes else set()
                inside |= body.taken | {site.index}
        if wanted:

            def why(s: Stencil) -> str | None:
                return why_no_stencil(s, inside, s.sites[0].eqn.outvars[0] not in others and folds(s, inside))

            found, _ = find_stencils(self.graph, range(len(self.graph.eqns)), wanted, why, self.seen)
            roots = {s.sites[0].eqn.outvars[0] for s in found}
            self.moved |= roots & wanted

    def stencils(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Among what these kernels leave."""
        wanted = [*self.graph.jaxpr.outvars, *(v for k in kernels for v in k.inputs)]
        outside = _beside(self.graph, kernels)
        found, left = find_stencils(self.graph, outside, wanted, lambda s: self._why_no_stencil(s, outside), self.seen)
        made = [kernel_from(s, s.leaves, s.run) for s in found]
        self.left.update((s.sites[0].index, m) for s, m in zip(found, made, strict=True) if isinstance(m, str))
        self.left.update((k, why) for k, why in left.items() if k not in self.left)
        return [m for m in made if isinstance(m, Kernel)]

    def maps(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Among what these kernels leave, until nothing is left: a body may hold less than a whole function. GPUs have vectors of
        every function in XLA's loops."""
        out: list[Kernel] = []
        if not self.graph.with_rules and jax.default_backend() == "cpu":
            while more := self._maps([*kernels, *out]):
                out += more
        return out

    def _maps(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        reads, given = _reads(kernels), {v for k in kernels for v in k.results}
        by_xla = self.graph.evaluated(reads)
        free = by_xla - made_to_be_compared(self.graph, self.compared, by_xla)
        groups = find_maps(self.graph, free, by_xla, given, {v for k in kernels for v in k.inputs})
        bodies = [Body(self.graph, sites, (), given) for sites in groups]
        cuts = read_of(self.graph, bodies, self.graph.evaluated({**reads, **_reads_of(bodies)}), self.byte)
        out: list[Kernel] = []
        for body in (Body(self.graph, g, cut, given) for g, cut in zip(groups, cuts, strict=True)):
            kernel = self._kernel(body) if is_worth_one(body) else None
            if isinstance(kernel, Kernel) and _can_be_run(self.graph, kernel, [*kernels, *out]):
                out.append(kernel)
        return out

    def _why_no_stencil(self, stencil: Stencil, by_xla: Collection[int]) -> str | None:
        made = any(s.eqn.outvars[0] in self.moved for s in stencil.sites)
        return why_no_stencil(stencil, range(len(self.graph.eqns)) if made else (), False, by_xla)

    def _sites(self) -> list[Site]:
        """But for those that are in functions of rows."""
        return [s for s in find_sites(self.graph) if s.index not in self.inside]

    def _of(self, groups: Sequence[Sequence[Site]]) -> list[Kernel]:
        """Those of these groups that are faster than XLA, and can be expressed."""
        while True:
            bodies = self._with_cuts(groups)
            slower = [why_not(b) for b in bodies]
            if any(slower):
                certain = [why and why_not(self._body(g)) for g, why in zip(groups, slower, strict=True)]
                if any(certain):  # what would read that which only these would have written is looked at once more
                    apart = {s.eqn.outvars[0] for g, c in zip(groups, certain, strict=True) if c for s in g}
                    again = [g[0].lanes or apart.intersection(b.cut) for g, b in zip(groups, bodies, strict=True)]
                    slower = [None if a and not c else w for w, c, a in zip(slower, certain, again, strict=True)]
                for b, why in zip(bodies, slower, strict=True):
                    self.left.update((s.index, why) for s in b.sites if why)
                groups = [g for g, why in zip(groups, slower, strict=True) if not why]
                continue
            found = self._without_cycles([self._kernel(b) for b in bodies])
            if all(isinstance(k, Kernel) for k in found):
                return [k for k in found if isinstance(k, Kernel)]
            remaining: list[Sequence[Site]] = []
            for group, k in zip(groups, found, strict=True):
                if isinstance(k, Kernel):
                    remaining.append(group)
                elif len(group) > 1:  # not together: each by itself
                    remaining += [[s] for s in group]
                else:
                    self.left[group[0].index] = k
            groups = remaining

    def _without_cycles(self, found: Sequence[Kernel | str]) -> list[Kernel | str]:
        """But why not, where what one reads is made of its own results, as its parts' is not."""
        made = [k for k in found if isinstance(k, Kernel)]
        bad = [k for k in made if not _can_be_run(self.graph, k, [o for o in made if o is not k])]
        return ["it would need itself" if k in bad else k for k in found]

    def _with_cuts(self, groups: Sequence[Sequence[Site]]) -> list[Body]:
        """The bodies of these sites, with what they are to read."""
        bodies = [self._body(g) for g in groups]
        cuts = _cuts(self.graph, bodies, self.byte)
        apart = [frozenset(v for v in cut if self.graph.producer[v] in b.repeated) for b, cut in zip(bodies, cuts, strict=True)]
        if any(apart):  # what was made for these, too, costs less
            bodies = [self._body(g, read) for g, read in zip(groups, apart, strict=True)]
            cuts = [read | more for read, more in zip(apart, _cuts(self.graph, bodies, self.byte), strict=True)]
        while True:
            bodies = [self._body(g, cut) for g, cut in zip(groups, cuts, strict=True)]
            alike = read_in_any_case(self.graph, self.compared, bodies, self.graph.evaluated(_reads_of(bodies)))
            more = [alike | along_rows(b) | scanned_as_made(b) | of_sorted(b) for b in bodies]
            if all(mine <= cut for mine, cut in zip(more, cuts, strict=True)):
                return bodies
            cuts = [cut | mine for cut, mine in zip(cuts, more, strict=True)]

    def _small_reductions(self, bodies: Sequence[Body], tried: set[int]) -> list[Site] | None:
        """The last one outside of kernels that is worth one, and has not been tried; with it all that reduce the same, since of
        a maximum alone, beside its position, it would be XLA that makes for that what they have in common."""
        outside = sorted(self.graph.evaluated(_reads_of(bodies)), reverse=True)
        for index in (k for k in outside if k not in tried):
            tried.add(index)
            worth = list(filter(self._is_worth_one, small_reductions(index, self.graph.eqns[index])))
            if worth:
                site = min(worth, key=lambda s: self._body([s]).has_pairs)
                others = [k for k in outside if k != index and self.graph.eqns[k].invars[:1] == site.eqn.invars[:1]]
                return [site, *(s for k in others for s in self._small(k, site))]
        return None

    def _small(self, index: int, like: Site) -> Iterator[Site]:
        alike = (s for s in small_reductions(index, self.graph.eqns[index]) if s.form == like.form)
        return filter(self._is_worth_one, alike)

    def _is_worth_one(self, site: Site) -> bool:
        body = self._body([site])
        return why_not(body) is None and isinstance(self._kernel(body), Kernel)

    def _body(self, sites: Sequence[Site], cut: frozenset[Var] = frozenset()) -> Body:
        key = tuple((s.index, s.family, s.sizes) for s in sites), cut, self.moved
        if key not in self.bodies:
            self.bodies[key] = Body(self.graph, sites, cut, self.moved)
        return self.bodies[key]

    def _kernel(self, body: Body) -> Kernel | str:
        key = tuple((s.index, s.family, s.sizes) for s in body.sites), frozenset(body.taken), tuple(body.leaves)
        if key not in self.made:
            self.made[key] = kernel_of(body)
        return self.made[key]

    def _merged(self, sites: Sequence[Site]) -> list[Sequence[Site]]:
        groups: list[Any] = []
        leaves: list[set[Any]] = []
        rows = list(self.of_rows)
        for site in sites:
            body = self._body([site])
            mine = set(body.streamed or body.leaves)
            for group, theirs in zip(groups, leaves, strict=True):
                together, alike = [*group, site], group[0].form == site.form and mine & theirs
                if alike and _independent(self.graph, together, groups + rows, group) and is_held(self._body(together)):
                    group.append(site)
                    theirs |= mine
                    break
            else:
                groups.append([site])
                leaves.append(mine)
        return groups


def _finished(graph: Graph, kernel: Kernel, kernels: Sequence[Kernel]) -> Kernel:
    """With what is elementwise of its results, if it is of scans."""
    if not isinstance(kernel.body, Body) or kernel.body.sites[0].family != "scan":
        return kernel
    others = {v for k in kernels if k is not kernel for v in k.inputs}
    body = finished(kernel.body, _beside(graph, kernels), others)
    made = kernel if body is None else kernel_from(body, body.leaves, body.run)
    return made if isinstance(made, Kernel) else kernel


def _is_compared(plan: _Plan, kernel: Kernel) -> bool:
    """Does it combine what is compared with its result elsewhere? That is to be the same, and so has to be written, where not
    everybody makes the same of it."""
    mine, every = kernel.made, range(len(plan.graph.eqns))
    return any(k in mine and has_its_own_way(plan.graph, var, every) for var, k, *_ in plan.compared)


def _with_stencil(plan: _Plan, kernel: Kernel) -> Kernel:
    of_rows = {s.eqn.outvars[0] for sites in plan.of_rows for s in sites}
    made = kernel if of_rows & set(kernel.inputs) else with_stencil(kernel)
    return kernel if made is not kernel and _compares_in_its_own_way(plan, made) else made


def _compares_in_its_own_way(plan: _Plan, kernel: Kernel) -> bool:
    """Does it make anew what it compares with an extreme of what somebody else makes?"""
    inside = kernel.body.taken
    apart = (var for var, k, compares, _ in plan.compared if compares in inside and k not in inside)
    return any(has_its_own_way(plan.graph, var, inside) for var in apart)


def _is_searched(plan: _Plan, kernel: Kernel) -> bool:
    """Does it make in its own way what others look for an extreme in? The place of that is XLA's, of many that are nearly as
    great."""
    inside = kernel.inside
    apart = (c.var for c in plan.compared if plan.graph.producer.get(c.var) in inside and not {c.extreme, c.compares} <= inside)
    return any(has_its_own_way(plan.graph, var, inside) for var in apart)


def _unwrapped(graph: Graph, var: Any) -> Any:
    """What an elementwise function of one array is of: the last single array that all of it is computed from."""
    last, todo = var, {var}
    while todo:
        at = max(graph.producer.get(v, -1) for v in todo)
        eqn = None if at < 0 else graph.eqns[at]
        if eqn is None or eqn.primitive.name not in NUMBER_BY_NUMBER or len(eqn.outvars) != 1:
            break
        todo -= set(eqn.outvars)
        todo |= {v for v in variables(eqn.invars) if v.aval.ndim}
        if len(todo) == 1:
            (one,) = todo
            last = one if one.aval.size == var.aval.size else last
    return last


# --- what depends on what -------------------------------------------------------------------------------------------------------


def _independent(graph: Graph, merged: Sequence[Site], groups: Sequence[Sequence[Site]], old: Sequence[Site]) -> bool:
    """Does no site of a kernel need another's result, by way of other kernels either?"""

    def needs(sites: Sequence[Site]) -> int:
        return graph.needs([v for s in sites for v in s.eqn.invars])

    return not needs_itself(_bits(merged), needs(merged), (g for g in groups if g is not old), _bits, needs)


def _can_be_run(graph: Graph, kernel: Kernel, others: Sequence[Kernel]) -> bool:
    """Does it not need its own results, by way of others either?"""

    def needs(k: Kernel) -> int:
        return graph.needs(k.inputs)

    return not needs_itself(_bits(kernel.body.sites), needs(kernel), others, lambda k: _bits(k.body.sites), needs)


def _bits(sites: Sequence[Site | Root]) -> int:
    return sum(1 << s.index for s in sites)


# --- what is evaluated outside of kernels ---------------------------------------------------------------------------------------


def _cuts(graph: Graph, bodies: Sequence[Body], byte: ByteAt) -> list[frozenset[Var]]:
    """Of each body, what it is to read, though it could compute it."""
    return read_of(graph, bodies, graph.evaluated(_reads_of(bodies)), byte)


def _beside(graph: Graph, kernels: Sequence[Kernel]) -> set[int]:
    """The equations that XLA evaluates beside these kernels."""
    return graph.evaluated(_reads(kernels))


def _reads(kernels: Sequence[Kernel]) -> dict[int, Sequence[Any]]:
    """By the equation of each site, what its kernel reads."""
    return {index: k.inputs for k in kernels for index in k.made}


def _reads_of(bodies: Sequence[Body]) -> dict[int, Sequence[Any]]:
    """The same of kernels that are to be made of these."""
    return {s.index: [*(v for v, _ in b.leaves), *loops.targets(b)] for b in bodies for s in b.sites}


# --- the program ----------------------------------------------------------------------------------------------------------------


def _run(
    graph: Graph, kernels: Sequence[Kernel], args: Sequence[Any], called: list[Kernel], once: Mapping[Var, Callable[[Any], Any]],
    products: Mapping[int, Callable[[Mapping[Any, Any]], Any]],
) -> list[Any]:  # fmt: skip
    """The graph's results, each kernel ``called`` where its first result is wanted. ``once``: what XLA does not make again, and
    how that is said. ``products``: equations that are made otherwise, of what is known."""
    within = {index: k for k in kernels for index in k.made}
    env: dict[Any, Any] = dict(zip((*graph.jaxpr.constvars, *graph.jaxpr.invars), (*graph.consts, *args), strict=True))

    def make(wanted: Sequence[Any]) -> None:
        todo, begun = variables(reversed(wanted)), set[Any]()
        while todo:
            v = todo[-1]
            if v in env:
                todo.pop()
                continue
            index = graph.producer[v]
            kernel = within.get(index)
            inputs = graph.eqns[index].invars if kernel is None else kernel.inputs
            missing = [x for x in variables(inputs) if x not in env]
            if missing and v in begun:
                raise RuntimeError("kernels that need each other")
            if missing:
                begun.add(v)
                todo += reversed(missing)
            elif kernel is None:
                eqn = graph.eqns[index]
                product = products[index](env) if index in products else None
                results = run_equation(eqn, [value_of(x, env) for x in eqn.invars]) if product is None else [product]
                env.update((v, once[v](r) if v in once else r) for v, r in zip(eqn.outvars, results, strict=True))
            else:
                called.append(kernel)
                results = jaxpr_as_fun(kernel.call)(*(env[x] for x in kernel.inputs))
                env.update(zip(kernel.results, results, strict=True))

    for eqn in graph.eqns:
        if eqn.effects:
            make(eqn.invars)
            run_in(env, eqn)
    make(graph.jaxpr.outvars)
    return [value_of(v, env) for v in graph.jaxpr.outvars]
