"""Where compiled contestants are built, and how: on demand, again only when a source has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ..contestant import Missing

SOURCES = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BENCH_BUILD", SOURCES / "build"))


def tool(name: str, variable: str | None = None) -> str:
    """The path of a program: from the environment variable, from beside the interpreter, or from PATH."""
    given = os.environ.get(variable) if variable else None
    found = given or shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not found:
        raise Missing(f"no {name} on this machine" + (f" (set {variable} to its path)" if variable else ""))
    return found


def run(command: Sequence[str | Path]) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def newer(target: Path, *sources: Path) -> bool:
    """Whether ``target`` is there and no older than its sources."""
    return target.exists() and all(target.stat().st_mtime >= s.stat().st_mtime for s in sources)


def folder(name: str) -> Path:
    """A build folder of its own for each interpreter."""
    path = BUILD / f"{name}-{sys.implementation.cache_tag}"
    path.mkdir(parents=True, exist_ok=True)
    return path
