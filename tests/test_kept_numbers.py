"""Numbers that functions of eager calls capture: operands, or known, as what is made of them wants."""

from __future__ import annotations

import enum
import functools
import math
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

X = jnp.arange(12.0)
IDS = jnp.arange(12) % 3
WEIGHT = jnp.float32(2)
FACTOR = 3


def test_captured_numbers_are_looked_at(compiled: Any) -> None:
    for k in (1, 2, 1.0, True):
        np.testing.assert_array_equal(jp.reduce(X, map=lambda x, k=k: x * k), 66 * k)  # a default argument
    for k in (2, 3):
        np.testing.assert_array_equal(jp.reduce(X, map=lambda x: x * k), 66 * k)
    assert compiled() == 6


@pytest.mark.cover(3)
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
@pytest.mark.cover(1)
@pytest.mark.dear
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


@pytest.mark.dear
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


@pytest.mark.dear
def test_python_computes_in_double_precision() -> None:
    """With the floats that a function closes over, whatever the arrays' dtype, and wherever it does so."""
    for start in (1.7e9, 1.7e9 + 64):
        for f in (
            lambda x: jax.lax.cond(x > 0, lambda: x * (start - 1.69999999e9), lambda: x),
            lambda x: jax.lax.fori_loop(0, 3, lambda k, y: y + x * (start - 1.69999999e9), x),
            lambda x: jax.nn.relu(x * (start - 1.69999999e9)),
        ):
            op = lambda a, b, f=f: jnp.maximum(a, b) + 0 * f(a)  # noqa: E731
            mine = lambda a, f=f: f(a[0])  # noqa: E731
            together = jax.jit(lambda x, f=f, op=op, mine=mine: (jp.reduce(x, map=f), jp.scan(x, op), jp.stencil(mine, x)))
            total, scanned, cells = together(X)
            assert jp.reduce(X, map=f) == total > 600
            np.testing.assert_array_equal(jp.scan(X, op), scanned)
            np.testing.assert_array_equal(jp.stencil(mine, X), cells)
    for start in (1.7e9, 1.7e9 + 64, 1e40):
        stop = start * (1 + 1e-9)
        f = lambda x: (x - (start - 1.7e9) % 1e30) / (stop - start)  # noqa: E731
        op = lambda a, b: jnp.maximum(a, b + 0 * a * (stop - start))  # noqa: E731
        smooth = lambda a: a[-1] * ((start - 1.7e9) % 1e30) + a[1]  # noqa: E731
        total, most, cells = jax.jit(lambda x: (jp.reduce(x, map=f), jp.reduce(x, op), jp.stencil(smooth, x)))(X)
        assert jp.reduce(X, map=f) == total
        assert jp.reduce(X, op) == most == 11
        np.testing.assert_array_equal(jp.stencil(smooth, X), cells)
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


@pytest.mark.dear
def test_what_modules_and_classes_hold_may_change_between_calls() -> None:
    """Numbers, arrays and functions, of modules of modules too, read in functions inside functions and through helpers."""

    class Settings:
        scale: Any = 0.0
        table: Any = np.zeros(2000)

        @staticmethod
        def static(x: Any) -> Any:
            raise NotImplementedError

        @classmethod
        def own(cls, x: Any) -> Any:
            return x * cls.scale

    settings, package = types.ModuleType("settings"), types.ModuleType("package")
    vars(package).update(settings=settings, Settings=Settings)

    def by_helper(x: Any) -> Any:
        return package.settings.scaled(x)

    readers: dict[str, Any] = {
        "a class": lambda x: x * Settings.scale,
        "a module": lambda x: x * settings.scale,
        "a module of a module": lambda x: x * package.settings.scale,
        "a class of a module": lambda x: x * package.Settings.scale,
        "a function": lambda x: settings.scaled(x),
        "a helper": lambda x: by_helper(x),
        "a static method": lambda x: Settings.static(x),
        "a class method": lambda x: Settings.own(x),
        "an array": lambda x: x * settings.weight[1],
        "a large array": lambda x: x * Settings.table[1],
        "inside": lambda x: jax.lax.cond(x > 0, lambda y: y * settings.scale, lambda y: y * Settings.scale, x),
    }
    for k in (2, 3.0, np.float32(5), 7):
        scaled: Any = eval(f"lambda x: x * {k}")  # another function each time, as of a module that was loaded again
        weight: Any = jnp.arange(2.0) if k == 2 else np.arange(2.0, dtype=np.float32)
        vars(settings).update(scale=k, scaled=scaled, weight=weight * k)
        Settings.scale, Settings.static = k, scaled
        Settings.table[1] = k
        for name, f in readers.items():
            assert jp.reduce(X, map=f) == 66 * k, name
            assert jp.scan(X, jnp.maximum, map=f)[-1] == 11 * k, name


