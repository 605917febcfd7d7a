"""Lines of programs, as users write them.

x, y: floats of the program's shape. z: those, or what broadcasts to them. i: integers, m: booleans of that shape. v: floats [N].
s: a number. k: an axis, n: its length. q: a small number, d: a whole one. A letter stands for the same all over a line.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

EXACT = """
x + z ;; x - z ;; x * z * 0.5 ;; jnp.maximum(x, z) ;; jnp.minimum(x, z) ;; -x ;; jnp.abs(x) ;; jnp.sign(x) ;; x % 8
x.clip(-8, 8) ;; x * q ;; jnp.where(m, x, z) ;; jnp.where(m, x, 0) ;; jnp.where(m, -jnp.inf, x) ;; jax.nn.relu(x) ;; x * m
jnp.where(x > z, x, -x) ;; x.at[m].set(0) ;; x == z ;; x > z ;; x <= y ;; x >= jnp.roll(x, 1, k) ;; m & (x > q) ;; ~m
m ^ (x < z) ;; i > d ;; i % 3 == 0 ;; jnp.isfinite(x) ;; jnp.isnan(x) ;; jax.nn.relu(x) == x ;; x == x.max(k, keepdims=True)
x == x.max() ;; x >= lax.cummax(x, k) ;; x == jnp.maximum(x, z) ;; x != jnp.where(m, x, z) ;; x - x.max(k, keepdims=True)
x.max(k, keepdims=True) - x.min(k, keepdims=True) ;; (x == x.min()).sum() ;; jnp.where(x == x.max(), y, x)
jnp.sort(x, k)[..., ::-1] ;; jnp.flip(x, k) ;; jnp.roll(x, d, k) ;; jnp.roll(x, (d, -1), (k, 0)) ;; x.T.T
jnp.transpose(x).sum(0) ;; x[::-1] ;; jnp.sum(x, k) ;; jnp.max(x, k) ;; jnp.min(x) ;; jnp.sum(x) ;; jnp.any(m, k)
jnp.all(m) ;; jnp.sum(m, k) ;; jnp.sum(i) ;; jnp.max(i, k) ;; jnp.ptp(x, k) ;; jnp.argmax(x, k) ;; jnp.argmin(x)
jnp.argmax(m, k) ;; jnp.nanmax(x, k) ;; jnp.nansum(x) ;; jnp.count_nonzero(x, k) ;; jnp.sum(x, where=m)
jnp.max(x, k, where=m, initial=-9) ;; jnp.take_along_axis(x, jnp.argmax(x, k, keepdims=True), k)
jnp.where(jnp.arange(n) == jnp.argmax(v), 1, v[:n]) ;; x.ravel()[jnp.argmin(x)] ;; jnp.cumsum(x, k) ;; jnp.cumsum(x, k)[::-1]
lax.cummax(x, k) ;; lax.cummin(x, k, reverse=True) ;; jnp.cumsum(m, k) ;; jnp.cumsum(i, k)
lax.cumsum(x, k, reverse=True) - x ;; jnp.cumsum(x, k) - z ;; lax.cummax(x, k) - x ;; jnp.maximum(x, lax.cummin(y, k))
jnp.cumsum(x.ravel()).reshape(x.shape) ;; lax.cumprod(jnp.sign(x), k) ;; jnp.where(m, jnp.cumsum(x, k), lax.cummax(x, k))
lax.cummax(jnp.where(m, jnp.arange(x.shape[-1]), 0), x.ndim - 1) ;; jnp.diff(x, axis=k, prepend=0) ;; jnp.diff(x, axis=k)
jnp.diff(v) ;; jnp.pad(x, 1)[tuple(slice(2, None) for _ in x.shape)] ;; jnp.pad(x, 1, mode='edge').sum(k)
jnp.pad(v, (1, 2), mode='wrap')[:-3] ;; jnp.zeros(7).at[i % 7].add(x) ;; jnp.zeros(300).at[i].add(x)
jnp.full(9, -99.).at[i % 9].max(x) ;; jnp.zeros(20, int).at[i].add(1) ;; jnp.full(40, jnp.inf).at[i].min(x, mode='drop')
jnp.zeros(5).at[i].add(x, mode='clip') ;; jnp.zeros((7, 3)).at[i % 7, i % 3].add(x) ;; jnp.zeros(v.shape).at[::2].set(v[::2])
v.at[jnp.arange(v.size) // 2].add(v) ;; v.at[d:].mul(2) ;; jax.ops.segment_sum(x.ravel(), i.ravel() % 11, 11)
jax.ops.segment_max(x.ravel(), i.ravel(), 11) ;; jax.ops.segment_sum(x, jnp.arange(len(x)) // 3, 30)
jnp.bincount(i.ravel() % 16, length=16) ;; jax.ops.segment_max(v, jnp.arange(v.size) % 13, 13)[jnp.arange(v.size) % 13] == v
jax.ops.segment_sum(v, jnp.arange(v.size) // 7, 1 + v.size // 7)[jnp.arange(v.size) // 7] ;; v[jnp.arange(v.size) // 2]
v[i % v.size] ;; jnp.take(v, i, mode='clip') ;; jnp.take(v, i, mode='fill', fill_value=0)
v.at[i].get(mode='fill', fill_value=3) ;; v[::2].sum() ;; v[d:] - v[:-d]
lax.reduce_window(v, 0., lax.add, (3,), (1,), 'SAME') ;; lax.reduce_window(v, -jnp.inf, lax.max, (5,), (1,), 'SAME')
jnp.convolve(v, jnp.array([1., 0., -2.]), 'same') ;; jnp.convolve(v[:40], v[:3]) ;; jnp.zeros_like(x).at[:1].set(x[:1])
x.at[0].add(1) ;; x.at[..., 0].set(z[..., 0]) ;; x.at[tuple(slice(1, -1) for _ in x.shape)].mul(2)
x[:, None] if x.ndim == 1 else x[:, :1] ;; x @ jnp.ones(x.shape[-1]) ;; jnp.einsum('...i,...i->...', x, y) ;; jnp.dot(v, v)
jnp.outer(v[:9], v[:5]).max(0) ;; jnp.sum((v[:, None] - jnp.arange(4.)) ** 2, 1)
jnp.argmin(jnp.abs(v[:, None] - v[:5]), 1) ;; jnp.abs(v[:60, None] - v[None, :60]).sum(1)
jnp.sum(v[:99, None] > v[None, :99], 1) ;; jnp.searchsorted(jnp.arange(-4., 5.), x) ;; jnp.digitize(v, jnp.arange(3.))
jnp.triu(jnp.outer(v[:9], v[:9])).sum(0) ;; lax.scan(lambda c, t: (c + t, c), 0., v)[1]
lax.scan(lambda c, t: (jnp.maximum(c, t), c), -9., v)[1] ;; lax.scan(lambda c, t: (0.5 * c + t, c), 0., v)[0]
lax.scan(lambda c, t: (jnp.where(t > 2, 0, c + 1), c), 0, v)[1]
lax.scan(lambda c, t: (jnp.where(t[1], 0., c) + t[0], c), 0., (v, v > 1))[1]
lax.fori_loop(0, 3, lambda j, u: u + jnp.roll(u, j), x) ;; lax.fori_loop(0, 4, lambda j, u: (u + jnp.roll(u, 1, k)) % 8, x)
lax.while_loop(lambda u: jnp.max(u) > 4, lambda u: u // 2, jnp.where(jnp.isfinite(x), x, 0))
lax.associative_scan(jnp.maximum, x, axis=k) ;; lax.associative_scan(jnp.add, x, axis=k, reverse=True)
lax.associative_scan(lambda a, b: (a[0] * b[0], jnp.maximum(a[1], b[1])), (jnp.sign(x), y), axis=k)[1]
lax.scan(lambda u, t: (jnp.maximum(u, t), u.sum()), x[0], x)[1] ;; lax.scan(lambda u, t: (u + t, u.max()), x[0] * 0, x)[0]
jax.vmap(lambda a: jnp.max(a) - a)(x) ;; jax.vmap(lambda a, b: jnp.where(a > b.max(), a, b))(x, y)
jax.vmap(lambda a: jnp.zeros(5).at[jnp.abs(a).astype(int) % 5].add(a))(x) ;; jax.vmap(jnp.cumsum)(x)
jax.jit(lambda a: a - a.min())(x) ;; jax.checkpoint(lambda a: jnp.cumsum(jnp.abs(a), k))(x)
lax.cond(jnp.sum(x) > 0, lambda a: jnp.cumsum(a, k), lambda a: a - a.max(), x) ;; lax.map(lambda a: a.max() + a, x)
jnp.stack([x, y]).max(0) ;; jnp.concatenate([x, y], k).sum(k) ;; jnp.concatenate([v[1:], v[:1]]) ;; jnp.tile(x, 2).sum(k)
jnp.repeat(v, 2)[: v.size] ;; x + jnp.arange(x.shape[-1]) ;; jnp.nonzero(v > 0, size=9)[0] ;; jnp.unique(i, size=9)
lax.top_k(v, min(3, v.size))[0] ;; jnp.partition(v, min(2, v.size - 1))[:2] ;; jnp.floor(x * 0.5) ;; x // 2 ;; jnp.round(x)
x.astype(int) ;; i.astype(x.dtype) ;; m.astype(x.dtype) ;; x.astype(int) % 5 + i ;; jnp.bitwise_xor(i, 3) ;; i << 1
jnp.sum(i * i, k) ;; jnp.cumprod(i % 3 - 1, k) ;; lax.cummax(i, k) ;; jnp.argmax(i, k) ;; jnp.where(i > z, i, 0).max(k)
lax.select(m, x, y) ;; lax.clamp(-2., x, 3.) ;; jnp.heaviside(x, 1) ;; jnp.select([m, x > 1], [x, z], 7.)
lax.select_n(i % 3, x, y, -x) ;; jnp.minimum(s, x) ;; (x - s).max(k) ;; jnp.where(s > 0, x, y)
jnp.stack([jnp.sum(x), jnp.max(y)]) ;; jnp.fmax(x, z) ;; jnp.nan_to_num(x, posinf=9, neginf=-9) ;; v[jnp.argsort(v)]
lax.scan(lambda c, t: (jnp.where(t > 3, t, c), c), -1., v)[1] ;; lax.scan(lambda c, t: (-c + t, c), 2., v, reverse=True)[1]
lax.scan(lambda c, t: ((jnp.where(t > 3, 0., c[0] + t), jnp.maximum(c[1], t), c[2] + 1), c), (1., -3., 0), v)[1][0]
lax.scan(lambda c, t: (jnp.clip(c + t, -9, 9), c), 0., v)[1] ;; lax.reduce(x, jnp.asarray(3, x.dtype), lax.max, (k,))
lax.reduce_window(v, 5., lax.add, (3,), (1,), 'VALID')
lax.reduce_window(v, 0., lax.add, (3,), (2,), [(2, 0)], window_dilation=(2,))
lax.pad(v, v.dtype.type(9), [(-1, 2, 0)]) + lax.pad(v, v.dtype.type(1), [(2, -1, 0)])
jnp.sum(lax.pad(v, v.dtype.type(2), [(0, 0, 1)]))
jnp.where(jnp.arange(x.shape[-1]) < i[..., :1], x, -jnp.inf).max(-1) ;; jnp.sum(x * (jnp.arange(x.shape[-1]) < i[..., :1]), -1)
jnp.arange(v.size) - lax.cummax(jnp.where(v != jnp.roll(v, 1), jnp.arange(v.size), 0))
jnp.histogram(x, 7)[0] ;; x.at[i].apply(jnp.abs) ;; x - jnp.arange(x.shape[-1])[::-1] ;; v[2:] * jnp.arange(v.size)[2:]
jnp.sum(jnp.arange(v.size) % 5 == d) ;; jnp.cumsum(jnp.arange(v.size) % 7)[::3] ;; x + jnp.r_[d, jnp.arange(x.shape[-1] - 1)]
x + jax.random.randint(jax.random.key(d), x.shape, -3, 4)
jnp.where(jax.random.bernoulli(jax.random.key(2), 0.5, m.shape), x, 0)
jnp.max(jax.random.bits(jax.random.key(d), v.shape)) ;; v[jax.random.randint(jax.random.key(1), (9,), 0, v.size)]
jnp.sum(x - x.sum(-1, keepdims=True)) ;; jnp.max(jnp.where(m, x - x.min(-1, keepdims=True), 0))
jax.ops.segment_sum(jnp.ones(v.size), jnp.cumsum(v > 1), 40) ;; jnp.sum(jax.nn.one_hot(i, 9), k) ;; x.at[i % 3].set(x[:1])
"""
"""Of small integers in floats these give the same bits in any order, most of them."""
ROUNDED = """
jax.nn.softmax(x, k) ;; jax.nn.log_softmax(x, k) ;; jax.nn.logsumexp(x, k) ;; jax.nn.logsumexp(x)
(x - x.mean(k, keepdims=True)) / (x.std(k, keepdims=True) + 1e-2) ;; jax.nn.standardize(x, k) ;; jnp.mean(x, k)
jnp.var(x, k) ;; jnp.std(x) ;; jnp.linalg.norm(x) ;; x / (jnp.linalg.norm(x, axis=k, keepdims=True) + 1) ;; x / 3
x * 0.7 + z ;; jnp.exp(-x * x) ;; jnp.tanh(x) ;; jnp.log1p(jnp.abs(x)) ;; jnp.sin(x) ;; jax.nn.gelu(x) ;; jax.nn.sigmoid(x)
jax.nn.silu(x) ;; jnp.sqrt(jnp.abs(x) + 1) ;; x / (1 + jnp.abs(z)) ;; jnp.exp(x - x.max(k, keepdims=True))
jax.nn.softplus(x) ;; jnp.logaddexp(x, z) ;; lax.cumlogsumexp(x, k) ;; jnp.hypot(x, y)
jnp.sum(jnp.exp(-(v[:, None] - jnp.linspace(-1, 1, 5)) ** 2), 0) ;; jax.nn.softmax(-(v[:, None] - v[:4]) ** 2, 1) @ v[:4]
jnp.sum((x - x.mean()) ** 2) / x.size ;; jnp.average(x, k) ;; jnp.mean(x, k, where=m)
lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * x ;; lax.scan(lambda c, t: (0.9 * c + 0.1 * t, c), 0., v)[1]
lax.scan(lambda c, t: (jnp.tanh(c + t), c), 0., v[:700])[1]
lax.scan(lambda c, t: ((0.9 * c[0] + t, 0.99 * c[1] + t * t), c[0]), (0., 0.), v)[1]
lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (jnp.tanh(x), y), axis=k)[1]
jnp.cumsum(x, k) / jnp.arange(1, x.shape[-1] + 1) ;; jnp.cumprod(jnp.tanh(x), k) ;; jnp.convolve(v, jnp.ones(5) / 5, 'same')
(jnp.roll(x, 1, k) + jnp.roll(x, -1, k) - 2 * x) * 0.3
lax.fori_loop(0, 5, lambda j, u: u + 0.1 * (jnp.roll(u, 1, k) - u), x) ;; jnp.gradient(v) ;; CLIPPED(x) ;; HALF(x)
SMOOTH(x) ;; jnp.exp(HALF(x) * 0.1) ;; jax.vmap(jax.grad(lambda a: jnp.sum(jnp.tanh(a)) ** 2))(x)
jax.grad(lambda a: jnp.sum(jax.nn.softmax(a, k) * y))(x) ;; jnp.abs(lax.complex(x, z + 0 * x))
(jnp.exp(1j * x) * x).sum(k).real ;; jnp.sum(x * jnp.exp(1j * y)).imag
jax.ops.segment_sum(jnp.exp(-v * v), jnp.arange(v.size) % 17, 17) ;; SEGMENTS(v) ;; v[i % v.size] * 0.3 + x
jnp.zeros(12).at[i % 12].add(jnp.sin(x)) ;; jnp.ones(12).at[i % 12].mul(1 + 0.01 * jnp.tanh(x)) ;; jnp.quantile(v, 0.3)
jnp.median(x, k) ;; jnp.corrcoef(v[:30], v[:30])[0, 1] ;; jnp.interp(x, jnp.arange(4.), jnp.array([0., 2., 1., 5.]))
x @ jnp.full((x.shape[-1], 3), 0.1) ;; jnp.einsum('...i,...j->ij', x[..., :6], y[..., :6])
lax.reduce_window(v * v, 0., lax.add, (4,), (1,), 'VALID') ;; x.astype(jnp.bfloat16) ;; x.astype(jnp.float16).sum(k)
(x.astype(jnp.bfloat16) * 2).astype(jnp.float32) ;; jnp.power(jnp.abs(x) + 0.1, 1.5) ;; x ** 3 ;; 1 / (x * x + 1)
jnp.arctan2(x, y) ;; jnp.cbrt(x) ;; jnp.expm1(x * 0.1)
"""


def lines(text: str) -> list[str]:
    return [line for line in re.split(r"\s*(?:;;|\n)\s*", text) if line]


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda p, t: (jnp.clip(p[0], -1, 1), t[0] * 0.5))


@jax.custom_vjp
def half(x: Any) -> Any:
    return x * 0.5


half.defvjp(lambda x: (x * 0.5, x), lambda x, t: (t * jnp.where(x > 0, 2.0, 1.0).astype(t.dtype),))


def smooth(x: Any) -> Any:
    return jax.vmap(jax.checkpoint(lambda a: jnp.tanh(a).cumsum() * a))(x) if x.ndim > 1 else jax.checkpoint(jnp.sin)(x)


def segments(v: Any) -> Any:
    ids = jnp.arange(v.size) % 19
    e = jnp.exp(v - jax.ops.segment_max(v, ids, 19)[ids])
    return e / jax.ops.segment_sum(e, ids, 19)[ids]


NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "CLIPPED": clipped, "HALF": half, "SMOOTH": smooth, "SEGMENTS": segments}
