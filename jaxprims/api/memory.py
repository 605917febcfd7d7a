"""The allocator behind JAX's arrays on the CPU."""

from __future__ import annotations

from .. import _cpu


def keep_freed_memory() -> bool:
    """Tells the process's allocator to keep freed memory for the next array instead of giving it back to the system.

    A result of 32 MB or more is otherwise made of fresh pages on every call, which the system has to clear first: that costs more
    than a scan or a sum does. With it, a program that makes large arrays over and over runs them at the memory's speed. The
    process keeps the most memory that it ever had; it is the whole process's allocator, so this is the program's to decide and
    never done on import. (On Linux, the same as running with
    ``GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=18446744073709551615:glibc.malloc.arena_max=1``. Threads
    that have an arena of their own map what is larger than 64 MB, whatever they are told: call it before there are any.)

    Returns:
      Whether the allocator is one that can be told so: that of the GNU C library.

    Cost: none.

    >>> import platform
    >>> import jaxprims as jp
    >>> jp.keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    True
    """
    return _cpu.keep_freed_memory()
