"""Eager calls that are kept: found again where nothing changed, and only there."""

from __future__ import annotations

import functools
import gc
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.calls import kept

X = jnp.arange(12.0)
IDS = jnp.arange(12) % 3


def test_one_call_is_compiled_once(compiled: Any) -> None:
    for k in range(3):
        got = jp.reduce_by_index(X + k, IDS, 3, lambda a, b: jnp.maximum(a, b))
        np.testing.assert_array_equal(got, np.arange(9.0, 12) + k)
        np.testing.assert_array_equal(jp.scan(X + k, jnp.add), np.cumsum(np.arange(12) + k))
    assert compiled() == 2


def test_captured_arrays_are_operands(compiled: Any) -> None:
    for k in range(3):
        table, numbers = jnp.arange(3.0) + k, np.arange(3, dtype=np.float32)
        got = jp.reduce(IDS, map=lambda i: table[i] * numbers[i])
        assert got == 4 * ((1 + k) + 2 * (2 + k))
        numbers[:] = 0
    assert compiled() == 1


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


@pytest.mark.cover(2)
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
