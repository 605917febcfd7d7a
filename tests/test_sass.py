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
        /*0080*/                   BSSY B0, `(.L_x_4) ;
        /*0080*/                   BRA P3, `(.L_x_5) ;
        /*0080*/                   LDG.E.U8 R18, desc[UR4][R14.64] ;
        /*0080*/                   BSYNC B0 ;
.L_x_5:
        /*0080*/                   BSYNC.RECONVERGENT B0 ;
.L_x_4:
        /*0090*/               @P2 BRA `(.L_x_0) ;
.L_x_2:
        /*00a0*/                   EXIT ;
        /*00b0*/                   BRA `(.L_x_3);
.text.Other:
        /*0000*/                   EXIT ;
"""


def test_a_kernels_hot_loop() -> None:
    instructions, labels = sass.code(TEXT, "Twice")
    assert len(instructions) == 17 and labels[".L_x_2"] == 15 and labels[".L_x_4"] == 14
    assert sass.loops(instructions, labels) == [(1, 14), (5, 6)]
    assert sass.hot(instructions, labels) == [(1, 14)]
    way = sass.main_way(instructions, labels, 1, 14)
    assert (len(way), sass.streamed(way), sass.widest(way)) == (12, 48, 16)
    assert [i.name for i in way[-3:]] == ["BRA", "BSYNC", "BRA"]  # not by the narrow load
    assert sass.in_flight(way) == 2  # the first is asked for before the third; a narrower one does not count
    assert sass.main_way(instructions, labels, 0, 16)[-1].name == "EXIT"
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


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.cover(2)
@pytest.mark.dear
def test_atomics_in_shared_memory(arch: str) -> None:
    """Those of 32-bit integers are instructions, others loops, as ``loops_in_shared`` of jaxprims/targets/cuda has it."""
    types = {"int": False, "unsigned": False, "float": True, "double": True, "unsigned long long": True}
    for number, (of, loop) in enumerate(types.items()):
        call = "atomicAdd(s + i[threadIdx.x], o[threadIdx.x])"
        source = f"""extern "C" __global__ void k{number}(const int* i, {of}* o) {{
          __shared__ {of} s[64];
          s[threadIdx.x] = 0, __syncthreads(), {call}, __syncthreads(), o[threadIdx.x] = s[threadIdx.x];
        }}"""
        try:
            text = sass.disassembled(nvrtc.compile_cubin(source, arch).image)
        except sass.Unavailable as error:
            pytest.skip(str(error))
        instructions, labels = sass.code(text, f"k{number}")
        assert any(start < end for start, end in sass.loops(instructions, labels)) == loop, (of, arch)
        assert any(i.name == "ATOMS" for i in instructions), (of, arch)


def test_what_grew_is_named() -> None:
    row = {"call": "sum", "target": "sm_90", "kernel": "K", "per_element": 10.0, "instructions": 100, "main_way_per_element": 5.0}
    row |= {"load_bytes": 16, "kilobytes_in_flight": 64.0, "occupancy": 0.5}
    assert sass.grown([row], [row | {"per_element": 10.9, "kilobytes_in_flight": 60.0}]) == []
    assert sass.grown([], [row]) == []
    worse = row | {"per_element": 11.1, "load_bytes": 8}
    assert sass.grown([row], [worse]) == ["sum, sm_90, K: per_element 10.0 -> 11.1", "sum, sm_90, K: load_bytes 16 -> 8"]


@pytest.mark.dear
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
    known = {
        (r["call"], r["kernel"])
        for r in report["kernels"]
        if r["target"] == target and r["call"] in sass.QUICK and "CUB" not in r["kernel"]
    }
    assert {(r["call"], r["kernel"]) for r in now} == known
    assert sass.grown(report["kernels"], now) == []
