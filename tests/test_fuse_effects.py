"""Fused functions that do more than to return arrays: prints, callbacks and checks, those of rules for derivatives too; mutable
references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import faults, same  # noqa: F401
from jax.experimental import checkify, io_callback

import jaxprims as jp

X = jnp.arange(3.0)
Say = Callable[[str, Any], None]


def with_jvp(say: Say) -> Callable[[Any], Any]:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        say("jvp", primals[0])
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    return f


def with_vjp(say: Say, before: bool) -> Callable[[Any], Any]:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    def forward(x: Any) -> Any:
        if before:
            say("before", x)
        return jnp.sin(x), x

    def backward(x: Any, g: Any) -> Any:
        say("backward", g)
        return (jnp.cos(x) * g,)

    f.defvjp(forward, backward)
    return f


TRANSFORMED: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "gradient": jax.grad,
    "in a program": lambda f: jax.jit(jax.grad(f)),
    "batched": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None]),
    "twice": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x))),
}


RULES = ["jvp", "backward", "before and backward"]


@pytest.mark.parametrize("rule, how", [(rule, how) for rule in RULES for how in TRANSFORMED if rule == "jvp" or how != "twice"])
@pytest.mark.parametrize("ordered", [True, False])
def test_effects_of_rules(how: str, rule: str, ordered: bool) -> None:
    """The function has none of its own: only who differentiates it comes upon them."""
    heard: list[tuple[str, float]] = []

    def say(what: str, x: Any) -> None:
        jax.debug.callback(lambda x: heard.append((what, float(np.sum(x)))), x, ordered=ordered)

    f = with_jvp(say) if rule == "jvp" else with_vjp(say, rule.startswith("before"))

    def loss(x: Any) -> Any:
        return jnp.sum(f(x) * 2)

    expected, said = TRANSFORMED[how](loss)(X), (jax.effects_barrier(), heard.copy(), heard.clear())[1]
    got = TRANSFORMED[how](jp.fuse(loss))(X)
    jax.effects_barrier()
    same(expected, got)
    assert said and (heard if ordered else sorted(heard)) == (said if ordered else sorted(said))


def test_callbacks_of_rules_in_order() -> None:
    heard: list[float] = []
    f = with_vjp(lambda what, x: io_callback(lambda x: heard.append(float(np.sum(x))), None, x, ordered=True), True)
    jax.grad(jp.fuse(lambda x: jnp.sum(f(f(x)))))(X)
    jax.effects_barrier()
    s = np.sin(np.arange(3.0))
    np.testing.assert_allclose(heard, [3, s.sum(), 3, np.cos(s).sum()], rtol=1e-6)


def test_checks_of_rules() -> None:
    f = with_jvp(lambda what, x: checkify.check(jnp.all(x < 5), "large"))
    checked = jax.jit(checkify.checkify(jax.grad(jp.fuse(lambda x: jnp.sum(f(x))))))
    assert checked(X)[0].get() is None
    assert "large" in checked(X + 3)[0].get()


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_references_that_rules_write_to(shape: tuple[int, ...], captured: bool, jit: bool) -> None:
    """The function itself neither reads nor writes them."""

    @jax.custom_vjp
    def noted(x: Any, ref: Any) -> Any:
        return x

    def backward(ref: Any, g: Any) -> Any:
        ref[...] = g
        return g * 2, None

    noted.defvjp(lambda x, ref: (x, ref), backward)
    ref, x = jax.new_ref(jnp.zeros(shape)), jnp.ones(shape)
    if captured:
        grad = jax.grad(jp.fuse(lambda x: jnp.sum(jnp.sin(noted(x, ref)))))
        got = (jax.jit(grad) if jit else grad)(x)
    else:
        grad = jax.grad(jp.fuse(lambda x, ref: jnp.sum(jnp.sin(noted(x, ref)))))
        got = (jax.jit(grad) if jit else grad)(x, ref)
    same(2 * jnp.cos(x), got)
    same(jnp.cos(x), ref[...])


def test_references_are_arguments() -> None:
    """A function is traced once for all of them, and keeps none."""
    traced = []

    @jp.fuse
    def add(total: Any, x: Any) -> Any:
        traced.append(x)
        total[...] += jnp.cumsum(x)
        return jnp.max(x), total[-1]

    for n in (1, 2):
        total = jax.new_ref(jnp.full(9, n, jnp.float32))
        same((jnp.float32(1), jnp.float32(n + 9)), add(total, jnp.ones(9)))
        same(n + jnp.arange(1.0, 10), total[...])
    assert len(traced) == 1
    traced.clear()
    with jax.checking_leaks():
        same(jnp.float32(20), jax.jit(lambda r, x: add(r, x)[1] + (traced.clear() or 0))(total, jnp.ones(9)))


def test_without_jit() -> None:
    """To see numbers, and choose by them."""
    with jax.disable_jit():
        assert jp.fuse(lambda x: x * 2 if x > 1 else x)(jnp.float32(3)) == 6
