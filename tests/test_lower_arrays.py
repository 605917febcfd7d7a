"""Programs made of jaxprs, against the functions run by JAX: small arrays, control flow, captured arrays, lanes, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from lowering import FLOATS, INTS, check, ops, program_of, run

from jaxprims.ir.program import Program, dtype_name
from jaxprims.tracing.lower import MAX_INSTRUCTIONS, MAX_SLOTS, Unsupported, hoist, lower_elementwise, to_program

pytestmark = pytest.mark.usefixtures("x64")


# --- small arrays ----------------------------------------------------------------------------------------------------


RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(6, 3, 4)).astype(np.float32)
VECTOR = RNG.normal(size=(6, 5)).astype(np.float32)
VECTOR[0, 2], VECTOR[1, :] = np.nan, -0.0


def test_moving() -> None:
    def f(x: Any) -> Any:
        joined = jnp.concatenate([x, x * 2], 1), jnp.stack([x, x]), jnp.tile(x, (2, 1)), jnp.zeros((0, 2))
        parts = x[::-1, 1:3], x[:, None, 1], jnp.split(x, 2, 1), jnp.unstack(x)
        padded = lax.pad(x, jnp.float32(7), [(1, 2, 1), (-1, 1, 0)]), jnp.broadcast_to(x[0], (2, 4)), jnp.roll(x, 1)
        return x.T, x.reshape(2, 6), joined, parts, padded, x + jnp.arange(4), jnp.eye(3) @ x, jnp.where(x > 0, x, 0.0)

    check(f, MATRIX)


def test_reductions() -> None:
    def f(x: Any) -> Any:
        numbers = x.sum(), x.sum(0), x.prod(1), x.max(), x.min(0), x.mean(), x.var(), x[:, :0].sum(), (x > 0).sum()
        logic = (x > 0).any(1), (x > 0).all(), (x > 0).max(0), lax.reduce_xor(x.astype(int), (1,))
        running = jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True), lax.cumlogsumexp(x, 1)
        return numbers, logic, running, x.argmax(0), x.argmin(1), jnp.linalg.norm(x), jax.nn.softmax(x), jax.nn.logsumexp(x, 0)

    check(f, MATRIX, eps=1e-5)
    check(lambda v: (v.argmax(), v.argmin(), v.max(), v.min()), VECTOR)
    check(lambda v: (v.sum(), lax.cumsum(v)[:1]), VECTOR[1:2], exact=True)


def test_products() -> None:
    def f(x: Any) -> Any:
        einsums = jnp.einsum("ij,ik->ijk", x, x), jnp.einsum("ij,ij->i", x, x)
        return x @ x.T, x[0] @ x[1], jnp.outer(x[0], x[1]), jnp.vdot(x, x), einsums

    check(f, MATRIX, eps=1e-5)
    check(lambda x: x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16), MATRIX, eps=4e-2)
    check(lambda x: (x * (1 + 1j)) @ (x.T - 2j), MATRIX, eps=1e-5)
    check(lambda x: (10 * x).astype(int) @ (10 * x).astype(int).T, MATRIX)
    check(lambda x: jnp.linalg.det(x[:, :3]), MATRIX, eps=1e-5)
    check(lambda x: jnp.cross(x[0, :3], x[1, :3]), MATRIX, eps=1e-5)


def test_sort() -> None:
    check(lambda v: (jnp.sort(v), jnp.argsort(v), jnp.sort(v)[::-1], jnp.median(v)), VECTOR)
    check(lambda v: lax.sort((v % 2, v, jnp.arange(5)), num_keys=2), RNG.integers(0, 9, (6, 5)))
    check(lambda x: jnp.sort(x, axis=0), MATRIX)


def test_top_k() -> None:
    """In IEEE's total order, which is not that of a sort."""
    v = np.array([[0, -0.0, 3, np.nan, 3], [-np.nan, np.inf, -0.0, 0, -np.inf]], np.float32)
    check(lambda v: (lax.top_k(v, 3), lax.top_k(v.astype(jnp.bfloat16), 5), lax.top_k(v, 0)), v)
    check(lambda v: (lax.top_k(v, 4), lax.top_k(v.astype(jnp.uint8), 2)), RNG.integers(-3, 4, (6, 5)))
    check(lambda x: lax.top_k(x, 2), MATRIX)


