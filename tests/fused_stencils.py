"""Shared by the tests of stencils that ``fuse`` finds: grids, the stencils of a function, functions with some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same

import jaxprims as jp
from jaxprims.fusion import rewrite
from jaxprims.fusion.call import Fused
from jaxprims.fusion.stencils import folded, steps
from jaxprims.fusion.stencils.folded import Folded
from jaxprims.fusion.stencils.stencil import Stencil

RNG = np.random.default_rng(11)
U = jnp.asarray(RNG.normal(size=(13, 50)).astype(np.float32))
CUBE = jnp.asarray(RNG.normal(size=(5, 6, 44)).astype(np.float32))
MODES = ("constant", "edge", "wrap", "reflect", "symmetric")


@pytest.fixture(autouse=True)
def everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, left: list[str]) -> Iterator[None]:
    """Small grids are kernels, too, and each has one."""
    if request.node.get_closest_marker("strategies") is None:
        monkeypatch.setattr(rewrite, "why_no_stencil", lambda *_: None)
        monkeypatch.setattr(folded, "folds", lambda *_: True)
        monkeypatch.setattr(steps, "fewest_cells", lambda: 0)
        monkeypatch.setattr(steps, "why_no_steps", lambda *_: None)
    yield
    assert not [why for why in left if why.startswith("no kernel")]


def stencils(fn: Callable[..., Any], *args: Any) -> list[Stencil]:
    """Those that are found in a function, in reductions too."""
    bodies = [k.body for k in Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels]
    return [b.stencil if isinstance(b, Folded) else b for b in bodies if isinstance(b, (Stencil, Folded))]


def inside(fn: Callable[..., Any], *args: Any) -> list[str]:
    """What became of loops and branches."""
    fused = Fused(jax.make_jaxpr(fn)(*args))
    assert fused.rewritten
    return fused.inside


def check(fn: Callable[..., Any], *args: Any, count: int = 1, rtol: float = 1e-5) -> Stencil:
    """So many stencils, which give what the function does."""
    found = stencils(fn, *args)
    assert len(found) == count
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), rtol, 1e-6)
    return found[0]


def laplacian(p: Any) -> Any:
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * p[1:-1, 1:-1]


def rolled(u: Any) -> Any:
    return u + 0.1 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)


def kept(u: Any) -> Any:
    return u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] + 0.1 * laplacian(u))


def kinds(fn: Callable[..., Any], *args: Any) -> list[str]:
    found = Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels
    names = {Stencil: "stencil", Folded: "reduce of stencil"}
    return sorted(names.get(type(k.body)) or k.body.sites[0].family for k in found)


BIG = jnp.asarray(RNG.normal(size=(180, 250)).astype(np.float32))
