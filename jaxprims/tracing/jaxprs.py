"""Reading jaxprs of every supported JAX version: open ones, closed ones, and those that are parameters of calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, jaxprs_in_params
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .varying import under_no_mesh

VJPS = frozenset({"custom_vjp_call", "custom_vjp_call_jaxpr"})
"""Calls with a rule for reverse mode alone."""

RULES = VJPS | {"custom_jvp_call", "read_by_index"}
"""Calls with differentiation rules of their own."""

CHECKPOINTS = frozenset({"remat", "remat2", "checkpoint", "call_hi_primitive"})
"""Calls whose derivatives make again what is in them."""

CALLS = RULES | CHECKPOINTS | frozenset({"jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr"})
"""Primitives that only evaluate a jaxpr."""

_TYPES_ALONE = frozenset({"pvary", "pcast", "reshard", "mesh_cast", "sharding_constraint"})
"""Primitives that only say where on a mesh an array is, or over which axes it varies."""

IDENTITIES = _TYPES_ALONE | {"copy", "copy_p", "stop_gradient", "optimization_barrier", "name", "stage", "device_put", "held"}
"""Primitives that give their operands."""

REDUCED_BY = {"reduce_sum": "add", "reduce_prod": "mul"} | {f"reduce_{how}": how for how in ("max", "min", "and", "or", "xor")}
"""The operation by which a primitive combines all that lies along some axes."""

EARLY: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
"""``jax.jit(inline=EARLY)``: equations in the jaxpr around, where what makes their operands is to be seen."""


expansions: dict[str, Callable[..., Sequence[Any]]] = {}
"""What calls without a jaxpr evaluate, as a function of their operands and parameters."""


@functools.cache
def scatters(*ops: str) -> frozenset[str]:
    """The primitives that update by index so, as older and newer JAX call them."""
    return frozenset(f"scatter{dash}{op}" for dash in "-_" for op in ops)


def opened(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """A jaxpr without its captured arrays, and these."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", None) or ())


def has_rules(jaxpr: Jaxpr) -> bool:
    """Has anything in it a rule of its own for derivatives?"""
    return any(eqn.primitive.name in RULES for eqn in equations_in(jaxpr))


def variables(atoms: Iterable[Any]) -> list[Var]:
    """Those that are no numbers."""
    return [v for v in atoms if not isinstance(v, Literal)]


def value_of(atom: Any, known: Mapping[Any, Any]) -> Any:
    """A variable's value among those known; a number's own."""
    return atom.val if isinstance(atom, Literal) else known[atom]


def structs(variables: Iterable[Any]) -> list[jax.ShapeDtypeStruct]:
    """What these are, wherever they lie."""
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]


def with_arguments(jaxpr: Jaxpr, constvars: Sequence[Var], invars: Sequence[Var]) -> Jaxpr:
    """The jaxpr with these of its variables as captured arrays and as arguments."""
    return assembled(constvars, invars, jaxpr.outvars, jaxpr.eqns)


def capturing(jaxpr: Jaxpr, n: int) -> Jaxpr:
    """The jaxpr with its first n arguments as captured arrays."""
    return with_arguments(jaxpr, jaxpr.invars[:n], jaxpr.invars[n:])


def assembled(constvars: Sequence[Var], invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn]) -> Jaxpr:
    """A jaxpr of these."""
    info = DebugInfo("jaxprims", "element", ("",) * len(invars), ("",) * len(outvars))
    effects = frozenset().union(*(e.effects for e in eqns))
    mine = Jaxpr(list(constvars), list(invars), list(outvars), list(eqns), effects, info)
    # newer JAX: a jaxpr holds its captured arrays, here their shapes and dtypes
    return ClosedJaxpr(mine, structs(constvars)).jaxpr


def run_equation(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """What an equation makes of these operands."""
    values = {v: x for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, Literal)}
    return list(jaxpr_as_fun(ClosedJaxpr(assembled([], list(values), eqn.outvars, [eqn]), []))(*values.values()))


def run_in(known: dict[Any, Any], eqn: JaxprEqn) -> None:
    """Adds what an equation makes to the values known."""
    known.update(zip(eqn.outvars, run_equation(eqn, [value_of(v, known) for v in eqn.invars]), strict=True))


