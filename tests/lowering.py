"""Shared by the tests of lowering: sample values, and a Program against the function that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import program_interpreter

from jaxprims.ir.program import Program
from jaxprims.tracing.lower import hoist, to_program

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128"]
EPS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14, "complex64": 3e-6, "complex128": 1e-13}


def samples(dtype: str) -> np.ndarray:
    """Ordinary and awkward numbers."""
    t = jnp.dtype(dtype)
    if t == np.bool_:
        return np.array([False, True])
    if t.kind in "iu":
        info = np.iinfo(t)
        low = [info.min, info.min + 1, -7, -2, -1] if t.kind == "i" else []
        return np.array([*low, 0, 1, 2, 3, 5, 8, 31, 100, info.max - 1, info.max], t)
    real = [0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 1.5, -2.5, 2.5, 3.75, -7.125, 100.0, np.inf, -np.inf, np.nan]
    if t.kind == "c":
        parts = [0.0, -0.0, 1.0, -0.5, 2.5, -3.0]
        return np.array([complex(a, b) for a in parts for b in parts], t)
    return np.array(real).astype(t)


def pairs(dtype: str, other: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of samples."""
    a, b = samples(dtype), samples(other or dtype)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def slots(x: np.ndarray) -> list[Any]:
    """The scalars of one argument."""
    flat = np.ravel(x)
    return [v for z in flat for v in (z.real, z.imag)] if flat.dtype.kind == "c" else list(flat)


def program_of(f: Callable[..., Any], *args: Any) -> tuple[Program, list[np.ndarray]]:
    """The Program of ``f`` on arguments like these, and its uniforms."""
    closed = jax.make_jaxpr(f)(*args)
    pre, inner = hoist(closed)
    consts = [np.asarray(c) for c in pre(*closed.consts)]
    program = to_program(inner.jaxpr)
    assert Program.parse(str(program)) == program
    parts = [np.ravel(c) for c in consts]
    return program, [p.view(p.real.dtype) if p.dtype.kind == "c" else p for p in parts]


def check(f: Callable[..., Any], *args: Any, eps: float | None = None, exact: bool = False) -> Program:
    """Compares on each row of ``args``. ``exact``: signs of zeros too."""
    arrays = [np.asarray(a) for a in args]
    program, uniforms = program_of(f, *(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in arrays))
    wanted = [np.asarray(w) for w in jax.tree.leaves(jax.jit(jax.vmap(f))(*arrays))]
    for row in range(len(arrays[0])):
        given = [v for a in arrays for v in slots(a[row])]
        got = program_interpreter.run(program, given, uniforms)
        want = [v for w in wanted for v in slots(w[row])]
        assert [type(g) for g in got] == [type(w) for w in want]
        for g, w, dtype in zip(got, want, [a.dtype.name for a in wanted for _ in slots(a[row])], strict=True):
            message = f"{[str(a[row]) for a in arrays]}: got {g}, want {w}\n{program}"
            if dtype in EPS and not exact:
                tolerance = EPS[dtype] if eps is None else eps
                np.testing.assert_allclose(float(g), float(w), rtol=tolerance, atol=tolerance, err_msg=message)
            else:
                assert g == w or (g != g and w != w), message
                assert not exact or g != 0 or np.signbit(float(g)) == np.signbit(float(w)), message
    return program


def ops(program: Program) -> list[str]:
    return [i.op for i in program.walk() if i.op not in ("arg", "const")]
