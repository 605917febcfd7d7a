"""A family and a target of one's own, registered from outside: rooms are added, nothing else changes.

The toy family, "differences", is f of each element less f of the one before it. The toy target has kernels for it and for scans:
it reads the spec's text, as a target must, and runs its Programs by XLA, instruction by instruction.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

import jaxprims as jp
from jaxprims.ir.program import Program, numpy_dtype
from jaxprims.operators.traced import Traced, make_traced
from jaxprims.primitives.batches import batch_shape, over_batch
from jaxprims.primitives.family import Family
from jaxprims.specs.kernel import KernelSpec, parse, register_kind
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.specs.problems import Problem
from jaxprims.targets import plans, registry
from jaxprims.targets.cpu.target import CPU
from jaxprims.targets.target import Explanation, Target
from jaxprims.tracing.lower import to_program

# --- the family -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class DifferencesSpec(KernelSpec):
    """Which f."""

    f: Program
    kind: str = dataclasses.field(default="differences", init=False)

    @functools.cached_property
    def text(self) -> str:
        return f"differences 1\n{self.f.text}"

    @staticmethod
    def parse(text: str) -> DifferencesSpec:
        return DifferencesSpec(Program.parse(text.partition("\n")[2]))


@dataclasses.dataclass(frozen=True)
class DifferencesProblem(Problem):
    n: Any
    family = "differences"

    @property
    def sizes(self) -> Sequence[Any]:
        return (self.n, *self.batch)


differences_p = Primitive("differences")
differences_p.def_impl(functools.partial(xla.apply_primitive, differences_p))
differences_p.multiple_results = True


@differences_p.def_abstract_eval
def _abstract_eval(x: Any, *, f: Traced, masks: tuple[int, ...], rank: int) -> list[Any]:
    return [x]


def _batch(operands: Any, dims: Any, *, f: Traced, masks: tuple[int, ...], rank: int) -> Any:
    moved = jnp.moveaxis(operands[0], dims[0], 0)
    return differences_p.bind(moved, f=f, masks=(masks[0] << 1 | 1,), rank=rank + 1), [0]


batching.primitive_batchers[differences_p] = _batch


class Differences(Family):
    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> DifferencesProblem:
        batch = batch_shape(avals, params["masks"], params["rank"])
        return DifferencesProblem(DifferencesSpec(params["f"].program), batch, plans.forced_plans(), avals[0].shape[-1])

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        y = jax.vmap(lambda x: params["f"]((), x)[0])(operands[0])
        return [jnp.diff(y, prepend=y[:1])]


FAMILY = Differences("differences", "differences", differences_p, "toy_differences_v1")
register_kind("differences", DifferencesSpec.parse)
registry.register_family(FAMILY)


def differences(f: Any, x: Any) -> Any:
    jaxpr = jax.make_jaxpr(lambda x: [f(x)])(jax.ShapeDtypeStruct((), x.dtype)).jaxpr
    return differences_p.bind(x, f=make_traced(jaxpr, to_program(jaxpr)), masks=(0,), rank=0)[0]


# --- the target ------------------------------------------------------------------------------------------------------------

OPERATIONS = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def run(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """A Program of a few instructions, on arrays."""
    values: list[Any] = []
    for i in program.body:
        if i.op == "arg":
            values.append(arguments[i.attr])
        elif i.op == "const":
            values.append(jnp.asarray(np.array(i.attr, np.uint32).view(numpy_dtype(i.dtype)), numpy_dtype(i.dtype)))
        else:
            values.append(OPERATIONS[i.op](*(values[o] for o in i.operands)))
    return [values[r] for r in program.results]


@dataclasses.dataclass(frozen=True)
class ToyPlan:
    """Whether what is scanned is scanned one after the other."""

    target = "toy"
    family = "scan"
    in_turn: bool = True

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        return (int(self.in_turn),)


class Toy(Target):
    """Runs on the host's XLA."""

    name = "toy"
    platform = "cpu"

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def serves(self, family: str) -> bool:
        return family in ("differences", "scan")

    def at(self, where: str) -> Target | None:
        return self if where == "toy" else None

    def register(self, family: str, call_target: str) -> None:
        self.seen.append(("register", family))

    def compile(self, problem: Any) -> None:
        self.seen.append(("compile", problem.spec.kind))

    def plan(self, problem: Any) -> Any:
        return plans.plan_among(problem.plans, "toy", problem.family) or ToyPlan()

    def explain(self, problem: Any) -> Explanation:
        return Explanation(f"one instruction after the other, {self.plan(problem)}", "it is a toy")

    def lower(
        self, ctx: Any, call_target: Any, operands: Any, problem: Any, masks: Any, rank: Any, attributes: Any, aliases: Any
    ) -> Any:
        self.seen.append(("lower", self.plan(problem).numbers(problem)))
        spec = parse(problem.spec.text)

        def one(x: Any) -> list[Any]:
            (y,) = run(spec.f, [x])
            if not isinstance(spec, OrderedSpec):
                return [jnp.diff(y, prepend=y[:1])]
            return [jax.lax.associative_scan(lambda a, b: run(spec.op, [a, b])[0], y)]

        return mlir.lower_fun(over_batch(one, masks, rank))(ctx, *operands)

    def code(self, spec: KernelSpec, variant: int, language: str) -> str:
        return spec.text if language == "toy" else ""

    def forget(self) -> None:
        self.seen.clear()


