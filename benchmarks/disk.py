"""What a disk gives a plain writer, as a journal writes: blocks that were allocated before, each synced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE_BYTES: Final = 256 << 20
SECONDS: Final = 1.0
BLOCKS: Final = ((1 << 20, "disk, written and synced by 1 MB", "MB/s"), (4096, "disk, syncs of 4 KB", "/s"))


def plain_writer(directory: Path) -> Iterator[tuple[str, str, float]]:
    """Name, unit and figure of each measurement."""
    path = directory / "plain-writer"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(file, 0, FILE_BYTES)
        for size, name, unit in BLOCKS:
            count, seconds = _write(file, os.urandom(size))
            yield name, unit, count * (size / 1e6 if unit == "MB/s" else 1) / seconds
    finally:
        os.close(file)
        path.unlink()


def _write(file: int, block: bytes) -> tuple[int, float]:
    """Blocks written and synced one after the other, and the seconds that took."""
    count, began = 0, time.monotonic()
    while (seconds := time.monotonic() - began) < SECONDS:
        os.pwrite(file, block, count * len(block) % FILE_BYTES)
        os.fdatasync(file)
        count += 1
    return count, seconds