def interpret(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    equation: Callable[..., Sequence[Any]],
    literal: Callable[[Literal], Any] = lambda atom: atom.val,
) -> list[Any]:
    """What a jaxpr returns, where ``equation(eqn, operands)`` does its equations, and ``literal`` says what a number is."""
    env: dict[Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def value(atom: Any) -> Any:
        return literal(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, equation(eqn, [value(v) for v in eqn.invars]), strict=True))
    return [value(v) for v in jaxpr.outvars]


def pruned(jaxpr: Jaxpr) -> Jaxpr:
    """Without equations that nothing needs."""
    wanted = set(variables(jaxpr.outvars))
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if wanted.intersection(eqn.outvars) or eqn.effects:
            kept.append(eqn)
            wanted.update(variables(eqn.invars))
    return jaxpr.replace(eqns=kept[::-1])


def looked(jaxpr: Jaxpr) -> set[Any]:
    """The variables that equations or results use."""
    return {v for atoms in (jaxpr.outvars, *(eqn.invars for eqn in jaxpr.eqns)) for v in variables(atoms)}


def depending_on(jaxpr: Jaxpr, some: Iterable[Var]) -> set[Var]:
    """These variables and all that is computed from them."""
    out = set(some)
    for eqn in jaxpr.eqns:
        if any(v in out for v in variables(eqn.invars)):
            out.update(eqn.outvars)
    return out


def called(eqn: JaxprEqn) -> tuple[Jaxpr, Sequence[Any]] | None:
    """The jaxpr that an equation of :data:`CALLS` evaluates, opened; None if it is not to be found."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in eqn.params:
            return opened(eqn.params[name])
    primitive = eqn.params.get("_prim")  # newer JAX: an object that expands into ordinary primitives
    if primitive is not None:
        expanded: Callable[..., Any] = lambda *xs: primitive.expand(*primitive.in_tree.unflatten(xs))  # noqa: E731
    elif eqn.primitive.name in expansions:
        expanded = functools.partial(expansions[eqn.primitive.name], **eqn.params)
    else:
        return None
    return opened(jax.make_jaxpr(expanded)(*structs(eqn.invars)))


def equations_in(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Its equations, each before those of the functions among its parameters."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations_in(inner)


def without_mesh(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr as if no mesh had been in use when it was traced: what a function does to elements does not depend on how arrays
    of them are sharded, nor on the axes over which they vary."""
    meshes = [*(v.aval.sharding.mesh for v in (*jaxpr.invars, *jaxpr.constvars)), *(e.ctx.cur_abstract_mesh for e in jaxpr.eqns)]
    if all(m.empty for m in meshes):
        return jaxpr
    with under_no_mesh():
        return _retyped(jaxpr, jax.make_jaxpr(jax.lax.neg)(0.0).eqns[0].ctx)


def _retyped(jaxpr: Jaxpr, context: Any) -> Jaxpr:
    known: dict[Var, Any] = {}

    def typed(v: Any) -> Any:
        if not isinstance(v, Var):
            return v
        if v not in known:
            alone = NamedSharding(context.cur_abstract_mesh, P(*[None] * len(v.aval.shape)))
            known[v] = Var(jax.core.ShapedArray(v.aval.shape, v.aval.dtype, v.aval.weak_type, sharding=alone))
        return known[v]

    def inside(param: Any) -> Any:
        if isinstance(param, NamedSharding):
            return None
        if isinstance(param, ClosedJaxpr):
            return ClosedJaxpr(_retyped(param.jaxpr, context), param.consts)
        if isinstance(param, Jaxpr):
            return _retyped(param, context)
        several = isinstance(param, tuple) and any(isinstance(p, (Jaxpr, ClosedJaxpr)) for p in param)
        return tuple(map(inside, param)) if several else param

    constvars, invars = [*map(typed, jaxpr.constvars)], [*map(typed, jaxpr.invars)]
    eqns = []
    for eqn in jaxpr.eqns:
        operands = [*map(typed, eqn.invars)]
        if eqn.primitive.name in _TYPES_ALONE:
            known.update(zip(eqn.outvars, operands, strict=True))
            continue
        params = {name: inside(param) for name, param in eqn.params.items()}
        eqns.append(eqn.replace(invars=operands, outvars=[*map(typed, eqn.outvars)], params=params, ctx=context))
    return assembled(constvars, invars, [*map(typed, jaxpr.outvars)], eqns)


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)
