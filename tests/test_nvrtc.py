"""What a GPU and its driver can run of what NVRTC makes, on machines that have neither."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="NVRTC is not installed")

from jaxprims.targets.cuda import compiler, nvrtc

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


def test_architectures_younger_than_nvrtc_get_ptx() -> None:
    cubin, ptx = nvrtc.compile_cubin(SOURCE, "sm_90"), nvrtc.compile_cubin(SOURCE, "sm_999")
    assert cubin.image.startswith(b"\x7fELF")
    assert [used.kernel for used in cubin.resources] == ["twice"]
    assert f".target sm_{max(nvrtc.supported())}".encode() in ptx.image
    assert ptx.image.endswith(b"\0")  # the driver looks for the end of a text
    assert ptx.resources == ()
    assert nvrtc.compile_cubin(SOURCE, "sm_90a").image.startswith(b"\x7fELF")
    with pytest.raises(RuntimeError, match="sm_999 by PTX of compute_"):
        nvrtc.compile_cubin("nonsense", "sm_999")


def test_architectures_between_those_that_nvrtc_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A younger one's PTX would not do."""
    monkeypatch.setattr(nvrtc, "supported", lambda: (80, 90, 120))
    assert b".target sm_90" in nvrtc.compile_cubin(SOURCE, "sm_103").image
    monkeypatch.setattr(nvrtc, "supported", lambda: (100, 120))
    with pytest.raises(RuntimeError, match=r"does not compile for sm_80: .* as old"):
        nvrtc.compile_cubin(SOURCE, "sm_80")


def test_gpus_and_drivers_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"compute capability 8\.0 or later, this GPU has 7\.5"):
        compiler.image("", "sm_75", "any")
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")
    for driver in (None, (13, 0), (14, 2)):  # within a major version any driver loads a cubin
        monkeypatch.setattr(nvrtc, "driver_version", lambda driver=driver: driver)
        nvrtc.check_usable("sm_90")
    monkeypatch.setattr(nvrtc, "driver_version", lambda: (12, 8))
    with pytest.raises(RuntimeError, match=r"NVRTC 13\.1 do not load .* serves CUDA 12\.8: pip install 'jaxprims\[cuda12\]'"):
        compiler.image("", "sm_90", "any")
