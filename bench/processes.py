"""Programs of several processes on this machine, which find each other by an address (``jax.distributed``)."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence


def together(arguments: Sequence[str], processes: int, env: Mapping[str, str], timeout: float) -> list[str]:
    """What Python with these arguments says in each of so many processes; they are told an address, their number, and which
    one each of them is. RuntimeError if one fails."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    command = [sys.executable, *arguments, address, str(processes)]
    running = [
        subprocess.Popen([*command, str(rank)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(processes)
    ]
    try:
        said = [p.communicate(timeout=timeout)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    if any(p.returncode for p in running):
        raise RuntimeError("\n".join(said))
    return said
