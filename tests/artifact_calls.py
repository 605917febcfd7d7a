"""Custom calls as serialized artifacts have them, taken from calls of every family, and mutants of them.

``python -m tests.artifact_calls seed first count`` runs mutants and prints the number of each before it runs: a crash has a name.
``--emulated``: on the emulated GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

if "--emulated" in sys.argv:
    from .emulation import plugin  # noqa: F401  before jaxprims

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

import jaxprims as jp
from jaxprims.operators.traced import make_traced
from jaxprims.primitives.histogram.walk import Walk, walk
from jaxprims.specs.kernel import key_of
from jaxprims.targets.plans import AnyKernel, forced
from jaxprims.tracing.lower import to_program

Type = tuple[tuple[int, ...], np.dtype]


@dataclasses.dataclass(frozen=True)
class Call:
    """A custom call: its name, attributes, operands and the types of its results."""

    target: str
    attributes: dict[str, Any]
    operands: tuple[np.ndarray, ...]
    results: tuple[Type, ...]

    def run(self) -> list[np.ndarray]:
        """Compiles and runs it, as what comes back from an artifact is."""
        wanted = [jax.ShapeDtypeStruct(*t) for t in self.results]
        out = jax.jit(lambda *xs: jax.ffi.ffi_call(self.target, wanted)(*xs, **self.attributes))(*self.operands)
        return [np.asarray(x) for x in out]


# --- calls ---------------------------------------------------------------------------------------------------------------------

_TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


def _affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]


def _bounded(i: Any, x: Any) -> Any:
    """With a captured array, a loop and a branch."""
    y = lax.fori_loop(0, 300, lambda k, y: y + jnp.asarray(_TABLE)[k % 3, i & 3], x)
    return i, jnp.where(x > 0, lax.cond(x > 1, lambda v: v * 2, lambda v: v + 1, x), y)


def _walk(parts: int, copies: int, reverse: bool) -> Walk:
    jaxpr = jax.make_jaxpr(lambda s, x: (s + x, s * x))(*[jax.ShapeDtypeStruct((), np.float32)] * 2).jaxpr
    return Walk(make_traced(jaxpr, to_program(jaxpr)), 1, 5, parts, copies, reverse)


def functions() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """By name, functions of few arrays with one custom call each."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.integers(-2, 3, shape).astype(np.float32)

    n, h = 37, 5
    index = np.sort(rng.integers(-1, h + 1, n)).astype(np.int32)
    add, one, wide = jp.monoids.add, floats(n), floats(n, 40)
    flags = rng.random(n) < 0.2
    offsets = np.array([0, 3, 3, 20, 36], np.int32)
    batched = {"in_axes": (0, None)}
    return {
        "hist": (lambda x, i: jp.reduce_by_index(x, i, h, jnp.add, identity=0), (one, index)),
        "hist sorted": (lambda x, i: jp.reduce_by_index(x, i, h, jnp.add, identity=0, indices_are_sorted=True), (one, index)),
        "hist parts": (
            lambda i, x, y: jp.genhist(
                lambda i, x, y: ((i, x), (i + 1, (x, y)), (jnp.stack([i, i + 2]), jnp.stack([y, y]))),
                (i, x, y),
                [jp.Bins(h, jnp.add, 0), jp.Bins(7, jp.monoids.argmin), jp.Bins(3, jnp.maximum, -100)],
            ),
            (index, one, index),
        ),
        "hist lanes": (lambda x, i: jp.reduce_by_index(x, i, h, jnp.add, identity=0), (wide, index)),
        "hist map": (lambda x, i: jp.genhist(lambda p, x: (p, x * 2), (jp.positions, x), jp.Bins(n, jnp.add)), (wide, index)),
        "hist dest": (lambda x, i, d: jp.reduce_by_index(x, i, h, jnp.add, dest=d, identity=0), (one, index, floats(h))),
        "hist unknown": (
            lambda x, i, d: jp.reduce_by_index(x, i, h, lambda a, b: a + b * 2 - b, dest=d), (one, index, floats(h))),
        "hist start": (
            lambda x, i, e: jp.reduce_by_index(
                x, i, h, lambda a, b: jnp.where(abs(a) > abs(b), a, b), dest=jnp.zeros(h), identity=jnp.broadcast_to(e, ())),
            (one, index, np.float32(0)),
        ),
        "hist uniforms": (lambda x, i: jp.genhist(_bounded, (i, x), jp.Bins(h, jnp.add, 0)), (one, index)),
        "hist positions": (
            lambda x, i: jp.reduce_by_index((x, jp.positions), i, h, jp.monoids.argmax), (one, index)),
        "hist halves": (
            lambda x, i: jp.reduce_by_index(x, i, h, jnp.add, identity=0), (one.astype(jnp.bfloat16), index)),
        "hist batched": (
            jax.vmap(jax.vmap(lambda x, i: jp.reduce_by_index(x, i, h, jnp.add, identity=0), **batched), in_axes=(0, None)),
            (floats(2, 3, n), index),
        ),
        "scan": (jp.scan, (one,)),
        "scan init": (
            lambda x, y, s, t: jp.scan((x, y), op=_affine, init=(s, t), exclusive=True),
            (one, one, np.float32(1), np.float32(2)),
        ),
        "scan flags": (lambda x, f: jp.scan(x, segment_starts=f, reverse=True), (one, flags)),
        "scan across": (lambda x: jp.scan(x, jnp.multiply, axis=1, exclusive=True, identity=1), (floats(2, 6, 13),)),
        "scan inner": (lambda x: jp.scan(x, jnp.maximum, axis=0), (floats(n, 3),)),
        "scan batched": (
            jax.vmap(lambda x, u: jp.scan(x, map=lambda v: v + u[jnp.abs(v).astype(jnp.int32)]), in_axes=(0, None)),
            (floats(4, n), floats(9)),
        ),
        "scan complex": (lambda x: jp.scan(x, jnp.multiply), ((one + 1j).astype(np.complex64),)),
        "reduce": (lambda x: jp.reduce((x, jp.positions), jp.monoids.argmax), (one,)),
        "reduce across": (lambda x: jp.reduce(x, lambda a, b: a * b + a + b, axis=0, identity=0), (floats(n, 21),)),
        "reduce init": (lambda x, s: jp.reduce(x, lambda a, b: a + b * 2 - b, init=s), (one, np.float32(3))),
        "reduce batched": (jax.vmap(lambda x: jp.reduce(x, add)), (floats(80, 6),)),
        "offsets": (lambda x, o: jp.segment_reduce(x, jp.Offsets(o), add), (one, offsets)),
        "ids": (lambda x, i: jp.segment_reduce(x, i, add, num_segments=h), (one, index)),
        "ids across": (lambda x, i: jp.segment_reduce(x, i, add, num_segments=h), (floats(n, 19), index)),
        "ids batched": (
            jax.vmap(lambda x, i: jp.segment_reduce(x, i, _affine, num_segments=h, identity=(1, 0)), **batched),
            ((floats(3, n), floats(3, n)), index),
        ),
        "walk": (lambda i, x, s: walk(_walk(2, 2, False), [i, x, s]), (index, one, floats(4, h))),
        "walk batched": (
            jax.vmap(lambda i, x, s: walk(_walk(1, 1, True), [i, x, s]), in_axes=(None, 0, None)),
            (index, floats(3, n), floats(1, h)),
        ),
        "group": (lambda i: jp.group_by_index(i, h), (index,)),
        "stencil": (
            lambda x: jp.stencil(lambda a: a[0, -1] * a[1, 2] - a[-1, 0], x, boundary=("edge", "valid")),
            (floats(6, 40),),
        ),
        "stencil steps": (
            lambda x, y, c: jp.stencil(
                lambda a, b, at, w: (a[0, 1] + b[-2, 0] * at[1], b[0, -1] + w[1, 1]),
                (x, y, jp.positions), constants=c, boundary=("wrap", "keep"), steps=5,
            ),
            (floats(7, 40), floats(7, 40), floats(7, 40)),
        ),
        "stencil lanes": (
            lambda x: jp.stencil(lambda a: a[-3] + 2 * a[2], x, axes=1, boundary="symmetric", steps=3), (floats(2, 9, 3),)),
        "stencil shrinks": (
            lambda x, u: jp.stencil(lambda a: u[jnp.abs(a[1]).astype(jnp.int32) & 3] + a[-1], x, boundary="valid", steps=7),
            (one, floats(4)),
        ),
        "stencil batched": (
            jax.vmap(
                lambda x, c: jp.stencil(
                    lambda a, w: a[0, 0, 1] * w[1, 0, 0] + a[0, -1, 0], x, constants=c, boundary="constant", fill_value=2, steps=2
                ),
                **batched,
            ),
            (floats(3, 4, 5, 19), floats(4, 5, 19)),
        ),
        "stencil reduced": (
            jp.fuse(lambda x, c: jnp.max(jnp.pad(x * c, 1)[2:, :-2] - jnp.pad(x, 1)[1:-1, 2:], 1)),
            (floats(65, 601), np.float32(2)),
        ),
        "group batched": (jax.vmap(lambda i: jp.group_by_index(i, h)), (np.stack([index, index[::-1]]),)),
    }  # fmt: skip


