"""What a serialized artifact says is not to be trusted: an edited one is refused, in words, or gives what it asks for.

More mutants: ``JAXPRIMS_EXAMPLES=10000 pytest tests/test_artifacts.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.mlir
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import count
from exports import export
from jax.interpreters import mlir

import jaxprims as jp
from jaxprims.ir.check import check_program
from jaxprims.ir.program import Program
from jaxprims.ir.reach import reach
from jaxprims.specs.kernel import key_of, parse
from tests.artifact_calls import Call, call_of, functions, numbers

ROOT = pathlib.Path(__file__).parents[1]
MUTANTS = count(20)
CALLS = functions()


@functools.cache
def honest(name: str) -> Call:
    return call_of(*CALLS[name])


def run_mutants(seed: int, count: int, *more: str) -> None:
    """In a process of their own: a crash is a process's, and the last line it has written names the mutant."""
    command = [sys.executable, "-m", "tests.artifact_calls", str(seed), "0", str(count), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"seed {seed}: {done.returncode}\n{done.stdout[-600:]}\n{done.stderr[-3000:]}"
    ran = re.search(rf"^{count} mutants, (\d+) run$", done.stdout, re.M)
    assert ran and int(ran[1]) < count / 2, done.stdout[-600:]


def test_mutants_on_cpus() -> None:
    run_mutants(0, MUTANTS)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation needs an x86-64 host")
def test_mutants_on_gpus() -> None:
    run_mutants(0, MUTANTS, "--emulated", "--names", "^(hist|scan init|ids|reduce across|stencil|stencil steps|stencil batched)$")


# --- what is said --------------------------------------------------------------------------------------------------------------


def told(name: str, **changes: Any) -> Call:
    """A call with other attributes, or operands and results in place of some."""
    call = honest(name)
    operands, results = list(call.operands), list(call.results)
    for k, t in changes.pop("operands", {}).items():
        operands[k] = numbers(t)
    for k, t in changes.pop("results", {}).items():
        results[k] = t
    attributes = call.attributes | changes
    if "spec" in changes:
        attributes["spec"] = changes["spec"](call.attributes["spec"])
        attributes["key"] = np.int64(key_of(attributes["spec"]))
    return Call(call.target, attributes, tuple(operands), tuple(results))


def edited(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


F32, S32 = np.dtype(np.float32), np.dtype(np.int32)
LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a short result": ("scan", {"results": {0: ((36,), F32)}}, r"a result is \[36\] of f32; wanted \[37\] and 1 of f32"),
    "a result of another dtype": ("hist", {"results": {0: ((5,), S32)}}, "a result is .* of s32; wanted .* of f32"),
    "a short operand": ("hist", {"operands": {1: ((3,), F32)}}, r"an array is \[3\] of f32; wanted \[37\]"),
    "a narrow operand": ("hist lanes", {"operands": {1: ((37, 4), F32)}}, r"an array is \[37, 4\]"),
    "a short dest": ("hist dest", {"operands": {2: ((1,), F32)}}, r"dest is \[1\] of f32; wanted \[5\]"),
    "a short captured array": (
        "hist uniforms", {"operands": {2: ((3,), F32)}}, "a captured array is .* at least 12 of f32"),
    "a farther identity": ("hist start", {"spec": edited("%0 = const s32 0x0", "%0 = const s32 0x7")}, "a captured array is"),
    "short flags": ("scan flags", {"operands": {1: ((5,), np.dtype(bool))}}, r"the flags is \[5\] of b1; wanted \[37\]"),
    "a short init": ("scan init", {"operands": {2: ((0,), F32)}}, "init has other slots"),
    "short offsets": ("offsets", {"operands": {1: ((2,), S32)}}, r"the segments' offsets is \[2\] of s32; wanted \[5\]"),
    "offsets for ids": ("offsets", {"by": np.int64(1)}, r"the segments' ids is \[5\]"),
    "a batch of another size": ("ids batched", {"operands": {1: ((2, 37), F32)}}, r"is \[2, 37\] of f32; wanted \[3, 37\]"),
    "a rank of the batch": ("scan batched", {"batch_rank": np.int64(1 << 40)}, "0 to 16 batch axes"),
    "too few masks": ("hist", {"masks": np.zeros(1, np.int64)}, "1 masks; wanted 2"),
    "a mask of no axis": ("hist batched", {"masks": np.array([4, 3])}, "the mask of batch axes 4"),
    "more axes than elements have": ("hist", {"masks": np.array([1 << 16, 0])}, "lacks axes of its elements"),
    "axes of elements that are none": ("scan flags", {"masks": np.array([0, 1 << 40])}, r"the flags is \[37\]"),
    "inner axes": ("scan across", {"inner_rank": np.int64(-1)}, "no axis of elements and -1 inner ones"),
    "an exclusive scan of nothing": (
        "scan across", {"spec": edited("identity 0x3f800000", "identity none")}, "identity or from init"),
    "sorted values": ("hist positions", {"sorted": np.int64(1)}, "no array has sorted indices"),
    "the array of sizes": ("hist", {"elements_of": np.int64(7)}, "tells the number of elements"),
    "a plan": ("hist", {"plan": np.array([1 << 62] * 5)}, "the forced plan"),
    "another key": ("scan", {"key": np.int64(3)}, "the key is not the spec's"),
    "no lanes": ("hist", {"spec": edited("lanes=1", "lanes=0")}, "a bin has updates, lanes, slots and results"),
    "other slots": ("scan", {"spec": edited("array f32 1 1", "array f32 0 1")}, "1 parameters of an array of 0 slots of f32"),
    "a forward operand": ("scan", {"spec": edited("add f32 %0", "add f32 %7")}, "an operand is not computed before"),
    "no such parameter": ("scan", {"spec": edited("arg f32 1", "arg f32 9")}, "no such parameter"),
    "another dtype": ("scan", {"spec": edited("add f32", "add s32")}, "op, %2 = add s32: of .f32, f32."),
    "an unknown operation": ("scan", {"spec": edited("add f32", "sum f32")}, "op, %2 = sum f32: unknown operation"),
    "a farther position": ("hist uniforms", {"spec": edited("const s32 0x4", "const s32 0x4000")}, "a captured array is"),
    "a deleted line": ("scan", {"spec": edited("  %1 = arg f32 1\n", "")}, "not a kernel's spec"),
    "another identity": ("hist", {"spec": edited("identity 0x0", "identity 0x100000000")}, "are no bits of f32"),
}  # fmt: skip


@pytest.mark.cover(17)
@pytest.mark.parametrize("name", LIES)
def test_what_is_said_of_what_does_not_fit(name: str) -> None:
    call, changes, message = LIES[name]
    with pytest.raises(Exception, match=f"INVALID_ARGUMENT: jaxprims: .*{message}"):
        told(call, **changes).run()


def test_an_artifact_with_another_result() -> None:
    """Through ``jax.export``: more bins than there were are what it says; more segments than offsets tell are refused."""

    x = np.arange(6, dtype=np.float32)

    def with_five(f: Callable[..., Any]) -> Any:
        """Of three numbers."""
        artifact = export(jax.jit(f))(x)
        text = artifact.mlir_module()
        assert "<3xf32>" in text
        with mlir.ir.Context():
            changed = jax.extend.mlir.serialize_portable_artifact(text.replace("<3xf32>", "<5xf32>"), "1.0.0")
        avals = (jax.core.ShapedArray((5,), jnp.float32),)
        return dataclasses.replace(artifact, mlir_module_serialized=changed, out_avals=avals).call(x)

    bins = with_five(lambda x: jp.reduce_by_index(x, x.astype(jnp.int32), 3, jnp.add, identity=0))
    assert bins.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(Exception, match=r"the segments' offsets is \[4\] of s32; wanted \[6\]"):
        with_five(lambda x: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 2, 4, 6])), jnp.add))


