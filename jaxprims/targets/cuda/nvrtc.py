"""CUDA C++ -> cubin, by NVRTC through ``cuda-core``. It needs neither a GPU nor a driver.

For an architecture that NVRTC does not know the driver gets PTX instead, of the youngest before it that NVRTC knows.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from typing import Any

OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "fma": False,
    "device_as_default_execution_space": True,
    "ptxas_options": ["-v"],
    "diag_suppress": [128, 177, 550],
}
"""No contraction: arithmetic is the same as everywhere else. Constexpr functions need no marks. The verbose assembler reports
registers and spills; loops of no turn, unused constants and variables are the skeletons' nature."""


class Unavailable(ImportError):
    """NVRTC is not installed."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a kernel takes, as the assembler reports it: registers of a thread, bytes of static shared memory of a block, bytes of
    a thread's stack, and bytes spilled from registers to it."""

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A cubin or PTX, and the compiler's log, which is empty for PTX."""

    image: bytes
    log: str

    @functools.cached_property
    def resources(self) -> tuple[Resources, ...]:
        """Of each kernel."""
        return tuple(map(_resources, re.split(r"Compiling entry function ", self.log)[1:]))


def _resources(report: str) -> Resources:
    def number(pattern: str, text: str) -> int:
        found = re.search(pattern, text)
        return int(found.group(1)) if found else 0

    kernel = re.match(r"'(\w+)'", report)
    if kernel is None:
        raise ValueError(f"not an assembler's report: {report[:200]!r}")
    own = report[report.find(f"Function properties for {kernel.group(1)}") :]  # behind those of functions that were not inlined
    return Resources(
        kernel.group(1),
        number(r"Used (\d+) registers", report),
        number(r"(\d+) bytes smem", report),
        number(r"(\d+) bytes stack frame", own),
        number(r"(\d+) bytes spill stores", own) + number(r"(\d+) bytes spill loads", own),
    )


@functools.cache
def version() -> str:
    """NVRTC's, as part of a cubin's name in caches. Raises :class:`Unavailable`."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as e:
        raise Unavailable("GPU kernels are compiled by NVRTC: pip install 'jaxprims[nvrtc]' (or [cuda12], [cuda13])") from e
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


OLDEST = 80
"""The least compute capability that kernels are written for: 8.0."""


@functools.cache
def supported() -> tuple[int, ...]:
    """The architectures that NVRTC makes code for: 90 for "sm_90"."""
    version()
    from cuda.bindings import nvrtc

    _, known = nvrtc.nvrtcGetSupportedArchs()
    return tuple(known)


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver serves; None where there is no driver."""
    from cuda.bindings import driver

    try:
        _, number = driver.cuDriverGetVersion()
    except RuntimeError:
        return None
    return number // 1000, number % 1000 // 10


def check_usable(arch: str) -> None:
    """Raises RuntimeError where a GPU of this architecture, or its driver, cannot run what NVRTC makes: in words that help, where
    the driver has only a number."""
    capability = number_of(arch)
    if capability < OLDEST:
        found = f"{capability // 10}.{capability % 10}"
        raise RuntimeError(f"jaxprims' GPU kernels want compute capability {OLDEST / 10} or later, this GPU has {found}")
    drivers = driver_version()
    if drivers is not None and drivers[0] < int(version().split(".")[0]):
        major, minor = drivers
        raise RuntimeError(
            f"kernels compiled by NVRTC {version()} do not load on this GPU's driver, which serves CUDA {major}.{minor}: "
            f"pip install 'jaxprims[cuda{major}]', or a newer driver"
        )


def number_of(arch: str) -> int:
    """90 for "sm_90", and for "sm_90a"."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def compile_cubin(source: str, arch: str) -> Compiled:
    """Compiles for one architecture, "sm_90" say. Raises :class:`Unavailable`, and RuntimeError with the compiler's words."""
    if number_of(arch) not in supported():
        return Compiled(_ptx(source, arch), "")
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    try:
        code = Program(source, "c++", ProgramOptions(arch=arch, **OPTIONS)).compile("cubin", logs=log)
    except Exception as e:
        raise RuntimeError(f"a kernel does not compile for {arch}: {e}") from e
    return Compiled(bytes(code.code), log.getvalue())


def _ptx(source: str, arch: str) -> bytes:
    """For the driver to assemble. ``cuda-core`` would ask the driver first whether it can, and there may be none."""
    from cuda.bindings import nvrtc

    virtual = max((known for known in supported() if known <= number_of(arch)), default=None)
    if virtual is None:
        raise RuntimeError(f"a kernel does not compile for {arch}: NVRTC {version()} knows no architecture as old as that")

    def done(code: nvrtc.nvrtcResult, *results: Any) -> Any:
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"a kernel does not compile for {arch} by PTX of compute_{virtual}: {code.name}")
        return results[0] if results else None

    options = [f"--gpu-architecture=compute_{virtual}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space"]
    program = done(*nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        done(*nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
        image = bytes(done(*nvrtc.nvrtcGetPTXSize(program)))
        done(*nvrtc.nvrtcGetPTX(program, image))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return image
