"""The expression table's loads, loops and branches, scalar and at several widths; compiling itself."""

from __future__ import annotations

import concurrent.futures
import functools
import operator

import numpy as np
import pytest
from expressions import call, compare_all, compile_all, one, widths

from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm import engine as llvm_engine


def test_loads() -> None:
    """By a constant, by a computed index, and by a loop's counter: the last in scalar registers, whatever the width."""
    coefficients, table = np.arange(1, 6, dtype=np.float32), np.array([1, 0, 1, 1], np.bool_)
    b = P.Builder(("s32", "f32", "s64"))
    inner = P.Builder(("s32", "f32", "f32"))
    next_coefficient = inner.emit("load", "f32", inner.arg(0), attr=0)
    step = inner.finish([inner.emit("add", "f32", inner.emit("mul", "f32", inner.arg(1), inner.arg(2)), next_coefficient)])
    horner = b.emit("loop", "tuple", b.const(0, "f32"), b.arg(1), attr=(5, step))
    results = [
        b.emit("load", "f32", b.const(3, "s32"), attr=0),
        b.emit("load", "f32", b.arg(0), attr=0),
        b.emit("load", "b1", b.arg(2), attr=1),
        b.emit("load", "bf16", b.arg(2), attr=2),
        b.emit("item", "f32", horner, attr=0),
    ]
    program = b.finish(results)
    rng = np.random.default_rng(0)
    i, x, j = rng.integers(0, 5, 96).astype(np.int32), rng.integers(-3, 4, 96).astype(np.float32), rng.integers(0, 4, 96)
    halves = np.array([1, -0.0, np.inf, 3], P.numpy_dtype("bf16"))
    want = [np.full(96, coefficients[3]), coefficients[i], table[j], halves[j], np.polyval(coefficients, x)]
    compare_all(program, [i, x, j], want, [coefficients, table, halves])
    horner_alone = b.finish([results[4]])
    assert "extractelement" not in compile_all({"p": horner_alone}, 8).ir


def test_loops() -> None:
    """Carries that do and do not vary from lane to lane, nested, and of no steps at all."""
    rows = P.Builder(("s32", "s32", "s32", "s32"))  # column, sum, row, x -> sum + x * (row ^ column)
    mixed = rows.emit("xor", "s32", rows.arg(0), rows.arg(2))
    row = rows.finish([rows.emit("add", "s32", rows.arg(1), rows.emit("mul", "s32", rows.arg(3), mixed))])
    body = P.Builder(("s32", "s32", "s32", "s32"))  # row, sum, power, x
    inner = body.emit("loop", "tuple", body.arg(1), body.arg(0), body.arg(3), attr=(3, row))
    rows_xor = body.emit("xor", "s32", body.arg(2), body.arg(0))
    many = body.finish([body.emit("item", "s32", inner, attr=0), rows_xor])
    b = P.Builder(("s32",))
    start = [b.const(0, "s32"), b.const(1, "s32")]
    loops = {n: b.emit("loop", "tuple", *start, b.arg(0), attr=(n, many)) for n in (0, 7, 100, 103)}  # unrolled if they are short
    program = b.finish([b.emit("item", "s32", t, attr=k) for t in loops.values() for k in (0, 1)])
    x = np.arange(-48, 48, dtype=np.int32)
    want = []
    for n in loops:
        want += [x * sum(r ^ c for r in range(n) for c in range(3)), np.full(96, functools.reduce(operator.xor, range(n), 1))]
    compare_all(program, [x], want)


def _collatz() -> P.Program:
    """(steps, n) -> (steps, 1)"""
    cond = P.Builder(("s32", "s64"))
    body = P.Builder(("s32", "s64"))
    n, one_ = body.arg(1), body.const(1, "s64")
    odd = body.emit("ne", "b1", body.emit("and", "s64", n, one_), body.const(0, "s64"))
    tripled = body.emit("add", "s64", body.emit("mul", "s64", n, body.const(3, "s64")), one_)
    halved = body.emit("shift_right_arithmetic", "s64", n, one_)
    steps = body.emit("add", "s32", body.arg(0), body.const(1, "s32"))
    step = body.finish([steps, body.emit("select", "s64", odd, tripled, halved)])
    b = P.Builder(("s32", "s64"))
    more = cond.finish([cond.emit("ne", "b1", cond.arg(1), cond.const(1, "s64"))])
    loop = b.emit("while", "tuple", b.arg(0), b.arg(1), attr=(more, step))
    return b.finish([b.emit("item", "s32", loop, attr=0), b.emit("item", "s64", loop, attr=1)])


