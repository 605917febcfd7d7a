"""Eager calls that are kept: found again where nothing changed, and only there."""

from __future__ import annotations

import functools
import gc
import math
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.calls import kept

X = jnp.arange(12.0)
IDS = jnp.arange(12) % 3
WEIGHT = jnp.float32(2)
FACTOR = 3


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls were compiled in the test, or tried."""
    kept.forget()
    made: list[Any] = []
    of_arrays = kept._of_arrays
    monkeypatch.setattr(kept, "_of_arrays", lambda *call: [made.append(call), of_arrays(*call)][1])
    return lambda: len(made)


def test_one_call_is_compiled_once(compiled: Any) -> None:
    for k in range(3):
        got = jp.reduce_by_index(X + k, IDS, 3, lambda a, b: jnp.maximum(a, b))
        np.testing.assert_array_equal(got, np.arange(9.0, 12) + k)
        np.testing.assert_array_equal(jp.scan(X + k, jnp.add), np.cumsum(np.arange(12) + k))
    assert compiled() == 2


def test_captured_numbers_are_looked_at(compiled: Any) -> None:
    for k in (1, 2, 1.0, True):
        np.testing.assert_array_equal(jp.reduce(X, map=lambda x, k=k: x * k), 66 * k)  # a default argument
    for k in (2, 3):
        np.testing.assert_array_equal(jp.reduce(X, map=lambda x: x * k), 66 * k)
    assert compiled() == 6


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, complex])
def test_captured_floats_are_operands(kind: Callable[[float], Any], compiled: Any) -> None:
    for c in (0.5, 2.0, -3.0):
        k = kind(c)
        plain = jax.jit(lambda x, k=k: jp.reduce(x, map=lambda x: x * k))(X)
        for f in (lambda x: x * k, lambda x, k=k: x * k, functools.partial(lambda k, x: x * k, k)):
            got = jp.reduce(X, map=f)
            assert got == 66 * c and (got.dtype, got.weak_type) == (plain.dtype, plain.weak_type)
        hist = jp.genhist(lambda x: (x.astype(jnp.int32) % 2, x * k), X, jp.Bins(2, jnp.add))
        np.testing.assert_array_equal(hist, [30 * c, 36 * c])
    assert compiled() == 4


def test_captured_floats_may_be_wanted(compiled: Any) -> None:
    for c in (0.5, 2.0, -3.0, 2.0):
        for f in (lambda x: x if c > 0 else -x, lambda x: x * (2 if math.isinf(math.exp(c)) else 1), lambda x: [x][int(c * 0)]):
            assert jp.reduce(X, map=f) in (66, -66 if c < 0 else 66)
    assert compiled() == 3 * (1 + 3)  # the attempt, and each number


@pytest.mark.parametrize("kind", [float, np.float32])
def test_floats_of_operators_are_known_once(kind: Any, compiled: Any) -> None:
    """The second number is an operand, as all others from then on."""
    for c in (10.0, 40.0, 10.0, 20.0, 30.0):
        limit = kind(c)
        assert jp.reduce(X, lambda a, b: jnp.minimum(a + b, limit)) == c
        got = jp.reduce_by_index(X, IDS, 3, lambda a, b: jnp.minimum(a + b, limit), identity=0)
        np.testing.assert_array_equal(got, np.minimum([18, 22, 26], c))
    assert compiled() == 4


def test_floats_of_operators_may_be_wanted(compiled: Any) -> None:
    """Where the identity is not known without them, say."""
    for c in (0.0, 1.0, 2.0, 3.0):
        got = jp.reduce_by_index(X, IDS, 4, lambda a, b: a + b * (2 if c > 5 else 1))
        np.testing.assert_array_equal(got, [18, 22, 26, 0])
    assert compiled() == 1 + 1 + 3


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "bfloat16"])
def test_captured_integers_are_operands_from_the_second_on(dtype: str, compiled: Any) -> None:
    x = (X % 5).astype(dtype)
    for k in range(7):
        got = [
            jp.reduce(x, map=lambda x: jnp.where(x == k, x * k, x + k)),
            jp.reduce(x, jnp.maximum, map=lambda x, k=k: x - k if k is not None else x),
            jp.scan(x, lambda a, b: a + b + k),
        ]
        plain = jax.jit(
            lambda x, k=k: [
                jp.reduce(x, map=lambda x: jnp.where(x == k, x * k, x + k)),
                jp.reduce(x, jnp.maximum, map=lambda x: x - k),
                jp.scan(x, lambda a, b: a + b + k),
            ]
        )(x)
        for g, w in zip(got, plain, strict=True):
            assert (g.dtype, g.weak_type) == (w.dtype, w.weak_type)
            np.testing.assert_array_equal(g, w)
    # an integer that a narrow dtype has to hold is looked at each time: it may not fit
    assert compiled() <= (6 if dtype in ("float32", "bfloat16") else 6 + 3 * 7)


def test_captured_integers_may_be_wanted(compiled: Any) -> None:
    table = jnp.arange(10.0)
    for k in range(1, 5):
        got = [
            jp.reduce(X, map=lambda x: x**k),
            jp.reduce(X, map=lambda x: sum(x for _ in range(k))),
            jp.reduce(X, map=lambda x: x * table[k]),
            jp.reduce(X, map=lambda x: x * (k * 2**40 % 7)),
            jp.reduce(X, map=lambda x: jax.lax.fori_loop(0, k, lambda _, v: v + 1, x)),
            jp.reduce(X.reshape(3, 4), axis=0, map=lambda r: r[k - 1]),
            jp.reduce(X, map=lambda x: x if k > 2 else -x),
            jp.scan(X, lambda a, b: a + b, map=lambda x: x * (1 << 40) if k > 4 else x),
        ]
        n = np.arange(12.0, dtype=np.float32)
        want = [(n**k).sum(), n.sum() * k, n.sum() * k, n.sum() * (k * 2**40 % 7), (n + k).sum(), n.reshape(3, 4)[:, k - 1].sum()]
        for g, w in zip(got, [*want, n.sum() if k > 2 else -n.sum(), np.cumsum(n)], strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6)


def test_python_computes_in_double_precision() -> None:
    """With the floats that a function closes over, whatever the arrays' dtype, and wherever it does so."""
    for start in (1.7e9, 1.7e9 + 64):
        for f in (
            lambda x: jax.lax.cond(x > 0, lambda: x * (start - 1.69999999e9), lambda: x),
            lambda x: jax.lax.fori_loop(0, 3, lambda k, y: y + x * (start - 1.69999999e9), x),
            lambda x: jax.nn.relu(x * (start - 1.69999999e9)),
        ):
            assert jp.reduce(X, map=f) == jax.jit(lambda x, f=f: jp.reduce(x, map=f))(X) > 600
            op = lambda a, b, f=f: jnp.maximum(a, b) + 0 * f(a)  # noqa: E731
            np.testing.assert_array_equal(jp.scan(X, op), jax.jit(lambda x, op=op: jp.scan(x, op))(X))
            mine = lambda a, f=f: f(a[0])  # noqa: E731
            np.testing.assert_array_equal(jp.stencil(mine, X), jax.jit(lambda x, f=mine: jp.stencil(f, x))(X))
    for start in (1.7e9, 1.7e9 + 64, 1e40):
        stop = start * (1 + 1e-9)
        f = lambda x: (x - (start - 1.7e9) % 1e30) / (stop - start)  # noqa: E731
        assert jp.reduce(X, map=f) == jax.jit(lambda x: jp.reduce(x, map=f))(X)
        op = lambda a, b: jnp.maximum(a, b + 0 * a * (stop - start))  # noqa: E731
        assert jp.reduce(X, op) == jax.jit(lambda x: jp.reduce(x, op))(X) == 11
        smooth = lambda a: a[-1] * ((start - 1.7e9) % 1e30) + a[1]  # noqa: E731
        np.testing.assert_array_equal(jp.stencil(smooth, X), jax.jit(lambda x: jp.stencil(smooth, x))(X))
    for c in (1 + 2**-11 + 2**-30, 1 - 2**-12 - 2**-30):  # rounded to f32 and from there to f16 it is another number
        f = lambda x: x * c  # noqa: E731
        halves = jnp.ones(3, jnp.float16)
        assert jp.reduce(halves, map=f) == 3 * np.float16(c) == jax.jit(lambda x: jp.reduce(x, map=f))(halves)


