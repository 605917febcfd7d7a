"""Arrays over the devices of several processes on this machine (``jax.distributed``; CPU collectives by gloo)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.processes import together

SCRIPT = Path(__file__).with_name("several_processes.py")


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes(processes: int) -> None:
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=8", "device_count=2")
    said = together([str(SCRIPT)], processes, {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, 240)
    assert all("the same" in text for text in said)
