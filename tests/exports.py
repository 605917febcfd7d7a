"""Functions exported, and called by a process that has never traced them."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

import jaxprims as jp

export = functools.partial(
    jax.export.export, disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(t) for t in jp.CUSTOM_CALL_TARGETS]
)

CALLED = """
    import pickle, sys, jax, jaxprims, numpy as np
    from pathlib import Path
    folder = Path(sys.argv[1])
    results = []
    for text, calls in pickle.loads((folder / "calls").read_bytes()):
        f = jax.export.deserialize(bytearray(text))
        results.append([[np.asarray(leaf) for leaf in jax.tree.leaves(f.call(*arguments))] for arguments in calls])
    (folder / "results").write_bytes(pickle.dumps(results))
"""


def run_python(code: str, *arguments: str, **variables: str) -> str:
    """Runs a script in a fresh process."""
    paths = [str(Path(jp.__file__).parents[1]), str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def called_elsewhere(folder: Path, *functions: tuple[jax.export.Exported, list[Any]]) -> list[list[list[np.ndarray]]]:
    """Each function's leaves for each of its tuples of arguments, from a fresh process; files go to the folder."""
    calls = [(bytes(f.serialize()), jax.tree.map(np.asarray, arguments)) for f, arguments in functions]
    (folder / "calls").write_bytes(pickle.dumps(calls))
    run_python(CALLED, str(folder))
    return pickle.loads((folder / "results").read_bytes())
