"""Arrays that f captures and reads one row at a time: f with something else for these rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from ..tracing.jaxprs import interpret, run_equation


def read_by_rows(jaxpr: Jaxpr, k: int) -> bool:
    """Is captured array k only ever read by whole rows, those of its first axis, each at an index that is brought into range?"""
    table = jaxpr.constvars[k]
    uses = [eqn for eqn in jaxpr.eqns if table in _variables(eqn.invars)]
    return bool(uses) and table not in _variables(jaxpr.outvars) and all(_is_row(eqn, table) for eqn in uses)


def with_rows(
    jaxpr: Jaxpr, captured: Mapping[int, Any], rows: Mapping[int, Callable[[Any], Any]], args: Sequence[Any]
) -> list[Any]:
    """What a jaxpr returns. ``captured``: what it captures, by number; ``rows``: of the others each row by its index."""
    made = {jaxpr.constvars[k]: row for k, row in rows.items()}

    def equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        row = made.get(eqn.invars[0]) if eqn.primitive.name == "dynamic_slice" else None
        return run_equation(eqn, operands) if row is None else [row(operands[1])[None]]

    return interpret(jaxpr, [captured.get(k) for k in range(len(jaxpr.constvars))], args, equation)


def _is_row(eqn: JaxprEqn, table: Any) -> bool:
    starts = eqn.invars[1:]
    return (
        eqn.primitive.name == "dynamic_slice"
        and eqn.invars[0] is table
        and table not in _variables(starts)
        and tuple(eqn.params["slice_sizes"]) == (1, *table.aval.shape[1:])
    )


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [a for a in atoms if not hasattr(a, "val")]
