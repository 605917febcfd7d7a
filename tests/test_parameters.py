"""Parameters of JAX's primitives: what the installed version gives is known, and what rules cannot do is left to plain XLA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params

import jaxprims as jp
from jaxprims.tracing.lower import RULES
from jaxprims.tracing.parameters import HANDLED

F, I = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4), np.arange(12, dtype=np.int32).reshape(3, 4)  # noqa: E741


def named(module: Any, words: str) -> list[Callable[..., Any]]:
    return [getattr(module, name) for name in words.split()]


OF_ONE = """
    exp exp2 expm1 log log1p sin cos tan sinh cosh tanh logistic sqrt rsqrt cbrt asin acos atan asinh acosh atanh
    erf erfc erf_inv lgamma digamma floor ceil round sign neg abs is_finite square"""
OF_TWO = "add sub mul div rem pow max min atan2 nextafter eq ne lt le gt ge complex"
OF_INTEGERS = "bitwise_and bitwise_or bitwise_xor shift_left shift_right_logical shift_right_arithmetic mul mulhi"
ALONG = named(jnp, "sum prod max min argmax argmin sort argsort flip")
ALONG += named(lax, "cumsum cumprod cummax cummin cumlogsumexp")

SAMPLES: tuple[Callable[[Any, Any, Any], Any], ...] = (
    *(lambda x, i, k, f=f: f(x) for f in [*named(lax, OF_ONE), jnp.log2, jnp.round, jnp.isnan]),
    *(lambda x, i, k, f=f: f(x, x) for f in named(lax, OF_TWO)),
    *(lambda x, i, k, f=f: f(i, i) for f in named(lax, OF_INTEGERS)),
    *(
        lambda x, i, k, f=f: f(i)
        for f in (lax.bitwise_not, lax.population_count, lax.clz, lambda i: i**3, lambda i: i.astype(jnp.int8))
    ),
    *(lambda x, i, k, f=f: f(x, axis=1) for f in ALONG),
    *(lambda x, i, k, f=f: f(x > 0.5, axis=1) for f in (jnp.any, jnp.all)),
    lambda x, i, k: (
        x**-3,
        x**2,
        lax.integer_pow(x, 5),
        lax.clamp(0.0, x, 1.0),
        lax.select(x > 0.5, x, -x),
        lax.reduce_precision(x, 5, 3),
    ),
    lambda x, i, k: (
        lax.bitcast_convert_type(x, jnp.int32),
        x.astype(jnp.complex64),
        jnp.polyval(x[0], x[1]),
        lax.reduce_xor(i, [0]),
    ),
    lambda x, i, k: (x @ x.T, jnp.einsum("ij,kj->ik", x.astype(jnp.bfloat16), x, preferred_element_type=jnp.float32)),
    lambda x, i, k: (
        x.reshape(4, 3),
        x.T,
        x[1:, ::2],
        jnp.expand_dims(x, 0),
        x[None].squeeze(0),
        jnp.pad(x, 1),
        lax.pad(x, 0.0, [(1, 0, 1), (0, -1, 0)]),
    ),
    lambda x, i, k: (
        jnp.concatenate([x, x]),
        jnp.stack([x, x]),
        jnp.tile(x, 2),
        jnp.split(x, 2, 1),
        jnp.unstack(x),
        jnp.broadcast_to(x, (2, 3, 4)),
    ),
    lambda x, i, k: (
        lax.iota(jnp.int32, 3),
        lax.rev(x, (0,)),
        lax.dynamic_slice(x, (i[0, 0], 0), (1, 2)),
        lax.dynamic_update_slice(x, x[:1], (1, 0)),
    ),
    lambda x, i, k: [x.at[i[0, 0], 1].get(mode=m) for m in ("clip", "fill", "promise_in_bounds")],
    lambda x, i, k: [getattr(x.at[i[0, 0], 1], how)(2.0) for how in ("set", "add", "subtract", "mul", "min", "max")],
    lambda x, i, k: x.at[i[0, 0]].apply(jnp.sin),
    lambda x, i, k: (
        lax.scan(lambda c, y: (c + y, c), x[0], x, reverse=True, unroll=2),
        lax.fori_loop(0, 3, lambda _, c: c * 2, x),
    ),
    lambda x, i, k: (lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c + 1, x), lax.cond(i[0, 0] > 1, lambda: x, lambda: -x)),
    lambda x, i, k: (lax.sort((x, x), num_keys=2, is_stable=False), lax.switch(i[0, 0], [lambda: x, lambda: -x, lambda: 2 * x])),
    lambda x, i, k: lax.top_k(x, 2),
    lambda x, i, k: (
        jax.random.uniform(jax.random.fold_in(k, 1)),
        jax.random.normal(jax.random.split(k)[0], (2,)),
        jax.random.key_data(k),
    ),
    lambda x, i, k: jax.random.key_data(jax.random.key(i[0, 0])),
    lambda x, i, k: [f(lax.complex(x, x)) for f in (lax.conj, lax.real, lax.imag, lax.abs, lax.exp, lax.log, lax.sqrt, lax.sign)],
    lambda x, i, k: (
        jax.extend.random.threefry_2x32(jax.random.key_data(k), jnp.arange(2, dtype=jnp.uint32)),
        jnp.linalg.norm(x),
        jax.nn.gelu(x),
    ),
)


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(inner)


def test_every_parameter_that_jax_gives_is_known() -> None:
    seen: set[str] = set()
    for sample in SAMPLES:
        for eqn in equations(jax.make_jaxpr(sample)(F, I, jax.random.key(0)).jaxpr):
            name = eqn.primitive.name
            if name in RULES:
                unknown = set(eqn.params) - set(HANDLED.get(name, {}))
                assert not unknown, f"{name} has the parameters {unknown}: rules must take account of them"
                seen.add(name)
    elsewhere = {name for name in HANDLED if name not in seen}  # of complex numbers, of fuse, and of other versions of JAX
    named = set(
        "log2 polynomial expand_dims random_at random_wrap reduce_xor iota_2x32_shape tile stack unstack reduce_and".split()
    )
    assert elsewhere <= named | {n for n in HANDLED if n.startswith("scatter")}, elsewhere


UNHANDLED: dict[str, Callable[[Any, Any], Any]] = {
    "accuracy": lambda a, b: a + lax.exp(b, accuracy=lax.AccuracyMode.HIGHEST),
    "algorithm": lambda a, b: a + lax.dot(b[None], b[:, None], precision=lax.DotAlgorithmPreset.F32_F32_F32)[0],
    "narrower": lambda a, b: a + lax.dot(b[None], b[:, None], preferred_element_type=jnp.bfloat16)[0].astype(a.dtype),
    "dimensions": lambda a, b: a + lax.reshape(jnp.stack([b, b]), (4,), (1, 0))[:2],
}


@pytest.mark.parametrize("name", UNHANDLED)
def test_what_rules_cannot_do_is_plain_xlas(name: str) -> None:
    op, x = UNHANDLED[name], np.array([[0.5, 0.25], [1.0, 2.0]], np.float32)
    with pytest.warns(jp.FallbackWarning, match="cannot be compiled"):
        got = jp.scan(x, op)[1]
    np.testing.assert_array_equal(got, op(jnp.asarray(x[0]), jnp.asarray(x[1])))