def test_a_variable_that_changes_between_calls(compiled: Any) -> None:
    k = 1

    def times(x: Any) -> Any:
        return x * k

    assert jp.reduce(X, map=times) == 66
    k = 5
    assert jp.reduce(X, map=times) == 330
    assert compiled() == 2


def test_a_global_that_changes_between_calls(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_helper(x: Any) -> Any:
        return helper(x)

    for k in (3, 4):
        monkeypatch.setitem(globals(), "FACTOR", k)
        assert jp.reduce(X, map=lambda x: x * FACTOR) == 66 * k
        assert jp.reduce(X, map=by_helper) == 66 * k
    for w in (2.0, 7.0):
        monkeypatch.setitem(globals(), "WEIGHT", jnp.float32(w))
        assert jp.reduce(X, map=lambda x: x * WEIGHT) == 66 * w  # an array: an operand
    assert compiled() == 5


def helper(x: Any) -> Any:
    return x * FACTOR


def test_captured_arrays_are_operands(compiled: Any) -> None:
    for k in range(3):
        table, numbers = jnp.arange(3.0) + k, np.arange(3, dtype=np.float32)
        got = jp.reduce(IDS, map=lambda i: table[i] * numbers[i])
        assert got == 4 * ((1 + k) + 2 * (2 + k))
        numbers[:] = 0
    assert compiled() == 1


def test_numbers_of_captured_arrays_may_be_wanted() -> None:
    table = np.array([2.0, 5.0])
    assert jp.reduce(X, map=lambda x: x * float(table[1])) == 330
    assert jp.reduce(X, map=lambda x: x if table[0] > 3 else 2 * x) == 132
    assert jp.reduce(X, map=lambda x: x * len(range(int(table[0])))) == 132


def test_partials_and_monoids(compiled: Any) -> None:
    def weighted(w: Any, x: Any, power: int = 1) -> Any:
        return w * x**power

    for w in (1.0, 2.0):
        assert jp.reduce(X, map=functools.partial(weighted, jnp.float32(w))) == 66 * w
        assert jp.reduce(X, map=functools.partial(weighted, jnp.float32(w), power=2)) == 506 * w
        clipped = jp.Monoid(lambda a, b: jnp.minimum(a + b, 40), 0)
        assert jp.reduce(X, clipped) == 40
    assert compiled() == 3


def test_identities_are_looked_at(compiled: Any) -> None:
    wrong: Any = functools.partial(jp.reduce_by_index, X[:2], IDS[:2], 3, lambda a, b: a + b * 1.0)
    for identity in (0, 0.0, np.float32(0), jnp.zeros(()), np.zeros(())):
        np.testing.assert_array_equal(wrong(identity=identity), [0, 1, 0])
    assert compiled() == 4  # those of NumPy's two kinds are one


def test_what_cannot_be_known_is_traced_anew(compiled: Any) -> None:
    class Scaled:
        factor = 1

        def __call__(self, x: Any) -> Any:
            return x * self.factor

        def method(self, x: Any) -> Any:
            return x * self.factor

    scaled, held = Scaled(), [1]
    for k in (1, 2):
        scaled.factor, held[0] = k, k
        for f in (scaled, scaled.method, lambda x: scaled.method(x), lambda x: x * held[0]):
            assert jp.reduce(X, map=f) == 66 * k
    assert compiled() == 2  # a list of numbers has a form


def test_inside_transformations() -> None:
    """Concrete arrays beside traced functions: a tracer that is closed over is none of a kept call's."""
    for k in (1.0, 2.0):
        assert jax.jit(lambda k: jp.reduce(X, map=lambda x: x * k))(k) == 66 * k
        assert jax.grad(lambda k: jp.reduce(X, map=lambda x: x * k))(k) == 66
        np.testing.assert_array_equal(jax.vmap(lambda k: jp.reduce(X, map=lambda x: x * k))(jnp.array([k, 3])), [66 * k, 198])
        assert jax.jit(lambda k: k * jp.reduce(X))(k) == 66 * k


def test_rules_of_their_own_are_told_apart_by_what_they_are() -> None:
    """Operators that have ``custom_jvp`` inside are equal from trace to trace, so that eager gradients and batches of them
    compile once; with another rule they are not, though their Programs are; nor where only a rule's own rule is another."""

    def call(op: Any) -> Any:
        (eqn,) = (
            e for e in jax.make_jaxpr(lambda x: jp.reduce_by_index(x, IDS, 3, op, identity=-np.inf))(X).eqns if "call" in e.params
        )
        return eqn.params["call"]

    def doubling(scale: float, then: Any = None) -> Any:
        @jax.custom_jvp
        def double(x: Any) -> Any:
            return 2 * x

        double.defjvp(lambda p, t: ((then or double)(*p), scale * t[0] * (then or double)(p[0] * 0 + 0.5)))
        return double

    def with_rule(scale: float, then: Any = None) -> Any:
        double = doubling(scale, then)
        return lambda a, b: jnp.maximum(double(a), double(b)) / 2

    made = (
        lambda: jnp.logaddexp,
        lambda: lambda a, b: jnp.logaddexp(a, b),
        lambda: lambda a, b: jnp.maximum(a, b) + 0 * (jax.nn.relu(a) - jax.nn.relu6(b)),
        lambda: with_rule(2),
        lambda: with_rule(2, doubling(5)),
    )
    for make in made:
        assert call(make()) == call(make()) and hash(call(make())) == hash(call(make()))
    two, three = with_rule(2), with_rule(3)
    assert call(two) != call(three)
    assert call(with_rule(2, doubling(5))) != call(with_rule(2, doubling(6)))
    assert call(with_rule(2, doubling(5))) != call(with_rule(2))
    for op, want in ((two, 1), (three, 1.5), (two, 1)):
        got = jax.grad(lambda x, op=op: jp.reduce_by_index(x, IDS[:2] * 0, 1, op, identity=-np.inf)[0])(X[:2])
        np.testing.assert_allclose(got, [0, want])


def backwards(scale: float, of_primal: bool = False) -> Any:
    """A function with a ``custom_vjp``, whose cotangent is scaled, or is multiplied by the argument."""
    double = jax.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (double(x), x), lambda x, out: ((x if of_primal else scale) * out,))
    return double