INDEX = np.array([-100, -3, -1, 0, 1, 2, 3, 4, 5, 100], np.int32)


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_computed_index(dtype: str) -> None:
    v = np.tile(np.arange(5.0), (len(INDEX), 1))

    def f(v: Any, i: Any) -> Any:
        return v[i], lax.dynamic_slice(v, (i,), (2,)), v.at[i].get(mode="fill"), v.at[i].get(mode="clip")

    check(f, v, INDEX.astype(dtype))

    def g(v: Any, i: Any) -> Any:
        return v.at[i].set(9.0), v.at[i].add(2.0, mode="drop"), v.at[i].mul(2.0), v.at[i].max(3.0), v.at[i].min(1.0)

    check(g, v, INDEX.astype(dtype))
    check(lambda v, i: (lax.dynamic_update_slice(v, v[:2] * 10, (i,)), v.at[i].set(9.0, mode="clip")), v, INDEX.astype(dtype))


def test_gather_and_scatter() -> None:
    rows, columns = np.meshgrid(INDEX, INDEX)
    i, j = rows.ravel()[::3], columns.ravel()[::3]
    x = np.tile(MATRIX[:1], (len(i), 1, 1))

    def f(x: Any, i: Any, j: Any) -> Any:
        both = jnp.stack([i, j])
        one = x[i, j], x[:, j], x[i], x.at[i, j].get(mode="fill", fill_value=5)
        two = x[both], jnp.take(x, both, axis=1), x[jnp.array([0, 2]), both], jnp.take_along_axis(x, both[:, None] % 3, axis=0)
        return one, two, x.at[both].add(1.0), x.at[:, both].set(2.0)

    check(f, x, i, j)

    def batched(x: Any, i: Any, j: Any) -> Any:
        three = jnp.stack([i, j, i])
        return jax.vmap(lambda r, k: (lax.dynamic_slice(r, (k,), (2,)), r.at[k].add(1.0), r[k]))(x, three)

    check(batched, x, i, j)
    check(lambda x, i, j: (x * 1j)[i, j], x, i, j)


# --- control flow ----------------------------------------------------------------------------------------------------


def test_counted_loops() -> None:
    x = np.array([0.0, 0.5, -1.25, 3.0])
    assert "loop" not in ops(check(lambda x: lax.fori_loop(0, 4, lambda i, c: c * x + i, 1.0), x))
    assert "loop" in ops(check(lambda x: lax.fori_loop(0, 200, lambda i, c: 0.5 * c + x * i, 1.0), x))
    assert "loop" in ops(check(lambda x: lax.fori_loop(0, 200, lambda i, c: (c[1], c[0] + i + x), (1.0, x)), x))

    def f(v: Any) -> Any:
        return lax.scan(lambda c, y: (c + y, c * y), 0.0, v), lax.scan(lambda c, y: (c - y, y), 0.0, v, reverse=True)

    check(f, VECTOR, eps=1e-5)
    check(lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, None), x, None, length=0), x)
    check(lambda x: lax.map(lambda y: y * x, jnp.arange(3.0)), x)
    # nested, with an array carried along and indexed by the loop's counter
    check(lambda v: lax.fori_loop(0, 5, lambda i, a: a.at[i].set(a[i - 1] + i), v), VECTOR, eps=1e-5)

    def nested(x: Any) -> Any:
        return lax.fori_loop(0, 60, lambda i, c: lax.fori_loop(0, 70, lambda j, d: d * 0.5 + x * (i - j), c), x)

    assert ops(check(nested, x, eps=1e-12)).count("loop") == 2


def test_long_loops_over_arrays() -> None:
    v = RNG.normal(size=(2, 100))

    def body(c: Any, y: Any) -> Any:
        for _ in range(25):
            c = jnp.sin(c + y)
        return c, c

    for reverse in (False, True):
        p = check(lambda v, r=reverse: lax.scan(body, 0.0, v, reverse=r), v, eps=1e-12)
        assert "loop" in ops(p)


def test_while() -> None:
    def collatz(n: Any) -> Any:
        def step(s: Any) -> Any:
            return jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1

        return lax.while_loop(lambda s: s[0] > 1, step, (n, 0))[1]

    check(collatz, np.array([0, 1, 7, 27]))
    check(lambda v: lax.while_loop(lambda a: a.sum() < 50, lambda a: a + jnp.abs(v) + 1, v), np.ones((1, 3)))
    check(lambda x, y: lax.while_loop(lambda c: c < y, lambda c: c + x, 0.0), np.array([0.5, 2.0]), np.array([3.0, 7.0]))


def test_cond() -> None:
    x, i = np.array([0.3, -2.0, 5.0, 1.0]), np.array([0, 1, 2, 7])
    assert ops(check(lambda x: lax.cond(x > 0, lambda: x, lambda: -x), x)) == ["gt", "neg", "select"]

    def looping(a: Any) -> Any:
        return lax.fori_loop(0, 99, lambda i, c: 0.9 * c + a, a)

    assert "cond" in ops(check(lambda x: lax.cond(x > 0, looping, lambda a: a / 3, x), x))
    branches = [lambda a: a, lambda a: a / 3, lambda a: lax.pow(a, 3.0) + 1, jnp.sin]
    assert "cond" in ops(check(lambda i, x: lax.switch(i, branches, x), i, x))
    assert ops(check(lambda x: lax.switch(1, branches, x), x)) == ["div"]


