"""What Python sees of the CUDA half (``cuda/launcher/cuda_module.cc``)."""

from collections.abc import Sequence
from typing import Any, Final

def handlers(family: str) -> dict[str, Any]: ...
def host_handler(family: str) -> Any: ...

class DeviceInfo:
    ordinal: int
    name: str
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_block: int
    shared_per_multiprocessor: int
    l2_bytes: int
    major: int
    minor: int
    def __init__(
        self,
        *,
        ordinal: int = 0,
        multiprocessors: int,
        threads_per_multiprocessor: int,
        blocks_per_multiprocessor: int,
        shared_per_block: int,
        shared_per_multiprocessor: int,
        l2_bytes: int,
        major: int,
        minor: int,
        name: str = "",
    ) -> None: ...

def driver_error() -> str: ...
def device_count() -> int: ...
def available() -> bool: ...
def device(ordinal: int = 0) -> DeviceInfo: ...

class KernelInfo:
    registers: Final[int]
    max_threads: Final[int]
    local_bytes: Final[int]
    static_shared_bytes: Final[int]

def kernel_info(text: str, key: int, ordinal: int = 0) -> dict[str, KernelInfo]: ...
def scan_workspace(described: dict[str, Any], n: int, lanes: int, members: int) -> tuple[int, int, int]: ...
def reduce_workspace(described: dict[str, Any], n: int, lanes: int, members: int) -> tuple[int, int, int]: ...
def segments_workspace(described: dict[str, Any], n: int, lanes: int, segments: int, members: int) -> tuple[int, int, int]: ...
def histogram_workspace(
    described: dict[str, Any], n: int, bins: Sequence[int], members: int, devices: Sequence[DeviceInfo], plan: Sequence[int]
) -> tuple[int, int, int]: ...
def explain_scan(
    described: dict[str, Any], device: DeviceInfo, n: int, lanes: int, members: int, plan: Sequence[int]
) -> list[tuple[str, int]]: ...
def explain_reduce(
    described: dict[str, Any], device: DeviceInfo, n: int, lanes: int, members: int, plan: Sequence[int]
) -> list[tuple[str, int]]: ...
def explain_segments(
    described: dict[str, Any], device: DeviceInfo, n: int, lanes: int, members: int, ids: bool, segments: int, plan: Sequence[int]
) -> list[tuple[str, int]]: ...
def explain_histogram(
    described: dict[str, Any], device: DeviceInfo, n: int, bins: Sequence[int], members: int, plan: Sequence[int]
) -> list[tuple[str, int]]: ...
def explain_stencil(
    described: dict[str, Any],
    device: DeviceInfo,
    size: Sequence[int],
    wraps: Sequence[bool],
    members: int,
    steps: int,
    plan: Sequence[int],
) -> list[tuple[str, int]]: ...
def kernels_of_ordered(
    described: dict[str, Any],
    device: DeviceInfo,
    n: int,
    lanes: int,
    members: int,
    init: bool,
    contiguous: bool,
    ids: bool,
    segments: int,
    plan: Sequence[int],
) -> list[str]: ...
def kernels_of_histogram(
    described: dict[str, Any], device: DeviceInfo, n: int, bins: Sequence[int], members: int, plan: Sequence[int]
) -> list[str]: ...
def kernels_of_stencil(
    described: dict[str, Any],
    device: DeviceInfo,
    size: Sequence[int],
    wraps: Sequence[bool],
    members: int,
    steps: int,
    plan: Sequence[int],
) -> list[str]: ...