def _python(attribute: Any) -> Any:
    ir = mlir.ir
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    return np.int64(attribute.value) if isinstance(attribute, ir.IntegerAttr) else np.array(attribute, np.int64)


def _operations(block: Any) -> Iterator[Any]:
    for op in block.operations:
        yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from _operations(inner)


def call_of(f: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """The custom call of this library that a function is lowered to, on operands of its types: sorted numbers."""
    module = jax.jit(f).lower(*args).compiler_ir("stablehlo")
    (op,) = (
        op
        for op in _operations(module.body)
        if op.operation.name == "stablehlo.custom_call" and str(op.attributes["call_target_name"])[1:-1] in jp.CUSTOM_CALL_TARGETS
    )

    def type_of(value: Any) -> Type:
        t = mlir.ir.RankedTensorType(value.type)
        return tuple(t.shape), _DTYPES[str(t.element_type)]

    config = mlir.ir.DictAttr(op.attributes["mhlo.backend_config"]) if "mhlo.backend_config" in op.attributes else ()
    return Call(
        str(op.attributes["call_target_name"])[1:-1],
        {a.name: _python(a.attr) for a in config},
        tuple(numbers(type_of(x)) for x in op.operands),
        tuple(type_of(x) for x in op.results),
    )


_DTYPES = {
    "i1": np.dtype(bool), "i8": np.dtype(np.int8), "ui8": np.dtype(np.uint8), "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32), "ui32": np.dtype(np.uint32), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(jnp.bfloat16), "i64": np.dtype(np.int64), "f64": np.dtype(np.float64),
    "complex<f32>": np.dtype(np.complex64),
}  # fmt: skip


def numbers(t: Type) -> np.ndarray:
    """Small ones, which ascend along the last axis."""
    shape, dtype = t
    if 0 in shape:
        return np.zeros(shape, dtype)
    last = shape[-1] if shape else 1
    return np.broadcast_to(np.arange(last) * 6 // max(1, last), shape or (1,)).astype(dtype).reshape(shape)


# --- mutants -------------------------------------------------------------------------------------------------------------------


def _odd(r: random.Random, v: int) -> int:
    chosen = r.choice(
        [0, -1, 1, 2, 3, v + 1, v - 1, 2 * v + 1, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63)]
    )
    return max(-(1 << 63), min(chosen, (1 << 63) - 1))


def mutated_text(r: random.Random, text: str) -> str:
    """One token or line of a spec changed."""
    lines = text.splitlines()
    k = r.randrange(len(lines))
    kind = r.random()
    if kind < 0.45:
        found = list(re.finditer(r"0x[0-9a-f]+|\d+", text))
        m = r.choice(found)
        line = text[text.rfind("\n", 0, m.start()) + 1 : m.start()]
        new = _odd(r, int(m[0], 0))
        if "loop" in line and 64 < new < 1 << 31:
            new = 7  # it would take forever, as it says
        return text[: m.start()] + (hex(new) if m[0].startswith("0x") else str(new)) + text[m.end() :]
    if kind < 0.65:
        m = r.choice(list(re.finditer(r"\b[a-z_]+\d*\b", text)))
        word = r.choice(
            ["f32", "s32", "s64", "b1", "f16", "u8", "tuple", "add", "select", "convert", "load", "item", "", m[0] * 2]
        )
        return text[: m.start()] + word + text[m.end() :]
    if kind < 0.8:
        other = r.randrange(len(lines))
        lines[k], lines[other] = lines[other], lines[k]
    elif kind < 0.92:
        del lines[k]
    elif kind < 0.97:
        lines.insert(r.randrange(len(lines)), lines[k])
    else:
        return text[: r.randrange(len(text))]
    return "\n".join(lines)


def _mutated_type(r: random.Random, t: Type) -> Type:
    shape, dtype = list(t[0]), t[1]
    kind = r.random()
    if kind < 0.25:
        dtype = r.choice([d for d in _DTYPES.values() if d.itemsize < 8 or d == np.complex64])
    elif kind < 0.75 and shape:
        k = r.randrange(len(shape))
        shape[k] = r.choice([0, 1, 2, max(0, shape[k] - 1), shape[k] + 1, 2 * shape[k], 1000])
    elif kind < 0.87 and shape:
        del shape[r.randrange(len(shape))]
    elif kind < 0.97:
        shape.insert(r.randint(0, len(shape)), r.choice([0, 1, 2, 37]))
    else:  # as many as no memory has, of nothing
        shape = [0, 1 << 40] if r.random() < 0.5 else [1 << 40, *shape[1:], 0]
    return tuple(shape), dtype


def mutant(r: random.Random, call: Call, texts: bool) -> Call:
    """One field changed. ``texts``: also the spec's."""
    attributes, operands, results = dict(call.attributes), list(call.operands), list(call.results)
    kind = r.choice(
        ["attribute", "list", "spec", "spec", "spec", "operand", "operand", "operands", "result", "result", "results"]
    )
    single = [k for k, v in attributes.items() if isinstance(v, np.int64) and k != "key"]
    if kind == "spec" and texts and "spec" in attributes:
        attributes["spec"] = mutated_text(r, attributes["spec"])
        if r.random() < 0.95:
            attributes["key"] = np.int64(key_of(attributes["spec"]))
    elif kind == "attribute" and single:
        name = r.choice(single)
        if r.random() < 0.9:
            new = _odd(r, int(attributes[name]))
            attributes[name] = np.int64(7 if name == "steps" and 1 << 16 <= new < 1 << 40 else new)  # it would take forever
        elif r.random() < 0.5:
            del attributes[r.choice(list(attributes))]
        else:
            attributes[name] = r.choice([np.float32(1), np.int32(attributes[name] % 7), "text", np.array([1, 2])])
    elif kind == "list" and "masks" in attributes:
        name = r.choice(["masks", "plan", *(n for n in ("bounds", "fills", "window", "window", "reads") if n in attributes)])
        row = attributes[name].tolist()
        if name == "plan":
            row = [r.choice([-1, 0, 1, 2, 3, 7, 100, 5000, _odd(r, 4)]) for _ in range(r.choice([1, 2, 4, 5, 5, 6, 9]))]
        elif row and r.random() < 0.7:
            k = r.randrange(len(row))
            row[k] = _odd(r, row[k])
        else:
            row = row[:-1] if r.random() < 0.5 else [*row, 0]
        attributes[name] = np.array(row, np.int64)
    elif kind == "operand":
        k = r.randrange(len(operands))
        operands[k] = numbers(_mutated_type(r, (operands[k].shape, operands[k].dtype)))
    elif kind == "operands":
        k = r.randrange(len(operands))
        how = r.choice(["delete", "repeat", "swap"])
        if how == "delete":
            del operands[k]
        elif how == "repeat":
            operands.insert(k, operands[k])
        else:
            other = r.randrange(len(operands))
            operands[k], operands[other] = operands[other], operands[k]
        if "masks" in attributes and r.random() < 0.7:
            attributes["masks"] = np.resize(attributes["masks"], len(operands)).astype(np.int64)
    elif kind == "results":
        k = r.randrange(len(results))
        if r.random() < 0.5 and len(results) > 1:
            del results[k]
        else:
            results.insert(k, results[k])
    else:
        k = r.randrange(len(results))
        results[k] = _mutated_type(r, results[k])
    return Call(call.target, attributes, tuple(operands), tuple(results))


def same_question(a: Call, b: Call) -> bool:
    """Are they told of the same operands, results and spec?"""
    types = [[(x.shape, x.dtype) for x in c.operands] for c in (a, b)]
    asked = [
        [
            np.asarray(c.attributes.get(n, 0)).tolist()
            for n in ("spec", "bounds", "fills", "window", "steps", "reads", "kept", "along")
        ]
        for c in (a, b)
    ]
    return asked[0] == asked[1] and a.results == b.results and types[0] == types[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--names", default=".")
    parser.add_argument("--emulated", action="store_true")
    given = parser.parse_args()
    all_functions, calls, right, passed = functions(), {}, {}, 0
    names = [name for name in all_functions if re.search(given.names, name) and not (given.emulated and "group" in name)]
    for number in range(given.first, given.first + given.count):
        r = random.Random(given.seed << 32 | number)
        name = r.choice(names)
        if name not in calls:
            with forced(AnyKernel()):
                calls[name] = call_of(*all_functions[name])
        call = calls[name]
        changed = mutant(r, call, texts=not given.emulated)
        print(f"mutant {number} of {name}", flush=True)
        try:
            out = changed.run()
        except Exception as e:  # whatever jax makes of what the handler says
            print("refused:", str(e).splitlines()[0][:160], flush=True)
            continue
        passed += 1
        if same_question(call, changed):
            if name not in right:
                right[name] = call.run()
            count = len(out) - (1 if given.emulated else 0)  # but the workspace
            for got, wanted in zip(out[:count], right[name][:count], strict=True):
                np.testing.assert_allclose(
                    np.asarray(got, np.complex64), np.asarray(wanted, np.complex64), rtol=1e-5, err_msg=str(changed)
                )
    print(f"{given.count} mutants, {passed} run")


if __name__ == "__main__":
    main()
