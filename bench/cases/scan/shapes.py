"""Robustness: cumsum of the same number of elements in every shape, and along every axis (the question of de Kluijver 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ...contestant import Case, equal
from ...harness import OURS
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import in_shape, like_first, merged, walk, with_result

GROUP = "shapes"
FACTOR = 1.5
"""No shape shall take more times as long for an element as the best one."""


def cases(quick: bool) -> list[Case]:
    n = 96_000 if quick else 50_000_000
    rank_4 = (12, 20, 20, 20) if quick else (50, 100, 100, 100)
    shapes: list[tuple[tuple[int, ...], int, dict[str, float]]] = [
        ((n,), 0, {"xla": 26.0, "futhark": 2.0}),
        ((4, n // 4), 1, {}),
        ((5, n // 5), 1, {"futhark": 1.7}),
        ((n // 5000 if not quick else 40, 5000 if not quick else 2400), 1, {}),
        ((n // 5000 if not quick else 40, 5000 if not quick else 2400), 0, {"xla": 25.0}),
        ((n // 1000, 1000), 1, {"futhark": 1.35}),
        ((n // 8, 8), 1, {"futhark": 1.0}),
        ((n // 4, 4), 0, {}),
        *((rank_4, axis, {}) for axis in (3, 2, 1, 0)),
    ]
    return [cumsum(*s) for s in shapes]


def text(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{s:,}" for s in shape)


def cumsum(shape: tuple[int, ...], axis: int, targets: dict[str, float]) -> Case:
    outer, n, inner = merged(axis, shape)
    if inner > 1:
        peer = in_shape(futhark("cumsum_middle", file="scan"), (outer, n, inner), shape)
    elif outer > 1:
        peer = in_shape(futhark("cumsum_rows", file="scan"), (outer, n), shape)
    else:
        peer = futhark("cumsum", file="scan")
    contestants = {
        **native("cumsum", outer, n, inner, outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.cumsum(x, axis=axis)),
        "xla": arrays.xla(lambda x: jax.lax.cumsum(x, axis=axis)),
        "numpy": arrays.numpy(lambda x, out: np.cumsum(x, axis, out=out), with_result),
        "torch": arrays.torch(lambda t, x, out: t.cumsum(x, axis, out=out), with_result),
        "futhark": peer,
    }
    name = text(shape) + (f", axis {axis}" if len(shape) > 1 else "")
    return Case(GROUP, name, outer * n * inner, walk(*shape), contestants, equal, targets)


def verdicts(report: dict[str, Any]) -> Iterator[str]:
    """Whether the slowest shape is near enough to the fastest."""
    ours = {c["name"]: c["contestants"][OURS]["ns_per_element"] for c in report["cases"] if _counts(c)}
    if len(ours) > 1 and not report["options"]["quick"]:
        best, worst = min(ours, key=lambda n: ours[n]), max(ours, key=lambda n: ours[n])
        factor = ours[worst] / ours[best]
        verdict = "met" if factor <= FACTOR else "NOT MET"
        yield f"{verdict:8}{GROUP}: {worst} takes {factor:.2f} times as long for an element as {best}, wanted at most {FACTOR:g}"


def _counts(case: dict[str, Any]) -> bool:
    return case["group"] == GROUP and OURS in case["contestants"]
