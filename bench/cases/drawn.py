"""Calls of everyday functions, of shapes, types and transformations drawn at random: what nobody has tuned anything to."""

from __future__ import annotations

import math
import os

import jax
import numpy as np

import jaxprims as jp

from ..contestant import Case
from . import everyday
from .everyday import BATCH, EAGER, FORWARD, GRADIENT, LOOP, Call

SEED, COUNT = int(os.environ.get("JAXPRIMS_BENCH_SEED", "1")), 240
"""Which calls, and how many; other ones with another ``JAXPRIMS_BENCH_SEED``."""

KINDS = (FORWARD, FORWARD, GRADIENT, BATCH, LOOP, EAGER)
MOST = 2_000_000
"""Numbers of an argument; a tenth of it under ``vmap``."""

plots, verdicts = everyday.plots, everyday.verdicts


def cases(quick: bool) -> list[Case]:
    rng, drawn = np.random.default_rng(SEED), dict[tuple[str, str], Case]()
    while len(drawn) < (4 if quick else COUNT):
        kind = str(rng.choice(KINDS))
        call = _call(rng, kind, 2000 if quick else MOST if kind in (FORWARD, GRADIENT) else MOST // 10)
        drawn[kind, call.name] = everyday.case(call, kind)
    return list(drawn.values())


def _size(rng: np.random.Generator, least: float, most: float) -> int:
    """Of every order of magnitude alike."""
    return round(math.exp(rng.uniform(math.log(least), math.log(max(least, most)))))


def _call(rng: np.random.Generator, kind: str, most: int) -> Call:
    drawers = [_by_segment, _by_segment, _by_segment, _along, _along, _histogram, _messages, _affine]
    return drawers[rng.integers(len(drawers))](rng, kind, most)


def _by_segment(rng: np.random.Generator, kind: str, most: int) -> Call:
    width = int(rng.choice([0, 0, 1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 48, 64, 100, 128, 256, 300]))
    n = _size(rng, 200, most / max(1, width))
    segments = _size(rng, 1, n)
    shape, ascending = (n, width) if width else (n,), bool(rng.random() < 0.3)
    name = str(rng.choice(["sum", "max", "min", "mean", "softmax"] + ["prod"] * (kind != GRADIENT)))
    whole = kind != GRADIENT and name not in ("mean", "softmax")
    dtype = np.dtype(str(rng.choice(["float32"] * 6 + ["int32", "uint8", "float16"] * whole)))
    title = f"segment_{name} {dtype.name} {'x'.join(map(str, shape))} into {segments}{', sorted' * ascending}"
    make = everyday.with_ids(shape, segments, dtype, ascending)
    plain = {"mean": everyday.mean, "softmax": everyday.softmax}.get(name)
    if plain is not None:
        return Call(title, make, everyday.bound(plain, segments), everyday.bound(getattr(jp, f"segment_{name}"), segments))
    plain, ours = getattr(jax.ops, f"segment_{name}"), getattr(jp, f"segment_{name}")
    return Call(
        title,
        make,
        lambda x, i: plain(x, i, segments, indices_are_sorted=ascending),
        lambda x, i: ours(x, i, segments, indices_are_sorted=ascending),
    )


def _along(rng: np.random.Generator, kind: str, most: int) -> Call:
    rest, shape = _size(rng, 500, most), list[int]()
    for _ in range(int(rng.choice([0, 1, 1, 2]))):
        shape.append(_size(rng, 2, rest / 2))
        rest = max(2, rest // shape[-1])
    shape = [int(k) for k in rng.permutation([*shape, rest])]
    axis = int(rng.integers(len(shape)))
    name = str(rng.choice([k for k in everyday.ALONG if k != "argmax" or kind != GRADIENT]))
    plain, ours = everyday.ALONG[name]
    halves = ["float16", "bfloat16"] * (name in ("sum", "max", "cummax", "logsumexp", "argmax"))
    whole = ["int32", "uint8"] * (name in ("max", "cummax", "argmax") and kind != GRADIENT)
    dtype = str(rng.choice(["float32"] * 6 + halves + whole))
    title = f"{name} {dtype} {'x'.join(map(str, shape))} along {axis}"
    return Call(title, everyday.floats(*shape, dtype=dtype), everyday.along(plain, axis), everyday.along(ours, axis))


def _histogram(rng: np.random.Generator, kind: str, most: int) -> Call:
    if kind == GRADIENT:  # there is none
        return _along(rng, kind, most)
    drawn = rng.choice(np.array([everyday.histogram, everyday.histogram_by_edges, everyday.bincount]))
    return drawn(_size(rng, 300, most), _size(rng, 2, 5000), ())


def _messages(rng: np.random.Generator, kind: str, most: int) -> Call:
    if kind in (LOOP, EAGER):  # which take the first few of the nodes
        return _by_segment(rng, kind, most)
    features = int(rng.choice([1, 2, 3, 4, 8, 16, 20, 32, 64, 100]))
    edges = _size(rng, 500, most / features)
    return everyday.messages(edges, features, _size(rng, 10, edges), ())


def _affine(rng: np.random.Generator, kind: str, most: int) -> Call:
    n, lanes = _size(rng, 100, most / 4), int(rng.choice([1, 1, 2, 5, 10, 40, 200]))
    shape = [max(4, n // lanes), lanes]
    axis = int(rng.integers(2))
    return everyday.affine_scan(shape[::-1] if axis else shape, axis, ())
