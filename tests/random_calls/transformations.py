"""What is done to both functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jaxprims as jp

from .program import DERIVATIVES, Array, Fn, Program, Rng


def inexact(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]


def some(rng: Rng, p: Program, most: float = 0.7) -> list[bool]:
    mask = [bool(b) for b in rng.random(len(p.arrays)) < most]
    return mask if any(mask) else [True] * len(mask)


def widened(p: Program, mask: Sequence[bool], n: int) -> list[Array]:
    return [dataclasses.replace(a, shape=(n, *a.shape)) if m else a for a, m in zip(p.arrays, mask, strict=True)]


def by_vmap(rng: Rng, p: Program) -> Program:
    mask, n = some(rng, p), int(rng.choice([1, 2, 3]))
    axes = [0 if m else None for m in mask]
    return p.around(f"vmap {axes} of {n}", *(jax.vmap(f, axes) for f in (p.mine, p.plain)), widened(p, mask, n))


def by_loop(rng: Rng, p: Program) -> Program:
    mask, n = some(rng, p), int(rng.choice([1, 3]))

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            def step(c: Any, rows: Any) -> Any:
                rest = iter(rows)
                return c + 1, f(*(next(rest) if m else x for m, x in zip(mask, xs, strict=True)))

            return jax.lax.scan(step, 0, [x for m, x in zip(mask, xs, strict=True) if m])[1]

        return run

    return p.around(f"loop {mask} of {n}", around(p.mine), around(p.plain), widened(p, mask, n))


def by_shard_map(rng: Rng, p: Program) -> Program:
    # the cotangent of what does not vary is summed over devices; and a branch on what does fails in JAX if anything does not
    alike = any(word in p.text for word in ("jvp", "vjp", "transpose", "cond"))
    mask = [True] * len(p.arrays) if alike else some(rng, p)
    axes = [0 if m else None for m in mask]
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = tuple(P("d") if m else P() for m in mask)
    mine = jax.shard_map(jax.vmap(p.mine, axes), mesh=mesh, in_specs=specs, out_specs=P("d"))
    return p.around(f"shard_map {axes}", jax.jit(mine), jax.vmap(p.plain, axes), widened(p, mask, 8))


def of_some(f: Fn, xs: Sequence[Any], moved: Sequence[int]) -> Fn:
    """f of these of its arguments."""
    return lambda *some: f(*(dict(zip(moved, some, strict=True)).get(k, x) for k, x in enumerate(xs)))


def by_jvp(rng: Rng, p: Program) -> Program:
    moved = [k for k, a in enumerate(p.arrays) if a.diff]
    n = len(p.arrays)

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            out, dot = jax.jvp(of_some(f, xs[:n], moved), tuple(xs[k] for k in moved), tuple(xs[n:]))
            return out, [d for d, o in zip(jax.tree.leaves(dot), jax.tree.leaves(out), strict=True) if inexact(o)]

        return run

    tangents = [dataclasses.replace(p.arrays[k], kind="small") for k in moved]
    return p.around("jvp", around(p.mine), around(p.plain), [*p.arrays, *tangents], linear=None)


def cotangents(p: Program) -> list[Array]:
    outs = jax.eval_shape(p.plain, *(jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in p.arrays))
    return [Array(o.shape, str(o.dtype), diff=True) for o in inexact(outs)]


def by_vjp(rng: Rng, p: Program) -> Program:
    moved = [k for k, a in enumerate(p.arrays) if a.diff]
    n = len(p.arrays)
    remat = bool(rng.random() < 0.2)

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            of = of_some(lambda *full: inexact(f(*full)), xs[:n], moved)
            return jax.vjp(jax.checkpoint(of) if remat else of, *(xs[k] for k in moved))[1](list(xs[n:]))

        return run

    more = [*p.arrays, *cotangents(p)]
    return p.around("vjp of remat" if remat else "vjp", around(p.mine), around(p.plain), more, linear=None)


def by_transpose(rng: Rng, p: Program) -> Program:
    k, n = p.linear, len(p.arrays)
    assert k is not None

    def around(f: Fn, transpose: bool) -> Fn:
        def run(*xs: Any) -> Any:
            of = lambda x: inexact(f(*xs[:k], x, *xs[k + 1 : n]))  # noqa: E731
            return (jax.linear_transpose(of, xs[k]) if transpose else jax.vjp(of, xs[k])[1])(list(xs[n:]))

        return run

    more = [*p.arrays, *cotangents(p)]
    return p.around("transpose", around(p.mine, True), around(p.plain, False), more, linear=None)


def by_cond(rng: Rng, p: Program) -> Program:
    def around(f: Fn) -> Fn:
        def run(flag: Any, *xs: Any) -> Any:
            return jax.lax.cond(flag, f, lambda *xs: jax.tree.map(jnp.zeros_like, f(*xs)), *xs)

        return run

    # JAX itself does not transpose one that is mapped
    return p.around("cond", around(p.mine), around(p.plain), [Array((), "bool"), *p.arrays], linear=None)


def by_fuse(rng: Rng, p: Program) -> Program:
    if rng.random() < 0.5:
        return p.around("fuse", jp.fuse(p.mine), p.plain)
    return p.around("fuse plain", jp.fuse(p.plain), p.plain)


def by_producers(rng: Rng, p: Program) -> Program:
    """Arrays are made of themselves before: what kernels take in, or do not, changes nothing."""

    def rounded(x: Any) -> Any:
        """In one rounding less where it is fused."""
        return x * 1.1 + x * -0.1 if x.dtype in (jnp.float32, jnp.float64) else x

    linear = [
        lambda x: x * jnp.ones((), x.dtype),
        lambda x: x.reshape(-1).reshape(x.shape),
        lambda x: jax.jit(lambda x: x[jnp.arange(x.shape[0])])(x),
        lambda x: jnp.take(x, jnp.arange(x.shape[0]), axis=0),
        lambda x: x.at[jnp.arange(-x.shape[0], 0)].get(mode="fill", fill_value=1),
        lambda x: jnp.where(jnp.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)) % 2 == 0, x, jax.lax.optimization_barrier(x)),
        lambda x: jax.checkpoint(lambda x: x * jnp.ones_like(x))(x.T).T,
        rounded,
        lambda x: jnp.where((jnp.arange(x.shape[0]) >= 0).reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype)),
    ]
    others = [
        lambda x: jnp.where(x == x, x, x),
        lambda x: jax.lax.cond(x.ravel()[0] == 0, lambda: x * jnp.ones_like(x), lambda: x),
        lambda x: jnp.sort(jnp.stack([x, x]), axis=0)[1],
        lambda x: jax.lax.select(jax.lax.full(x.shape, True), *jax.lax.map(lambda y: (y, y), x)),
        lambda x: x ^ x ^ x if x.dtype.kind in "iu" else x + x - x,
        lambda x: jnp.clip(x, jnp.min(x), jnp.max(x)) if x.dtype.kind in "iu" else jnp.negative(-x),
        lambda x: x.astype({2: jnp.float32, 1: jnp.int32}.get(x.dtype.itemsize, x.dtype)).astype(x.dtype),
    ]
    makers = linear + others * (p.linear is None)
    chosen = [
        makers[rng.integers(len(makers))] if a.shape and 0 not in a.shape and a.dtype != "bool" and rng.random() < 0.8 else None
        for a in p.arrays
    ]
    chosen = [None if m is rounded and not a.diff else m for m, a in zip(chosen, p.arrays, strict=True)]  # where bins end
    mine = lambda *xs: p.mine(*(x if m is None else m(jnp.asarray(x)) for m, x in zip(chosen, xs, strict=True)))  # noqa: E731
    nan = tuple(x for x in p.odd if x != x)  # what is added to an infinity cannot be taken from it
    return p.around("made before", mine, p.plain, odd=nan)


def by_export(rng: Rng, p: Program) -> Program:
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]

    def mine(*xs: Any) -> Any:
        exported = jax.export.export(jax.jit(p.mine), disabled_checks=checks)(*xs)
        return jax.export.deserialize(exported.serialize()).call(*xs)

    return p.around("export", mine, p.plain, traceable=False)


def transformed(rng: Rng, p: Program) -> Program:
    if rng.random() < 0.06:
        p = by_fuse(rng, p)
    elif rng.random() < 0.3:
        p = by_producers(rng, p)
    for _ in range(int(rng.integers(0, 4))):
        choices: list[Callable[[Rng, Program], Program]] = [by_vmap, by_vmap, by_loop, by_cond, by_shard_map]
        if p.smooth and any(a.diff for a in p.arrays):
            choices += [by_jvp] * 3 + [by_vjp] * 4
        if p.linear is not None:
            choices += [by_transpose] * 3
        chosen = choices[rng.integers(len(choices))]
        if sum(p.text.count(word) for word in DERIVATIVES) >= 2 and chosen in (by_jvp, by_vjp):
            continue
        if chosen is by_shard_map and ("shard_map" in p.text or "fuse plain" in p.text or any(0 in a.shape for a in p.arrays)):
            continue  # the loops' types do not vary; and not every XLA takes a loop around arrays of no elements
        p = chosen(rng, p)
    if "shard_map" not in p.text and rng.random() < 0.06:
        return by_export(rng, p)
    return p