# --- captured arrays -------------------------------------------------------------------------------------------------


TABLE = RNG.normal(size=(7, 5)).astype(np.float32)


def test_captured_arrays() -> None:
    table, z = jnp.asarray(TABLE), jnp.asarray(TABLE[:, :2] + 1j * TABLE[:, 2:4])
    i, j = (a.ravel() for a in np.meshgrid(INDEX, INDEX))

    def f(i: Any, j: Any) -> Any:
        views = table.T[j, i], table[::-1, ::2][i, j % 3], table[1:, None][i, 0, j]
        return table[i, j], table[2, 3], table[i], views, table.at[i, j].get(mode="fill"), z[i, j]

    program = check(f, i, j)
    assert "load" in ops(program)
    assert len(program.body) < 150
    check(lambda i: lax.dynamic_slice(table, (i, i), (2, 3)), INDEX)
    check(lambda i: jnp.take(table, jnp.stack([i, 2 * i]), axis=0, mode="clip"), INDEX)
    check(lambda i: lax.fori_loop(0, 300, lambda k, c: c * 0.5 + table[(i + k) % 7, k % 5], 0.0), INDEX, eps=1e-5)
    check(lambda i: lax.scan(lambda c, row: (c + row[i], None), 0.0, table)[0], INDEX, eps=1e-5)
    check(lambda x: jnp.searchsorted(jnp.sort(table.ravel()), x), TABLE[:, 0])
    check(lambda x: jnp.interp(x, jnp.sort(table[:, 0]), table[:, 1]), TABLE[:, 2], eps=1e-5)
    check(lambda x: x * jnp.asarray(TABLE[0]), TABLE)
    check(lambda i: (table > 0)[i, i], INDEX)
    check(lambda i: jnp.arange(1000.0)[i] + jnp.linspace(0, 1, 100)[i], INDEX)
    program = check(lambda x: jnp.searchsorted(jnp.linspace(-1, 1, 1000, dtype=x.dtype), x), TABLE[:, 0])
    assert "load" in ops(program) and len(program.body) < 500


def test_large_captured_array_is_only_loaded_where_it_is_read() -> None:
    large = jnp.zeros((1 << 20, 3), jnp.float32)
    program, uniforms = program_of(lambda i: large[i, 1] + jnp.sin(large)[3, i] + large[5].sum(), 3)
    assert ops(program).count("load") <= 5
    assert len(uniforms) <= 3


def test_positions_past_32_bits() -> None:
    """A captured array of 3 * 2^30 numbers, which is never made."""

    def outer(large: Any, i: Any) -> Any:
        _, inner = hoist(jax.make_jaxpr(lambda k: large[k] + large[-1] + large.reshape(-1, 3)[k, 1])(i))
        programs.append(to_program(inner.jaxpr))
        return i

    programs: list[Program] = []
    jax.eval_shape(outer, jax.ShapeDtypeStruct((3 << 30,), jnp.int8), jax.ShapeDtypeStruct((), jnp.int64))
    (program,) = programs
    loads = [i for i in program.body if i.op == "load"]
    assert [program.body[i.operands[0]].dtype for i in loads] == ["s64"] * 3


def test_hoist() -> None:
    table = jnp.asarray(TABLE)

    def f(x: Any) -> Any:
        weights = jax.jit(lambda t: jax.nn.softmax(t).sum(0))(table)
        return jax.jit(lambda x: x * jnp.exp(weights)[2] + weights.sum())(x)

    closed = jax.make_jaxpr(f)(np.float32(1))
    pre, inner = hoist(closed)
    assert ops(to_program(inner.jaxpr)) == ["load", "mul", "load", "add"]
    want = f(np.float32(2))
    (got,) = jaxpr_as_fun(ClosedJaxpr(inner.jaxpr, pre(*closed.consts)))(np.float32(2))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    # nothing that needs no captured array is hoisted
    closed = jax.make_jaxpr(lambda x: x * jnp.arange(4.0))(1.0)
    pre, inner = hoist(closed)
    assert pre(*closed.consts) == []


def test_captured_tracers() -> None:
    def outer(t: Any, i: Any) -> Any:
        closed = jax.make_jaxpr(lambda k: jnp.sort(t)[k] * t.max())(i)
        pre, inner = hoist(closed)
        programs.append(to_program(inner.jaxpr))
        return pre(*closed.consts)

    programs: list[Program] = []
    t = np.array([3.0, 1.0, 2.0])
    consts = [np.ravel(c) for c in jax.jit(outer)(t, 0)]
    assert run(programs[0], [range(3)], consts)[0].tolist() == [3.0, 6.0, 9.0]
    jax.vmap(outer, (0, None))(np.stack([t, t]), 0)
    jax.jvp(lambda t: outer(t, 0), (t,), (t,))


