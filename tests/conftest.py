"""Shared by all tests: how strictly JAX is run."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

# A process for each core runs tests; threads of NumPy's that wait for more than its few small matrices take their time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest

# What XLA compiles here is the reference, of a few elements each: it need not be fast, but there soon. Newer ones do not know the
# second flag, and need it less.
QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if [int(part) for part in version("jaxlib").split(".")[:2]] < [0, 11]:
    QUICK.append("--xla_cpu_use_fusion_emitters=false")
DEVICES = "--xla_force_host_platform_device_count=8"  # what is not sharded runs on the first
os.environ["XLA_FLAGS"] = " ".join([*QUICK, DEVICES, os.environ.get("XLA_FLAGS", "")])
# What is traced and compiled here is kept for the process's life: to look through it again and again for what nobody wants any
# more takes a twentieth of the time.
gc.set_threshold(50_000, 20, 100)
# As errors pass through JAX it asks the file system about every frame, which takes longer than most of what raises them.
jax.config.update("jax_traceback_filtering", "off")
# Nobody reads which line an operation of a compiled program comes from; to say so takes a fifteenth of the time.
jax.config.update("jax_traceback_in_locations_limit", 0)


@pytest.hookimpl(trylast=True)  # of those that were asked for by name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with ``@pytest.mark.cover(6)`` the six cases that cover the most; ``JAXPRIMS_CASES=2``: of each test at most two;
    ``JAXPRIMS_CASES=all``: all of them."""
    most = os.environ.get("JAXPRIMS_CASES", "marked")
    if most == "all":
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = set()
    for cases in tests.values():
        mark = cases[0].get_closest_marker("cover")
        limit = len(cases) if most == "marked" else int(most)
        chosen.update(cover(cases, min([limit, *(mark.args if mark else ())])))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def cover(cases: list[pytest.Item], most: int) -> list[pytest.Item]:
    """The first case, and of the others in turn the one that adds most pairs of parameters' values, among equals the furthest
    from those before it: of a test with one parameter, cases that are spread evenly."""
    if most >= len(cases):
        return cases
    values = [list(enumerate(case.nodeid.partition("[")[2].split("-"))) for case in cases]
    pairs = [set(combinations_with_replacement(each, 2)) for each in values]
    chosen, left = [0], set(range(1, len(cases)))
    met = set(pairs[0])
    while len(chosen) < most:
        best = max(sorted(left), key=lambda i: (len(pairs[i] - met), min(abs(i - j) for j in chosen)))
        chosen.append(best)
        left.remove(best)
        met |= pairs[best]
    return [cases[i] for i in sorted(chosen)]


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests are of kernels, however small their inputs: where XLA's own operation would be the strategy, it has tests of its own
    (``@pytest.mark.strategies``)."""
    if "jaxprims" not in sys.modules or request.node.get_closest_marker("strategies") is not None:
        yield
        return
    from jaxprims.targets.plans import AnyKernel, forced

    with forced(AnyKernel()):
        yield


@pytest.fixture(autouse=True)
def left() -> Iterator[list[str]]:
    """Why ``fuse`` left anything to XLA in the test. A fault is not hidden by doing without ``fuse``."""
    found: list[str] = []
    if "jaxprims" not in sys.modules:
        yield found
        return
    from jaxprims.fusion.rewrite import Rewritten

    plain = Rewritten.__init__

    def noted(self: Rewritten, closed: Any, kernels: Any, left: Any, **more: Any) -> None:
        found.extend(why for _, why in left)
        plain(self, closed, kernels, left, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewritten, "__init__", noted)
        yield found
    assert not [why for why in found if "a fault in fuse" in why]


@pytest.fixture(autouse=True)
def draws(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whichever tests ran before it, alone or among others."""
    for name in [n for n, value in vars(request.module).items() if isinstance(value, np.random.Generator)]:
        setattr(request.module, name, np.random.default_rng(zlib.crc32(request.node.nodeid.encode())))


MANY = 500
"""Programs that JAX compiled, after which all are forgotten."""
_compiled = 0


def _count(event: str, duration: float, **more: Any) -> None:
    global _compiled
    _compiled += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture(autouse=True)
def few_programs() -> None:
    """JAX keeps an MLIR context for each program that it compiled, and the more of them there are, the longer it takes to make
    another: twice as long beside 1,500. A process that tests half of everything compiles some thousands."""
    global _compiled
    if _compiled > MANY:
        _compiled = 0
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture
def strict() -> Iterator[None]:
    """No implicit promotion of dtypes or ranks: neither in the test nor in what the library does with its arguments."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def filtered() -> Iterator[None]:
    """Errors pass through JAX as by default."""
    jax.config.update("jax_traceback_filtering", "auto")
    yield
    jax.config.update("jax_traceback_filtering", "off")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled kernels are kept during one test: there are none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jaxprims"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many eager calls were compiled in the test, or tried."""
    from jaxprims.calls import kept

    kept.forget()
    made: list[Any] = []
    of_arrays = kept._of_arrays
    monkeypatch.setattr(kept, "_of_arrays", lambda *call: [made.append(call), of_arrays(*call)][1])
    return lambda: len(made)


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