def test_backward_rules_are_told_apart_by_what_they_are() -> None:
    def calls(rule: Any) -> list[Any]:
        functions = (lambda x: jp.reduce(x, map=rule)), (lambda x: jp.scan(x, lambda a, b: rule(a) + b))
        return [e.params["call"] for f in functions for e in jax.make_jaxpr(f)(X).eqns if "call" in e.params]

    assert calls(backwards(2)) == calls(backwards(2)) and calls(backwards(0, True)) == calls(backwards(0, True))
    assert len(calls(backwards(2))) == 2
    for one, other in ((backwards(2), backwards(3)), (backwards(2), backwards(2, True))):
        assert all(map(operator.ne, calls(one), calls(other)))
    for scale in (2, 3, 2):
        rule = backwards(scale)
        got = jax.grad(lambda x, rule=rule: jp.reduce(x, map=rule))(X)
        np.testing.assert_array_equal(got, np.full_like(X, scale))
    np.testing.assert_array_equal(jax.grad(lambda x: jp.reduce(x, map=backwards(0, True)))(X), X)


CLIPPED: dict[str, Callable[[Any], Any]] = {
    "backwards": lambda x: jp.genhist(lambda i, v: (i, backwards(3)(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "backwards in a map": lambda x: jp.scan(x, map=lambda v: jax.nn.relu(backwards(3, True)(v))),
    "genhist": lambda x: jp.genhist(lambda i, v: (i, jax.nn.relu(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "by index": lambda x: jp.reduce_by_index(x, IDS, 3, lambda a, b: jax.nn.relu(a + b), identity=0),
    "map": lambda x: jp.reduce(x, map=lambda v: jax.nn.silu(v) * jax.nn.relu6(v)),
    "reduce": lambda x: jp.reduce(x, lambda a, b: jax.nn.relu(a + b)),
    "scan": lambda x: jp.scan(x, lambda a, b: jax.nn.relu(a) + b, map=lambda v: jax.nn.relu(v)),
    "segments": lambda x: jp.segment_reduce(
        x, jp.Offsets(jnp.array([0, 5, 12])), jp.Monoid(lambda a, b: jax.nn.relu(jnp.logaddexp(a, b)), -np.inf)
    ),
    "stencil": lambda x: jp.stencil(lambda a: jax.nn.relu(a[-1] + a[1]), x),
    "captured": lambda x: jp.reduce(X, map=lambda v: jax.nn.relu(v * x[1])),
}
EAGERLY: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, -X])),
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.stack([X, -X])),
}


@pytest.mark.parametrize("transformation", EAGERLY)
@pytest.mark.parametrize("name", CLIPPED)
def test_eager_transformations_of_rules_compile_once(name: str, transformation: str, caplog: pytest.LogCaptureFixture) -> None:
    if name.startswith("backwards") and transformation == "jvp":
        pytest.skip("JAX has none of a custom_vjp")
    run = lambda: jax.tree.leaves(EAGERLY[transformation](CLIPPED[name]))  # noqa: E731
    first = run()
    run()
    with jax.log_compiles():
        again = run()
        for got, want in zip(again, first, strict=True):
            np.testing.assert_array_equal(got, want)
        assert "Finished XLA compilation" not in caplog.text
        jax.jit(lambda x: x + len(first))(X)
    assert "Finished XLA compilation" in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_eager_histograms_are_compiled_for_no_range(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    """Their edges are those of ``jax.numpy``, and one program makes all of a kind."""
    x = X.astype(dtype)
    ranges: list[Any] = [(0.1, 7.3), (0.7 + 2**-13, 3.3), [np.float64(1.7), 2], np.array([0.1, 9.7]), (jnp.float32(0.3), 5), None]
    for call, plain in ((jp.histogram, jnp.histogram), (jp.histogram_bin_edges, jnp.histogram_bin_edges)):
        for r in ranges:
            for got, want in zip(jax.tree.leaves(call(x, 7, r)), jax.tree.leaves(plain(x, 7, r)), strict=True):
                np.testing.assert_array_equal(got, want)
                assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)
    with jax.log_compiles():
        for lo in (0.3, 1.1, 2):
            jp.histogram(x, 7, (lo, 9.9))
            jp.histogram(x + x.dtype.type(1), 7, None)
    assert "Finished XLA compilation of jit(_" not in caplog.text
    for wrong in ("ab", (1.0, 2.0, 3.0), 5, (1j, 2.0), (None, 1.0)):
        with pytest.raises((TypeError, ValueError)) as said:
            jnp.histogram(x, 7, wrong)
        with pytest.raises(said.type) as ours:
            jp.histogram(x, 7, wrong)
        assert str(ours.value) == str(said.value)


def test_types_of_results(x64: None) -> None:
    for x in (X, np.arange(12), X.astype(jnp.bfloat16), jnp.asarray(3.0) * jnp.ones(4)):
        got, plain = jp.scan(x), jax.jit(jp.scan)(x)
        assert (got.dtype, jax.typeof(got).weak_type) == (plain.dtype, jax.typeof(plain).weak_type)
    assert jp.reduce(X, init=2.5) == 68.5
    with pytest.raises(ValueError, match="must fit"):
        jp.reduce(jnp.arange(3, dtype=jnp.uint8), init=300)


def test_precision_is_looked_at(compiled: Any) -> None:
    x = np.arange(3)
    assert jp.reduce(x).dtype == jnp.int32
    with jax.enable_x64(True):
        assert jp.reduce(x).dtype == jnp.int64


def test_errors_stay_what_they_are() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="op must keep"):
            jp.reduce(X, lambda a, b: (a + b).astype(jnp.int32))
        with pytest.raises(TypeError):
            jp.reduce(X, unknown=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            jp.reduce(X, jnp.add, op=jnp.add)  # type: ignore[misc]
        with pytest.raises(TypeError):
            jp.reduce(X, jnp.add, 0)  # type: ignore[misc]  # an axis is a keyword
        with pytest.raises(TypeError, match=r"jax\.lax\.scan"):
            jp.scan(X, jnp.add, 0)


def test_a_warning_names_the_line_of_the_call() -> None:
    def fallback(a: Any, b: Any) -> Any:
        return a + b + 0 * jnp.linalg.qr(jnp.ones((2, 2)) * a)[1][0, 0]

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        jp.scan(X, fallback)
    assert [w.filename for w in seen] == [__file__] * len(seen) and seen


def test_quick_keys_tell_calls_apart(compiled: Any) -> None:
    """What has the same hash, a type that differs, a place that differs; and errors stay errors."""
    x = X.reshape(3, 4)
    for _ in range(2):
        np.testing.assert_array_equal(jp.reduce(x, jnp.add, axis=0), [12, 15, 18, 21])
        np.testing.assert_array_equal(jp.reduce(x, jnp.add, axis=1), [6, 22, 38])
        np.testing.assert_array_equal(jp.reduce(x, jnp.maximum, axis=1), [3, 7, 11])
        np.testing.assert_array_equal(jp.reduce(np.asarray(x), jp.monoids.max, axis=1), [3, 7, 11])
        np.testing.assert_array_equal(jp.reduce(x, jnp.add, axis=(0, 1)), 66)
        np.testing.assert_array_equal(jp.reduce((x, jp.positions), jp.monoids.argmax, axis=1)[1], [3, 3, 3])
        np.testing.assert_array_equal(jp.reduce((x, -x), jp.monoids.max, axis=1)[1], [0, -4, -8])
        np.testing.assert_array_equal(jp.reduce((x, -x), jp.monoids.max, axis=(1,))[0], [3, 7, 11])
        assert jp.reduce(x, axis=None, keepdims=True).shape == (1, 1)
        assert jp.cumsum(x, 1, dtype=jnp.int32).dtype == jnp.int32
        assert jp.cumsum(x, 1, dtype=jnp.float32).dtype == jnp.float32
        with pytest.raises(TypeError, match="keepdims must be True or False"):
            jp.reduce(x, axis=None, keepdims=1)
        with pytest.raises(TypeError, match="xs"):
            jp.reduce(np.array([None, 1]), jp.monoids.max, axis=1)
        with pytest.raises(ValueError, match="num_segments must be given"):
            jax.jit(lambda i: jp.segment_reduce(X, i))(IDS)
    assert kept._quick


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_beside_arrays_are_operands(axis: int, compiled: Any) -> None:
    x = jnp.ones((5, 4))
    for factor in (0.5, 2.0, -3.0):
        y = jp.linear_recurrence(factor, x, axis=axis)
        np.testing.assert_allclose(np.moveaxis(y, axis, 0)[1], 1 + factor)
    assert compiled() == 1


def test_numbers_that_are_known_are_no_operands() -> None:
    x = jnp.ones(5)
    for fill in (0.5, 2.0, 0.5, 2.0, 0.5):
        y = jp.stencil(lambda v: v[-1], x, boundary="constant", fill_value=fill)
        np.testing.assert_array_equal(y, [fill, 1, 1, 1, 1])


def test_calls_that_are_made_once_are_not_kept_for_long(compiled: Any, monkeypatch: Any) -> None:
    """What is made anew for each call does not pile up; what is called again is kept, however much else was called since."""
    monkeypatch.setattr(kept, "MOST_ONCE", 2)
    monkeypatch.setattr(kept, "MOST", 3)

    def held(*functions: int) -> list[int]:
        for tag in map(str, functions):
            np.testing.assert_array_equal(jp.reduce(X, map=lambda x: x * int(tag)), 66 * int(tag))
        return [entry.form[1][1][4][0][1] for entry in (*kept._once, *kept._again) if entry.compiled is not None]

    assert held(2, 3, 4, 5) == ["4", "5"]
    assert held(2, 3, 6, 7) == ["6", "7", "2", "3"]  # called twice by now
    assert held(8, 9, 2) == ["8", "9", "3", "2"]
    assert held(9, 10, 11, 9) == ["10", "11", "3", "2", "9"]
    assert held(10) == ["11", "2", "9", "10"]
    assert kept._entry.cache_info().currsize == 10


def test_arrays_are_not_kept_alive() -> None:
    x, ids = np.arange(5000.0, dtype=np.float32), np.zeros(5000, np.int32)
    before = sys.getrefcount(x), sys.getrefcount(ids)
    for _ in range(2):
        jax.block_until_ready(jp.reduce_by_index(x, ids, 1, jnp.maximum))
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(ids)) == before


