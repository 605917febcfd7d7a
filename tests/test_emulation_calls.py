"""Random calls of the CUDA half on the emulated GPU."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from typing import Any

import pytest
from drawn import count

from tests.emulation import toolchain

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation needs an x86-64 host")


DEVICES = {
    "sm_90": "",
    "small": "multiprocessors=1 threads=1024 blocks=16 shared=49152 shared_multiprocessor=65536 l2=65536",
    "passes": "multiprocessors=8 threads=1024 blocks=16 shared=6144 shared_multiprocessor=8192 l2=65536",  # many, in histograms
    "chains": "multiprocessors=1 threads=512",
    "stencils": "multiprocessors=4",
    "sm_80": "multiprocessors=108 major=8 minor=0 shared=166912 shared_multiprocessor=167936 l2=41943040",
}
CALLS = count(0) // 4
"""Of each operator, if more than in ``RANDOM``: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_emulation_calls.py -k random``."""
RANDOM = {  # device: families, numbers of an operator's calls, and kernels that must have run
    "sm_90": (
        "scan reduce segments hist",
        range(1),
        "ScanAcross ScanEach ScanFlat ScanRows ReduceAcross ReduceBlocks ReduceParts ReduceRows ReduceWarps "
        "SegmentsAcross SegmentsBorders SegmentsIdentity SegmentsLong SegmentsShort HistCombine HistShared HistTiny",
    ),
    "small": (
        "scan reduce segments hist martin",
        range(1, 2),
        "ReduceAcrossParts ReduceMatrix ReduceProducerConsumer ReduceTree ReduceWarpTree "
        "SegmentsMatrix SegmentsProducerConsumer SegmentsTree SegmentsWarpTree HistFill",
    ),
    "chains": ("chains", range(2), "ScanFlatWaiting ScanRowsWaiting"),
    "stencils": ("stencil", range(1), "StencilCells StencilSteps"),
    "sm_80": ("hist --only 5 6 9 10 11", range(3, 4), "HistCombine HistFill HistGlobal HistShared"),  # with narrower atomics
    "passes": ("hist", range(6, 8), "HistCluster HistGlobal HistSample"),
}


@pytest.mark.parametrize("device", RANDOM)
@pytest.mark.cover(2)
def test_random_calls(device: str, record_property: Any) -> None:
    """In a process of its own: there the emulation takes XLA's CPU's place."""
    families, calls, kernels = RANDOM[device]
    command = [sys.executable, "-m", "tests.emulation.random_calls", str(max(len(calls), CALLS)), *families.split()]
    command += ["--first", str(calls.start), "--device", DEVICES[device]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=toolchain.ROOT)
    found = re.search(r"^(\d+) kernels, (\d+) cases$", done.stdout, re.M)
    assert done.returncode == 0 and found, done.stdout[-4000:] + done.stderr[-4000:]
    assert set(kernels.split()) <= set(re.findall(r"(\w+):\d", done.stdout))
    record_property("kernels run on the emulated GPU", int(found[1]))
    record_property("random cases run on the emulated GPU", int(found[2]))


COPY_EACH = r"""
import re
import tests.emulation.plugin
import jax, jax.numpy as jnp, numpy as np
import jaxprims as jp
from jaxprims.targets.cuda.plans import HistogramPlan
from jaxprims.targets.plans import forced

def merge(a, b):  # more than an atomic can be
    return a[0] + b[0], a[1] * b[1], a[2] ^ b[2], jnp.maximum(a[3], b[3]), jnp.minimum(a[4], b[4])

n = 20_011
rng = np.random.default_rng(1)
i, w = rng.integers(-1, 4, n).astype(np.int32), rng.integers(0, 100, n).astype(np.uint32)
five = (w, 2 * w + 1, w, w, w)
calls = {
    "HDW": lambda: jp.reduce_by_index(w.astype(np.float32), i, 3, jnp.add),
    "CAS": lambda: jp.reduce_by_index(w, i, 3, lambda a, b: jnp.minimum(a + b, jnp.uint32(2_000)), identity=0),
    "XCG": lambda: jp.reduce_by_index(five, i, 3, merge, identity=(0, 1, 0, 0, 2**32 - 1)),
}
groups = [w[i == k] for k in range(3)]
wanted = {"HDW": [g.sum() for g in groups], "CAS": [min(g.sum(), 2000) for g in groups]}
with np.errstate(over="ignore"):
    wanted["XCG"] = [f(g) for f in (np.sum, lambda g: np.prod(2 * g + 1), np.bitwise_xor.reduce, np.max, np.min) for g in groups]
for kind, call in calls.items():
    with forced(HistogramPlan("shared", subhistograms=1024)):
        assert re.search(r"M = (1024|512), S = 1", jp.explain(lambda: call(), target="sm_90")().calls[0].strategy)
        got = np.ravel(jax.tree.leaves(jax.jit(lambda: call())()))
    np.testing.assert_array_equal(got, np.asarray(wanted[kind], np.uint32), kind)
"""


def test_histograms_with_a_copy_for_each_thread() -> None:
    """Which take no atomics, whatever the operator."""
    done = subprocess.run([sys.executable, "-c", COPY_EACH], capture_output=True, text=True, check=False, cwd=toolchain.ROOT)
    assert done.returncode == 0, done.stderr[-4000:]


def test_operators_that_end_only_on_what_is_in_the_data() -> None:
    """Scans, reductions and histograms apply them to nothing else, in no lane: it would hang."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.emulation.plugin", "tests/test_endless.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=toolchain.ROOT, timeout=200)
    assert done.returncode == 0, done.stdout[-4000:]