@pytest.fixture
def toy() -> Iterator[Toy]:
    """Registered in the CPU's place, as long as a test lasts."""
    target = Toy()
    registry.register_target(target)
    try:
        yield target
    finally:
        registry._targets.pop(target.name)
        registry.register_target(CPU)
        jax.clear_caches()


X = np.array([3.0, 1.0, 4.0, 1.0, 5.0], np.float32)
WANTED = np.diff(2 * X, prepend=2 * X[:1])


def twice(x: Any) -> Any:
    return x + x


# --- the family, on targets that do not know it --------------------------------------------------------------------------------


def test_where_nobody_has_kernels_it_is_plain_xla() -> None:
    np.testing.assert_array_equal(differences(twice, X), WANTED)
    np.testing.assert_array_equal(jax.jit(lambda x: differences(twice, x))(X), WANTED)
    (call,) = jp.explain(lambda x: differences(twice, x))(X).calls
    assert call.strategy == "plain XLA"


# --- the family and the target -------------------------------------------------------------------------------------------------


def test_eager_and_jit(toy: Toy) -> None:
    np.testing.assert_array_equal(differences(twice, X), WANTED)
    np.testing.assert_array_equal(jax.jit(lambda x: differences(twice, x))(X), WANTED)
    assert ("register", "differences") in toy.seen and ("compile", "differences") in toy.seen


def test_vmap(toy: Toy) -> None:
    rows = np.stack([X, 2 * X, X[::-1]])
    got = jax.jit(jax.vmap(lambda x: differences(twice, x)))(rows)
    np.testing.assert_array_equal(got, np.diff(2 * rows, prepend=2 * rows[:, :1]))
    columns = jax.jit(jax.vmap(lambda x: differences(twice, x), in_axes=1, out_axes=1))(rows.T)
    np.testing.assert_array_equal(columns, np.diff(2 * rows, prepend=2 * rows[:, :1]).T)


def test_export(toy: Toy) -> None:
    exported = jax.export.export(jax.jit(lambda x: differences(twice, x)))(jax.ShapeDtypeStruct((5,), np.float32))
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(X), WANTED)


def test_the_library_s_own_functions_run_on_it(toy: Toy) -> None:
    np.testing.assert_array_equal(jax.jit(lambda x: jp.scan(x, jnp.multiply))(X), np.multiply.accumulate(X))
    np.testing.assert_array_equal(jax.jit(lambda x: jp.cumsum(x))(X), np.cumsum(X))
    assert ("compile", "scan") in toy.seen
    np.testing.assert_array_equal(jax.jit(lambda x: jp.reduce(x, jnp.maximum))(X), 5)  # the CPU's, still
    assert ("compile", "reduce") not in toy.seen


def test_explanations_and_plans(toy: Toy) -> None:
    (call,) = jp.explain(lambda x: differences(twice, x), target="toy")(X).calls
    assert (call.primitive, call.reason) == ("differences", "it is a toy")
    assert "in_turn=True" in call.strategy
    with plans.forced(ToyPlan(in_turn=False)):
        (call,) = jp.explain(jp.cumsum, target="toy")(X).calls
        jax.jit(lambda x: jp.cumsum(x)).lower(X)
    assert "in_turn=False" in call.strategy
    assert ("lower", (0,)) in toy.seen


def test_afterwards_the_cpu_has_its_kernels_again() -> None:
    text = jax.jit(lambda x: jp.cumsum(x)).lower(X).as_text()
    assert "jaxprims_scan" in text
    with pytest.raises(ValueError, match="target must be one of cpu, cuda, got 'toy'"):
        jp.explain(jp.cumsum, target="toy")
