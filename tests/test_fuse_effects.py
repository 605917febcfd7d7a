"""Fused functions that do more than to return arrays: prints, callbacks and checks, those of rules for derivatives too; mutable
references."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax.experimental import checkify, hijax, io_callback
from jax.experimental.hijax import HiType, register_hitype

import jaxprims as jp

X = jnp.arange(3.0)
Say = Callable[[str, Any], None]
Primitive: Any = hijax.HiPrim if hasattr(hijax, "HiPrim") else hijax.VJPHiPrimitive


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


class Square(Primitive):
    """Without a rule for tangents that can be transposed."""

    def __init__(self, x: Any):
        self.in_avals, self.out_aval, self.params = (x,), x, {}
        super().__init__()

    def expand(self, x: Any) -> Any:
        return x**2

    def vjp_fwd(self, moving: Any, x: Any) -> Any:
        return self(x), x

    def vjp_bwd_retval(self, x: Any, g: Any) -> Any:
        return (g * 2 * x,)


class Pushed(Square):
    """With one for tangents as they come, but none that makes a function of them."""

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), 2 * primals[0] * tangents[0]


@pytest.mark.parametrize("primitive", [Square, Pushed])
def test_primitives_with_a_backward_pass_alone(primitive: Any) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(primitive(jax.typeof(x))(x) * x)

    same(loss(X), jp.fuse(loss)(X))
    same(3 * X**2, jax.grad(jp.fuse(loss))(X))
    same(3 * X**2, jax.jit(jax.grad(jp.fuse(loss)))(X))


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class PairType(HiType):
    shape: tuple[int, ...]

    def lo_ty(self) -> Any:
        return [jax.core.ShapedArray(self.shape, np.dtype(np.float32))] * 2

    def lower_val(self, x: Any) -> Any:
        return [x.first, x.second]

    def raise_val(self, first: Any, second: Any) -> Pair:
        return Pair(first, second)


register_hitype(Pair, lambda x: PairType(x.first.shape))


class Second(Primitive):
    def __init__(self, x: Any):
        self.in_avals, self.params = (x,), {}
        self.out_aval = jax.core.ShapedArray(x.shape, np.dtype(np.float32))
        super().__init__()

    def expand(self, x: Any) -> Any:
        return x.second


def test_types_that_are_no_arrays() -> None:
    """Captured, as arguments of a program around the call, and of the function."""
    pair = Pair(X, X + 1)

    def twice(x: Any) -> Any:
        return 2 * Second(jax.typeof(x))(x)

    same(2 * (X + 1), jp.fuse(lambda x: x * 0 + jax.jit(twice)(pair))(X))
    same(2 * (X + 1), jp.fuse(twice)(pair))
    same(2 * (X + 1), jax.jit(jp.fuse(twice))(pair))


def test_debugging() -> None:
    """Without ``jit``, to see numbers and choose by them; or with errors that say which operation has made a NaN."""
    with jax.disable_jit():
        assert jp.fuse(lambda x: x * 2 if x > 1 else x)(jnp.float32(3)) == 6
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="encountered in div"):
        jp.fuse(lambda x: jnp.max(x / x))(X)
