"""The programs of ``fuse.py`` as those write them who have NumPy or PyTorch: each function has either library for ``xp``.

The same programs are ``bench/futhark/fuse.fut`` and ``bench/native/fuse.cc``, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..contestant import Prepare
from ..peers import arrays
from ..peers.futhark import futhark
from ..peers.native import native

Fn = Callable[..., Any]

BY_HAND = frozenset("saxpy sdot rmse black_scholes forward_difference weighted_moving_average jacobi matrix_vector".split()) | {
    *"moments kurtosis two_histograms joint_counts energy_histogram group_summaries k_means drawdown".split(),
    *"cumulative_of_function discounted_returns sparse_matrix_vector logsumexp softmax layer_norm".split(),
}
"""Those that Futhark and C++ have."""

IN_ORDER = frozenset(("discounted_returns",))
"""What array libraries have no operation for."""


def contestants(name: str) -> dict[str, Prepare]:
    if name not in BY_HAND:
        return {}
    out = {"futhark": futhark(name, file="fuse"), "native": native(f"fuse_{name}")["native"]}
    if name not in IN_ORDER:
        fn = globals()[f"_{name}"]
        out |= {"numpy": arrays.numpy(lambda *xs: fn(np, *xs)), "torch": arrays.torch(fn)}
        out["torch compiled"] = arrays.torch(fn, compiled=True)
    return out


def _integers(xp: Any, x: Any) -> Any:
    return xp.asarray(x, dtype=xp.int64)


def _phi(xp: Any, x: Any) -> Any:
    if xp is np:
        from scipy.special import ndtr

        return ndtr(x)
    return xp.special.ndtr(x)


def _running_maximum(xp: Any, x: Any) -> Any:
    return xp.maximum.accumulate(x) if xp is np else xp.cummax(x, 0).values


def _largest_of(xp: Any, x: Any, group: Any, groups: int) -> Any:
    if xp is np:
        out = np.full(groups, -np.inf, x.dtype)
        np.maximum.at(out, group, x)
        return out
    return xp.full((groups,), -xp.inf, dtype=x.dtype).scatter_reduce(0, _integers(xp, group), x, "amax")


def _saxpy(xp: Any, x: Any, y: Any) -> Any:
    return 2.5 * x + y


def _sdot(xp: Any, x: Any, y: Any) -> Any:
    return xp.dot(x, y)


def _rmse(xp: Any, x: Any, y: Any) -> Any:
    return xp.sqrt(xp.mean((x - y) ** 2))


def _black_scholes(xp: Any, price: Any, strike: Any, years: Any) -> Any:
    spread = 0.3 * xp.sqrt(years)
    d1 = (xp.log(price / strike) + 0.065 * years) / spread
    discounted = strike * xp.exp(-0.02 * years)
    call = price * _phi(xp, d1) - discounted * _phi(xp, d1 - spread)
    return xp.sum(call), xp.sum(call - price + discounted)


def _forward_difference(xp: Any, x: Any) -> Any:
    return x[1:] - x[:-1]


def _weighted_moving_average(xp: Any, x: Any) -> Any:
    return 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]


def _jacobi(xp: Any, u: Any) -> Any:
    out = xp.empty_like(u)
    out[:] = u
    out[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return out


def _matrix_vector(xp: Any, x: Any) -> Any:
    return x @ xp.linspace(0, 1, x.shape[1], dtype=xp.float32)


def _moments(xp: Any, x: Any) -> Any:
    mean = xp.mean(x)
    return mean, xp.mean((x - mean) ** 2), xp.min(x), xp.max(x), xp.argmax(x), xp.sum(x > 0)


def _kurtosis(xp: Any, x: Any) -> Any:
    squares = (x - xp.mean(x)) ** 2
    return xp.mean(squares**2) / xp.mean(squares) ** 2


def _two_histograms(xp: Any, x: Any, y: Any) -> Any:
    bins = [_integers(xp, xp.clip((t + 4) * 12.5, 0, 99)) for t in (x, x * y)]
    return tuple(xp.bincount(b, None, 100) for b in bins)


def _joint_counts(xp: Any, x: Any, y: Any) -> Any:
    i, j = (_integers(xp, xp.clip((t + 4) * 8, 0, 63)) for t in (x, y))
    return xp.bincount(64 * i + j, None, 64 * 64).reshape(64, 64)


def _energy_histogram(xp: Any, x: Any, y: Any) -> Any:
    energy = 0.5 * (x * x + y * y)
    return xp.bincount(_integers(xp, xp.clip(energy * 25, 0, 255)), energy, 256)


def _group_summaries(xp: Any, x: Any, group: Any) -> Any:
    count = xp.clip(xp.bincount(group, None, 1000), 1, None)
    mean = xp.bincount(group, x, 1000) / count
    return mean, xp.bincount(group, x * x, 1000) / count - mean**2, _largest_of(xp, x, group, 1000)


def _k_means(xp: Any, points: Any, centres: Any) -> Any:
    nearest = xp.argmin(((points[:, None] - centres) ** 2).sum(2), 1)
    count = xp.clip(xp.bincount(nearest, None, len(centres)), 1, None)
    return xp.stack([xp.bincount(nearest, points[:, k], len(centres)) / count for k in (0, 1)]).T


def _drawdown(xp: Any, x: Any) -> Any:
    wealth = xp.cumsum(0.01 * x, 0)
    return xp.max(_running_maximum(xp, wealth) - wealth)


def _cumulative_of_function(xp: Any, x: Any) -> Any:
    return xp.cumsum(xp.exp(-x * x), 0)


def _sparse_matrix_vector(xp: Any, w: Any, h: Any, source: Any, target: Any) -> Any:
    return xp.bincount(target, w * h[source], len(h))


def _logsumexp(xp: Any, x: Any) -> Any:
    top = xp.amax(x, 1)
    return top + xp.log(xp.sum(xp.exp(x - top[:, None]), 1))


def _softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.amax(x, 1)[:, None])
    return e / xp.sum(e, 1)[:, None]


def _layer_norm(xp: Any, x: Any) -> Any:
    centred = x - xp.mean(x, 1)[:, None]
    return centred / xp.sqrt(xp.mean(centred**2, 1) + 1e-5)[:, None]