def _collatz_steps(n: int) -> int:
    return 0 if n == 1 else 1 + _collatz_steps(3 * n + 1 if n % 2 else n // 2)


def test_while_and_cond_in_lanes_that_differ() -> None:
    """n > 0: Collatz's steps. Other lanes would never end there: they must be kept out of the branch's loop."""
    b = P.Builder(("s64", "s32"))
    n, y = b.arg(0), b.arg(1)
    positive = b.emit("gt", "b1", n, b.const(0, "s64"))
    other = P.Builder(("s32", "s64"))
    quotient = other.emit("div", "s32", other.const(100, "s32"), other.emit("convert", "s32", other.arg(1)))
    apart = other.finish([quotient, other.arg(1)])
    chosen = b.emit("cond", "tuple", positive, y, n, attr=(apart, _collatz()))
    program = b.finish([b.emit("item", "s32", chosen, attr=0), b.emit("item", "s64", chosen, attr=1)])
    rng = np.random.default_rng(0)
    n = rng.integers(-20, 60, 96)
    n[32:64] = np.abs(n[32:64]) + 1  # whole vectors of one mind
    n[64:] = -np.abs(n[64:])
    y = rng.integers(0, 9, 96).astype(np.int32)
    pairs = zip(n.tolist(), y.tolist(), strict=True)
    want = [yk + _collatz_steps(nk) if nk > 0 else int(100 / nk) if nk else -1 for nk, yk in pairs]
    compare_all(program, [n, y], [np.array(want), np.where(n > 0, 1, n)])


def test_while_in_while() -> None:
    """Sum over m = n, n - 1, ... 1 of Collatz's steps of m: the inner loop runs only for lanes that the outer one still has."""
    cond, body = P.Builder(("s32", "s64")), P.Builder(("s32", "s64"))
    more = cond.finish([cond.emit("gt", "b1", cond.arg(1), cond.const(0, "s64"))])
    total, _ = body.inline(_collatz(), [body.arg(0), body.arg(1)])
    step = body.finish([total, body.emit("sub", "s64", body.arg(1), body.const(1, "s64"))])
    b = P.Builder(("s64",))
    loop = b.emit("while", "tuple", b.const(0, "s32"), b.arg(0), attr=(more, step))
    program = b.finish([b.emit("item", "s32", loop, attr=0)])
    n = np.random.default_rng(1).integers(-5, 30, 96)
    compare_all(program, [n], [np.array([sum(map(_collatz_steps, range(1, k + 1))) for k in n.tolist()])])


def test_uniform_control_flow() -> None:
    """Conditions that are the same in every lane branch as scalar code does, also where the carries vary."""
    cond, body = P.Builder(("s32", "f32", "s32")), P.Builder(("s32", "f32", "s32"))
    limit = cond.emit("load", "s32", cond.const(0, "s32"), attr=0)
    more = cond.finish([cond.emit("lt", "b1", cond.arg(0), limit)])
    doubled = body.emit("mul", "f32", body.arg(1), body.const(2, "f32"))
    step = body.finish([body.emit("add", "s32", body.arg(0), body.arg(2)), doubled])
    b = P.Builder(("f32",))
    loop = b.emit("while", "tuple", b.const(0, "s32"), b.arg(0), b.const(1, "s32"), attr=(more, step))
    branches = [P.Builder(("f32",)) for _ in range(2)]
    negated = branches[0].finish([branches[0].emit("neg", "f32", branches[0].arg(0))])
    itself = branches[1].finish([branches[1].arg(0)])
    large = b.emit("gt", "b1", b.emit("load", "s32", b.const(0, "s32"), attr=0), b.const(100, "s32"))
    chosen = b.emit("cond", "tuple", large, b.arg(0), attr=(negated, itself))
    items = [b.emit("item", dtype, value, attr=k) for dtype, value, k in (("s32", loop, 0), ("f32", loop, 1), ("f32", chosen, 0))]
    program = b.finish(items)
    assert "vector.reduce" not in compile_all({"p": program}, 8).ir
    x = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    compare_all(program, [x], [np.full(96, 6), x * 64, -x], [np.array([6], np.int32)])


def test_engine() -> None:
    program = one("tan", "f32", "f32")
    compiled = compile_all({"p": program}, widths("f32")["machine"])
    assert "kernel_p" in compiled.assembly() and "kernel_p" in compiled.ir
    assert llvm_engine.target() is llvm_engine.target()
    assert llvm_engine.vector_function("no_such_function", "f32", 4) is None
    assert llvm_engine.vector_function("exp", "f32", 3) is None
    with pytest.raises(RuntimeError):
        llvm_engine.compile_ir("declare void @missing()\ndefine void @f() {\n call void @missing()\n ret void\n}", ["f"])
    with pytest.raises(RuntimeError):
        llvm_engine.compile_ir("not LLVM IR", ["f"])


def test_compiling_from_many_threads() -> None:
    x = np.linspace(1, 2, 96, dtype=np.float32)

    def work(k: int) -> float:
        b = P.Builder(("f32",))
        program = b.finish([b.emit("mul", "f32", b.arg(0), b.const(k, "f32"))])
        return float(call(compile_all({"p": program}, 8), "p", program, [x])[0][0])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(32))) == list(range(32))