# --- vectorised operators --------------------------------------------------------------------------------------------


def test_lower_elementwise() -> None:
    shape = (300, 2)

    def lane(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Program | None:
        return lower_elementwise(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)).jaxpr, shape)

    both = (shape, shape)
    add = lane(lambda a, b: a + b, *both)
    assert add is not None and ops(add) == ["add"] and add.params == ("f32", "f32")
    where = lane(lambda a, b: jnp.where(a > b, a, jnp.clip(b, 0, 1)), *both)
    assert where is not None and ops(where) == ["gt", "max", "min", "select"]
    scaled = lane(lambda a, s: a * jnp.broadcast_to(jnp.sin(s), shape) + 1, shape, ())
    assert scaled is not None and ops(scaled) == ["sin", "mul", "add"]
    product = lane(lambda a, b: a * b, *both, dtype=jnp.complex64)
    assert product is not None and product.params == ("f32",) * 4
    newton = lane(lambda a, b: lax.fori_loop(0, 3, lambda i, x: 0.5 * (x + a / x), b), *both)
    assert newton is not None and ops(newton).count("div") == 3
    assert lane(lambda a, b: a[::-1] + b, *both) is None
    assert lane(lambda a, b: a + b.sum(), *both) is None
    assert lane(lambda a, b: a + jnp.cumsum(b, 0), *both) is None
    assert lane(lambda a, b: a + b[:1], *both) is None
    assert lane(lambda a: a + jnp.arange(2.0), shape) is None
    assert lane(lambda a, b: a + b, (300, 1), shape) is None


# --- what cannot be compiled -----------------------------------------------------------------------------------------


def test_unsupported() -> None:
    def reason(f: Callable[..., Any], *args: Any) -> Unsupported:
        with pytest.raises(Unsupported) as caught:
            program_of(f, *args)
        return caught.value

    assert reason(lambda x: jnp.fft.fft(x * jnp.ones(4)), 1.0).primitive == "fft"
    assert reason(lambda x: jnp.linalg.cholesky(x * jnp.eye(3)), 1.0).primitive == "cholesky"
    assert "callback" in reason(lambda x: jax.pure_callback(lambda y: y, x, x), 1.0).primitive
    assert "generator" in reason(lambda x: x * jax.random.uniform(jax.random.key(x, impl="rbg")), 1).reason
    assert "print" in reason(lambda x: (jax.debug.print("{}", x), x)[1], 1.0).primitive
    assert "print" in reason(jax.jit(lambda x: (jax.debug.print("{}", x), x)[1]), 1.0).primitive
    assert "float8" in reason(lambda x: x.astype(jnp.float8_e4m3fn), 1.0).reason
    big = reason(lambda x: jnp.zeros(5000).at[3].set(x), 1.0)
    assert "5000" in big.reason and str(MAX_SLOTS) in big.reason
    many = reason(lambda x: jnp.sin(jnp.cos(x * jnp.arange(4000.0) + 1)) * jnp.tan(x + jnp.arange(4000.0)), 1.0)
    assert str(MAX_INSTRUCTIONS) in many.reason
    assert "5000" in reason(lambda x: x.sum(), np.zeros(5000)).reason


def test_dtype_names_cover_scalars() -> None:
    for dtype in itertools.chain(["bool"], INTS, FLOATS):
        assert dtype_name(jnp.dtype(dtype))


@pytest.mark.parametrize(
    ("apply", "dtype"),
    [
        (jnp.exp, "complex64"),
        (lambda v: 2 * v + 1, "int32"),
        (lambda v: jnp.where(v > 0, -v, v * v), "float32"),
        (jnp.conj, "complex64"),
    ],
)
def test_at_apply(apply: Callable[..., Any], dtype: str) -> None:
    """The function of ``.at[].apply`` is the scatter's computation: once for each index, wherever it is."""
    x = np.arange(12).reshape(4, 3).astype(dtype) - 4
    x = x if dtype == "int32" else x / x.dtype.type(8)
    i = np.array([0, 2, 5, -1], np.int32)
    typed = lambda v: apply(v).astype(v.dtype)  # noqa: E731
    check(lambda a, k: a.at[k].apply(typed), x, i)
    check(lambda a, k: a.at[1].apply(typed) + k.astype(a.dtype), x, i)
    check(lambda a, k: a.at[jnp.array([0, 2])].apply(typed) + k.astype(a.dtype), x, i)
