"""Memory of a worker of Spark while entries stream through it: what is freed is kept, and few cycles are collected.

Some MB are allocated and freed for each batch of entries. By default the C library gives such memory back to the system
each time, and takes it anew page by page, which cost a tenth of a worker's processor time. Entries under way are no
garbage, and with its usual threshold the collector that looks at them again and again takes a quarter of the time of a
read.

Any thread.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory at the end of a heap that the process keeps."""
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""Allocations up to this size come from a heap, the most that the C library allows."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Of `mallopt`, as glibc's malloc.h has them."""


def keep_freed_memory() -> bool:
    """Keep freed memory in a worker of Spark until it ends. False: in other processes, which may have other wishes,
    or where the C library offers no such thing."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and set_thresholds()


def set_thresholds() -> bool:
    """Set the thresholds of this process, whatever it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
    )


YOUNG_OBJECTS: Final = 50_000
"""New objects between two runs."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Within the block; afterwards the threshold is as it was. A collector that is off stays off."""
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG_OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def freeze_imports() -> None:
    """Freeze what a worker of Spark has imported by its first read, once and until it ends: it is never garbage.
    PySpark runs the collector after each task, and would look at all of it. Nothing happens in other processes."""
    from pyspark import TaskContext

    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
