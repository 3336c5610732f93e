"""Less work for Python's cycle collector while entries stream through a task.

Entries under way are no garbage, and the collector looks at them again and again: with its usual threshold that is a
quarter of the time of a read.

Any thread.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
    """In a worker of Spark, once and until it ends: what it has imported by its first read is never garbage. PySpark
    runs the collector after each task, and would look at all of it. Nothing happens in other processes."""
    from pyspark import TaskContext

    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