def test_offsets_go_through_an_artifact() -> None:
    """As operands and as results: a pytree that is serialized by its name."""
    f = jax.jit(lambda i, bins: (jp.group_by_index(i, 3), jp.segment_reduce(i, bins)))
    i, bins = jnp.array([2, 0, 2, 1]), jp.Offsets(jnp.array([0, 1, 4]))
    again = jax.export.deserialize(export(f)(i, bins).serialize())
    (order, grouped), sums = again.call(i, bins)
    assert (order.tolist(), grouped.offsets.tolist(), sums.tolist()) == ([1, 3, 0, 2], [0, 1, 2, 4], [2, 3])


# --- Programs ------------------------------------------------------------------------------------------------------------------

PROGRAM = """program(s32, f32) {
  %0 = arg s32 0
  %1 = const s32 0x0
  %2 = max s32 %0 %1
  %3 = const s32 0x4
  %4 = min s32 %2 %3
  %5 = mul s32 %4 %3
  %6 = load f32 0 %5
  %7 = arg f32 1
  %8 = loop tuple 3 %7 %6
      program(s32, f32, f32) {
        %0 = arg s32 0
        %1 = load f32 1 %0
        %2 = arg f32 1
        %3 = add f32 %1 %2
      } -> (%3)
  %9 = item f32 0 %8
} -> (%9)"""


def test_how_far_a_program_reads() -> None:
    program = Program.parse(PROGRAM)
    check_program(program, ("s32", "f32"), ("f32",), ("f32", "f32"))
    assert reach([program], 2) == [17, 3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("load f32 0", "load f32 2", "no such captured array"),
        ("load f32 0", "load s32 0", "no such captured array"),
        ("%5 = mul s32 %4 %3", "%5 = mul s32 %4 %7", "an operand is not computed before"),
        ("item f32 0", "item f32 1", "no such result"),
        ("item f32 0 %8", "item f32 0 %7", "its operand is no tuple"),
        ("loop tuple 3 %7 %6", "loop tuple -3 %7 %6", "no number of turns"),
        ("loop tuple 3 %7 %6", "loop tuple 3 %7", "the body takes"),
        ("max s32", "and f32", "of .s32, s32."),
        ("const s32 0x4", "const s32 0x123456789", "are no bits of s32"),
        ("-> (%9)", "-> (%8)", "there is no value %8"),
    ],
)
def test_programs_that_are_none(old: str, new: str, message: str) -> None:
    assert old in PROGRAM
    with pytest.raises(ValueError, match=message):
        check_program(Program.parse(PROGRAM.replace(old, new, 1)), ("s32", "f32"), ("f32",), ("f32", "f32"))


def test_a_position_that_may_be_negative() -> None:
    with pytest.raises(ValueError, match="captured array 0 may be read at -"):
        reach([Program.parse(PROGRAM.replace("max s32", "min s32"))], 2)


def test_only_canonical_texts_are_specs() -> None:
    text = honest("scan").attributes["spec"]
    assert parse(text).text == text
    with pytest.raises(ValueError, match="not canonical"):
        parse(text.replace("state f32", "state f32\nstate f32"))
