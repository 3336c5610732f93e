"""Memory that a worker of Spark has freed and will need again at once.

Some MB are allocated and freed for each batch of entries. By default the C library gives such memory back to the system
each time, and takes it anew page by page, which cost a tenth of a worker's processor time.

Any thread.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory at the end of a heap that the process keeps."""
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""Allocations up to this size come from a heap, the most that the C library allows."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Of `mallopt`, as glibc's malloc.h has them."""


def keep_freed_memory() -> bool:
    """In a worker of Spark, until it ends. False: in other processes, which may have other wishes, or where the
    C library offers no such thing."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and set_thresholds()


def set_thresholds() -> bool:
    """Of this process, whatever it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
    )
