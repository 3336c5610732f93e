"""Python's cycle collector in a test process: modules and tests, hundreds of thousands of objects, are no garbage.

`set_aside_what_is_collected` is a hook of the root conftest. A simulation, and a bookie that starts, run the collector:
without it most of the time of a short test would go into looking at all the other tests.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager


def set_aside_what_is_collected() -> Generator[None, object, object]:
    """Around the collection of tests. It makes almost nothing but objects that stay, so nobody looks for others. And
    while tests run cycles may wait longer than in a program that has to keep its memory small."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)


@contextmanager
def set_aside() -> Iterator[None]:
    """What is there now is not looked at within the block; for programs that run tests' parts without pytest."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def left_in_cycles() -> Iterator[set[str]]:
    """Filled at the end: names of the types of what the block made and only the collector frees. What is there before
    is set aside for good: some hundred tests would look through it twice each."""
    left = set[str]()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left |= {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