EAGER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "reduce": lambda f: lambda x: jp.reduce(x, map=f),
    "by an operator": lambda f: lambda x: jp.reduce(x, lambda a, b: a + b + 0 * f(b), identity=0),
    "scan": lambda f: lambda x: jp.scan(x, map=f),
    "genhist": lambda f: lambda x: jp.genhist(lambda i, v: (i, f(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "segments": lambda f: lambda x: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 5, 12])), map=f),
    "stencil": lambda f: lambda x: jp.stencil(lambda a: f(a[-1]) * a[1], x),
    "captured": lambda f: lambda x: jp.reduce(X, map=lambda v: f(v * x[1])),
}


@pytest.mark.parametrize("transformation", EAGERLY)
@pytest.mark.parametrize("name", EAGER)
def test_eager_transformations_trace_a_function_twice_at_most(name: str, transformation: str) -> None:
    """The second time to find out whether numbers in functions are the same."""
    traces = 0

    def f(v: Any) -> Any:
        nonlocal traces
        traces += 1
        return v * v

    call = EAGER[name](f)
    run = lambda: jax.tree.leaves(EAGERLY[transformation](call))  # noqa: E731
    first, _ = run(), run()
    seen = traces
    for got, want, jitted in zip(run(), first, jax.jit(run)(), strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(got, jitted, rtol=1e-5)
    run()
    assert traces > seen  # by jit
    seen = traces
    run()
    assert traces == seen


def test_tracers_of_jit_leave_nothing_behind() -> None:
    """Whether tracers are of ``jit`` is found without an equation, or a transfer that a user forbids."""
    for call in (jp.reduce, jp.cumsum, jp.scan):
        assert len(jax.make_jaxpr(call)(X).eqns) == 1
    with jax.transfer_guard("disallow_explicit"):
        jax.jvp(jp.reduce, (X,), (X,))
        jax.vmap(jp.cumsum)(jnp.stack([X, X]))
