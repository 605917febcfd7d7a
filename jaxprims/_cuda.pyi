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
def workspace(
    family: str, described: dict[str, Any], sizes: dict[str, Any], devices: Sequence[DeviceInfo], plan: Sequence[int]
) -> tuple[int, int, int]: ...
def explain(
    family: str, described: dict[str, Any], device: DeviceInfo, sizes: dict[str, Any], plan: Sequence[int]
) -> list[tuple[str, int]]: ...
def kernels(
    family: str, described: dict[str, Any], device: DeviceInfo, sizes: dict[str, Any], plan: Sequence[int]
) -> list[str]: ...
