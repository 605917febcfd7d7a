"""``jax.numpy``'s cumulative sums and products: results, dtypes and errors against ``jax.numpy``'s own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_outcomes import assert_same

import jaxprims as jp

NAMES = ("cumulative_sum", "cumulative_prod", "nancumsum", "nancumprod")
DTYPES = ("float32", "float16", "int8", "bool", "complex64")


def arrays(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    out = [rng.uniform(-2, 2, shape).astype(dtype) for shape in ((7,), (2, 3, 4), (2, 0))]
    if np.dtype(dtype).kind in "fc":
        out[1][1, 2, 0] = np.nan
    return out


def all_same(name: str, calls: list[tuple[Any, dict[str, Any]]]) -> None:
    every = jax.jit(lambda xs: [getattr(jnp, name)(x, **options) for x, (_, options) in zip(xs, calls, strict=True)])
    for (x, options), wanted in zip(calls, every([x for x, _ in calls]), strict=True):
        got = getattr(jp, name)(x, **options)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (name, options)
        tolerance = 1e-2 if wanted.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), tolerance, tolerance)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_like_jax_numpy(name: str, dtype: str) -> None:
    """Axes of arrays of three shapes, some for each dtype, in turn."""
    initial, turn = name.startswith("cumulative"), DTYPES.index(dtype)
    every = [(x, axis) for x in arrays(dtype) for axis in [None] * (x.ndim == 1 or not initial) + [0, -1]]
    calls: list[tuple[Any, dict[str, Any]]] = []
    for k, (x, axis) in enumerate(every):
        if (k + turn) % 4 == 0:
            calls.append((x, {"axis": axis} | ({"include_initial": k % 2 == 0} if initial else {})))
    if dtype not in ("float32", "float16"):
        calls.append((arrays(dtype)[0], {"dtype": "complex64" if dtype == "complex64" else np.float32}))
    all_same(name, calls)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", NAMES)
def test_transformations_and_types(name: str) -> None:
    f, plain = getattr(jp, name), getattr(jnp, name)
    x = jnp.array([[0.5, 2.0, 1.5], [1.0, -2.0, 3.0]])
    both = [jax.jit(jax.vmap(jax.grad(lambda x, g=g: jnp.sum(jnp.sin(g(x))))))(x) for g in (f, plain)]
    np.testing.assert_allclose(*both, rtol=1e-5)
    for y in ([1, 2], 3.0, np.float64([1, 2]), jnp.arange(3, dtype=jnp.bfloat16)):
        outcomes = []
        for g in (f, plain):
            try:
                outcomes.append((np.asarray(g(y), np.float64).tolist(), g(y).dtype))
            except (TypeError, ValueError) as e:
                outcomes.append((type(e), str(e)))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "options", [{"axis": 2}, {"axis": -3}, {"axis": None}, {"dtype": "nothing"}, {"axis": "0"}, {"unknown": 1}]
)
def test_errors_are_jax_numpys(options: dict[str, Any]) -> None:
    x = jnp.ones((2, 3))
    for g in (jnp.cumulative_sum, jp.cumulative_sum):
        with pytest.raises((TypeError, ValueError)):
            g(x, **options)
    if "axis" in options:
        with pytest.raises((TypeError, ValueError)) as wanted:
            jnp.cumulative_sum(x, **options)
        with pytest.raises(type(wanted.value)) as got:
            jp.cumulative_sum(x, **options)
        assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_lax_names_with_axes_of_numpy(name: str) -> None:
    """None, negative ones, and a dtype: what ``jax.lax``'s own do not take."""
    x = np.arange(1, 7, dtype=np.int8).reshape(2, 3)
    for axis in (None, -1, -2):
        np.testing.assert_array_equal(getattr(jp, name)(x, axis, dtype=np.int32), getattr(np, name)(x, axis, dtype=np.int32))
    np.testing.assert_array_equal(jp.cummax(x[::-1], axis=None), np.maximum.accumulate(x[::-1].ravel()))
    with pytest.raises(ValueError, match="axis"):
        getattr(jp, name)(x, -3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [0, 1])
def test_an_associative_scan_of_one_element_does_not_ask_its_function(n, reverse):
    """As in ``jax.lax``: not even for the dtype that it would give."""
    for fn in (jnp.logical_and, jnp.bitwise_and, jnp.add):
        for x in (jnp.ones((2, n), np.float32), 2.5 * jnp.ones((2, n), int)):
            assert_same(lambda m, f=fn, x=x: m.associative_scan(f, x, reverse, axis=1), jax.lax)
            assert_same(lambda m, f=fn, x=x: jax.jit(lambda x: m.associative_scan(f, (x, x), reverse, 1))(x), jax.lax)
            assert_same(lambda m, f=fn, x=x: jax.vmap(lambda x: m.associative_scan(f, x, reverse))(x), jax.lax)
