"""Arrays over the devices of several processes on this machine (``jax.distributed``; CPU collectives by gloo)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("several_processes.py")


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes(processes: int) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=8", "device_count=2")
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), address, str(processes)]
    running = [
        subprocess.Popen([*command, str(rank)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(processes)
    ]
    try:
        said = [p.communicate(timeout=240)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0] * processes, "\n".join(said)
    assert all("the same" in text for text in said)
