"""Constants of GPUs that plans can be made for where none is at hand. Those of a GPU that is there are read from it."""

from __future__ import annotations

import functools
import math

from ... import _cuda

_MB = 1 << 20

KNOWN = {
    "sm_80": ("A100", 108, 2048, 163 * 1024, 164 * 1024, 40 * _MB, 8, 0),
    "sm_90": ("H100, H200", 132, 2048, 227 * 1024, 228 * 1024, 50 * _MB, 9, 0),
    "sm_100": ("B200", 148, 2048, 227 * 1024, 228 * 1024, 126 * _MB, 10, 0),
}
"""By architecture: name, multiprocessors, threads of one, shared memory of a block and of a multiprocessor, L2, major, minor."""


ARCHITECTURES = (80, 90)
"""An executable may run on another device than this machine's: workspaces are enough for all of these."""

MULTIPROCESSORS = 192
"""No GPU so far has more."""


@functools.cache
def planned_for(since: int) -> list[_cuda.DeviceInfo]:
    """What a workspace has to suffice for, of the architectures from one on (80) to the next in ``ARCHITECTURES`` (below 90): the
    known ones, also as large as any, and this machine's."""
    until = min((a for a in ARCHITECTURES if a > since), default=math.inf)
    larger = list(map(_known, KNOWN))
    for device in larger:
        device.multiprocessors = MULTIPROCESSORS
    return [device for device in [*map(_known, KNOWN), *larger, *_here()] if since <= 10 * device.major + device.minor < until]


def device_of(target: str) -> _cuda.DeviceInfo:
    """This machine's GPU of that architecture, or what is known of one. Raises ValueError."""
    for device in _here():
        if target == f"sm_{device.major}{device.minor}":
            return device
    if target not in KNOWN:
        raise ValueError(f"target must be 'cpu', one of {', '.join(KNOWN)}, or a GPU of this machine, got {target!r}")
    return _known(target)


def default() -> _cuda.DeviceInfo:
    """What is planned for where nobody names a device: this machine's first GPU, or an H100."""
    return next(iter(_here()), None) or _known("sm_90")


def _here() -> list[_cuda.DeviceInfo]:
    return [_cuda.device(k) for k in range(_cuda.device_count())] if _cuda.available() else []


def _known(arch: str) -> _cuda.DeviceInfo:
    _, multiprocessors, threads, shared, shared_per_multiprocessor, l2, major, minor = KNOWN[arch]
    return _cuda.DeviceInfo(
        ordinal=0,
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=threads,
        blocks_per_multiprocessor=32,
        shared_per_block=shared,
        shared_per_multiprocessor=shared_per_multiprocessor,
        l2_bytes=l2,
        major=major,
        minor=minor,
    )
