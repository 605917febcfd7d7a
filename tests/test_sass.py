"""The hot loops' machine code, read from disassemblies; it is no longer than it was when the report was made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="NVRTC is not installed")

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # bench is not installed

from bench import sass  # noqa: E402
from jaxprims.targets.cuda import nvrtc  # noqa: E402

TEXT = """
.text.Twice:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   FADD R4, R4, R4 ;
        /*0040*/                   LDG.E.128 R12, desc[UR4][R2.64+0x20] ;
.L_x_1:
        /*0050*/                   LDG.E R16, desc[UR4][R14.64] ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/                   LD.E.64.STRONG.GPU R18, desc[UR4][R2.64] ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0090*/               @P2 BRA `(.L_x_0) ;
.L_x_2:
        /*00a0*/                   EXIT ;
        /*00b0*/                   BRA `(.L_x_3);
.text.Other:
        /*0000*/                   EXIT ;
"""


def test_a_kernels_hot_loop() -> None:
    instructions, labels = sass.code(TEXT, "Twice")
    assert len(instructions) == 12 and labels == {".L_x_0": 1, ".L_x_1": 5, ".L_x_2": 10}
    assert sass.loops(instructions, labels) == [(1, 9), (5, 6)]
    loop = sass.hot(instructions, labels)
    assert (len(loop), sass.streamed(loop), sass.widest(loop)) == (9, 48, 16)
    assert sass.in_flight(loop) == 2  # the first is asked for before the third; a narrower one does not count
    inner = instructions[5:7]
    assert (sass.streamed(inner), sass.in_flight(inner)) == (4, 1)
    assert [len(code) for code in sass.code(TEXT, "Other")] == [1, 0]


def test_resident_warps() -> None:
    assert sass.resident_warps(32, 0, 1024, "sm_90") == 64
    assert sass.resident_warps(33, 0, 1024, "sm_90") == 32
    assert sass.resident_warps(64, 0, 256, "sm_90") == 32
    assert sass.resident_warps(32, 48 << 10, 256, "sm_90") == 4 * 8
    assert sass.resident_warps(32, 48 << 10, 256, "sm_80") == 3 * 8
    assert sass.resident_warps(16, 0, 32, "sm_90") == 32


def test_what_grew_is_named() -> None:
    row = {"call": "sum", "target": "sm_90", "kernel": "K", "per_element": 10.0, "instructions": 100}
    row |= {"load_bytes": 16, "kilobytes_in_flight": 64.0, "occupancy": 0.5}
    assert sass.grown([row], [row | {"per_element": 10.9, "kilobytes_in_flight": 60.0}]) == []
    assert sass.grown([], [row]) == []
    worse = row | {"per_element": 11.1, "load_bytes": 8}
    assert sass.grown([row], [worse]) == ["sum, sm_90, K: per_element 10.0 -> 11.1", "sum, sm_90, K: load_bytes 16 -> 8"]


def test_hot_loops_have_not_grown() -> None:
    """By a tenth: whoever means it makes a new report, ``python -m bench.sass``."""
    try:
        sass.disassembler()
    except sass.Unavailable as error:
        pytest.skip(str(error))
    report = json.loads((ROOT / "bench" / "results" / "sass.json").read_text())
    if report["nvrtc"] != nvrtc.version():
        pytest.skip(f"the report was made with NVRTC {report['nvrtc']}")
    target = report["targets"][0]
    now = [row for name in sass.QUICK for row in sass.rows(name, [target])]
    known = {(r["call"], r["kernel"]) for r in report["kernels"] if r["target"] == target and r["call"] in sass.QUICK}
    assert {(r["call"], r["kernel"]) for r in now} == known
    assert sass.grown(report["kernels"], now) == []
