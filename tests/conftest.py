"""Shared by all tests: how strictly JAX is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import pytest


@pytest.fixture
def strict() -> Iterator[None]:
    """No implicit promotion of dtypes or ranks: neither in the test nor in what the library does with its arguments."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit types, for one test."""
    with jax.enable_x64(True):
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Sums up what tests counted with ``record_property``: kernels compiled, cases run."""
    totals: dict[str, int] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, count in report.user_properties:
            totals[name] = totals.get(name, 0) + count
    for name, count in sorted(totals.items()):
        terminalreporter.write_line(f"{count} {name}")