class Held:
    """What functions read in other ways than by its name."""

    scale: Any = 1.0

    @property
    def half(self) -> Any:
        return Held.scale / 2

    @staticmethod
    def scaled(x: Any) -> Any:
        return x * Held.scale


class Beside:
    held = Held


held = types.ModuleType("held")


def by_argument(of: Any, x: Any) -> Any:
    return x * of.scale


def by_attribute(x: Any) -> Any:
    return x * by_attribute.scale  # type: ignore[attr-defined]


@functools.wraps(jnp.negative)
def of_no_library(x: Any) -> Any:
    return x * Held.scale


def by_another_name(x: Any) -> Any:
    other = Held
    return x * other.scale


def by_another_name_inside(x: Any) -> Any:
    other = held
    return (lambda y: y * other.scale)(x)


def by_another_name_of_what_is_read(x: Any) -> Any:
    other = Beside.held
    return x * other.scale


HELD: dict[str, Any] = {
    "another name": by_another_name,
    "another name inside": by_another_name_inside,
    "another name of what is read": by_another_name_of_what_is_read,
    "an argument": lambda x: by_argument(Held, x),
    "a module as an argument": lambda x: by_argument(held, x),
    "a default": lambda x: (lambda y, of=Held: y * of.scale)(x),
    "an instance": lambda x: x * Held().scale,
    "a property": lambda x: x * Held().half * 2,
    "a method of an instance": lambda x: Held().scaled(x),
    "its name": lambda x: x * getattr(Held, "scale"),  # noqa: B009
    "a table": lambda x: x * vars(held)["scale"],
    "an attribute of itself": by_attribute,
    "an attribute of another function": lambda x: x * by_attribute.scale,  # type: ignore[attr-defined]
    "the name of a library's": of_no_library,
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_may_change_however_it_is_read(name: str) -> None:
    for k in (2.0, 3.0, 3.0, 5):
        Held.scale = k
        vars(held)["scale"] = k
        vars(by_attribute)["scale"] = k
        assert jp.reduce(X, map=HELD[name]) == 66 * k
        assert jp.scan(X, jnp.maximum, map=HELD[name])[-1] == 11 * k


class Combining:
    def __init__(self) -> None:
        self.product = False

    def op(self, a: Any, b: Any) -> Any:
        return a * b if self.product else a + b


way, PRODUCT = Combining(), False


def by_a_method(a: Any, b: Any) -> Any:
    return way.op(a, b)


def by_a_global(a: Any, b: Any) -> Any:
    return a * b if PRODUCT else a + b


@pytest.mark.parametrize("op", [way.op, by_a_method, by_a_global], ids=["a method", "by a method", "a global"])
def test_operators_whose_globals_change(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an object, which no eager call is kept for, and of one that ``jit`` traces anew."""
    for product in (False, True, False):
        monkeypatch.setattr(way, "product", product)
        monkeypatch.setitem(globals(), "PRODUCT", product)
        want = 720 if product else 21
        x = jnp.arange(1.0, 7)
        assert jp.scan(x, op)[-1] == want
        assert jax.jit(lambda x: jp.scan(x, op))(x)[-1] == want
        assert jp.reduce_by_index(x, jnp.zeros(6, int), 1, op, identity=jnp.float32(product))[0] == want


class Pair(NamedTuple):
    a: Any
    b: Any

    @staticmethod
    def of(a: Any, b: Any) -> Pair:
        return Pair(a, b)


class Way(enum.Enum):
    FORWARD = 1
    BACK = -1


@pytest.mark.dear
def test_classes_that_do_not_change_are_constants(compiled: Any) -> None:
    for k in range(3):
        made = jp.scan(Pair(X + k, X), lambda p, q: Pair.of(p.a + q.a, jnp.maximum(p.b, q.b)))
        assert made.b[-1] == 11
        assert jp.reduce(X + k, map=lambda x: x * Way.FORWARD.value if Way.BACK is not Way.FORWARD else x) == 66 + 12 * k
        assert jp.reduce(X + k, map=lambda x: x * math.cos(0)) == 66 + 12 * k
    assert compiled() == 3


def test_what_a_function_imports_is_traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("imported_by_a_function")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def scaled(x: Any) -> Any:
        import imported_by_a_function

        return x * imported_by_a_function.scale

    for k in (2, 3, 4):
        module.__dict__["scale"] = k
        assert jp.reduce(X, map=scaled) == 66 * k


def test_numbers_of_captured_arrays_may_be_wanted() -> None:
    table = np.array([2.0, 5.0])
    assert jp.reduce(X, map=lambda x: x * float(table[1])) == 330
    assert jp.reduce(X, map=lambda x: x if table[0] > 3 else 2 * x) == 132
    assert jp.reduce(X, map=lambda x: x * len(range(int(table[0])))) == 132


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
