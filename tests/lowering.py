"""Shared by the tests of lowering: sample values, a Program against its function, and what became of calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

import jaxprims as jp
from jaxprims.ir.check import check_program
from jaxprims.ir.evaluate import evaluate
from jaxprims.ir.program import Program, dtype_name, numpy_dtype
from jaxprims.ir.reach import reach
from jaxprims.tracing.lower import hoist, to_program

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128"]
EPS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14, "complex64": 3e-6, "complex128": 1e-13}


SPECIAL = {
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
}
"""What NumPy lacks."""


def strategies(fn: Callable[..., Any], *args: Any, target: str = "cpu") -> list[str]:
    """Of the calls in ``fn``, one after the other."""
    return [call.strategy for call in jp.explain(fn, target=target)(*args).calls]


def own(a: Any, b: Any) -> Any:
    """What XLA has no operation for."""
    return a + b + a * b


def run(program: Program, columns: Sequence[Any], uniforms: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
    """The results of a Program on columns of numbers, a column for each parameter, with SciPy's functions beside NumPy's."""
    columns = [np.atleast_1d(np.asarray(c, numpy_dtype(t))) for c, t in zip(columns, program.params, strict=True)]
    wide = {name: functools.partial(_wide, f) for name, f in SPECIAL.items()}
    out = [np.asarray(y) for y in evaluate(program, columns, uniforms, wide)]
    assert [y.dtype for y in out] == [numpy_dtype(t) for t in program.result_dtypes]
    return [np.broadcast_to(y, columns[0].shape) if columns else y for y in out]


def _wide(f: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    """SciPy has no 16-bit floats."""
    return f(x.astype(np.float64 if x.dtype == np.float64 else np.float32))


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


def slots(x: np.ndarray) -> list[np.ndarray]:
    """The columns of scalars of one argument ``[rows, ...]``."""
    columns = x.reshape(len(x), -1).T
    return [part for z in columns for part in (z.real, z.imag)] if x.dtype.kind == "c" else list(columns)


def program_of(f: Callable[..., Any], *args: Any) -> tuple[Program, list[np.ndarray]]:
    """The Program of ``f`` on arguments like these, and its uniforms, of which it reads none but their scalars."""
    closed = jax.make_jaxpr(f)(*args)
    pre, inner = hoist(closed)
    consts = [np.asarray(c) for c in pre(*closed.consts)]
    program = to_program(inner.jaxpr)
    assert Program.parse(str(program)) == program
    parts = [np.ravel(c) for c in consts]
    uniforms = [p.view(p.real.dtype) if p.dtype.kind == "c" else p for p in parts]
    check_program(program, program.params, None, [dtype_name(u.dtype) for u in uniforms])
    assert all(read <= u.size for read, u in zip(reach([program], len(uniforms)), uniforms, strict=True)), program
    return program, uniforms


def check(f: Callable[..., Any], *args: Any, eps: float | None = None, exact: bool = False, wanted: Any = None) -> Program:
    """Compares on each row of ``args``. ``exact``: signs of zeros too. ``wanted``: the results, where XLA errs."""
    arrays = [np.asarray(a) for a in args]
    program, uniforms = program_of(f, *(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in arrays))
    wanted = [np.asarray(w) for w in jax.tree.leaves(jax.jit(jax.vmap(f))(*arrays) if wanted is None else wanted)]
    got = run(program, [column for a in arrays for column in slots(a)], uniforms)
    want = [column for w in wanted for column in slots(w)]
    assert [g.dtype for g in got] == [w.dtype for w in want]
    for g, w, dtype in zip(got, want, [a.dtype.name for a in wanted for _ in slots(a)], strict=True):
        message = f"{arrays}: got {g}, want {w}\n{program}"
        if dtype in EPS and not exact:
            tolerance = EPS[dtype] if eps is None else eps
            np.testing.assert_allclose(g.astype(float), w.astype(float), rtol=tolerance, atol=tolerance, err_msg=message)
        else:
            assert np.all((g == w) | ((g != g) & (w != w))), message
            assert not exact or np.all((g != 0) | (np.signbit(g.astype(float)) == np.signbit(w.astype(float)))), message
    return program


def ops(program: Program) -> list[str]:
    return [i.op for i in program.walk() if i.op not in ("arg", "const")]
