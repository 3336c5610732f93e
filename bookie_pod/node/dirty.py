"""The `DIRTY` file: present while a bookie serves, so that the next start knows whether it stopped cleanly.

Threads: any one at a time.

Source: reference on-disk formats, section 11.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from bookie_pod.storage.files import Files

DIRTY_FILE: Final = "DIRTY"


class DirtyMarker:
    """The marker in the `current` folder of every ledger directory."""

    def __init__(self, files: Files, folders: Sequence[str]) -> None:
        self._files = files
        self._paths = [os.path.join(folder, DIRTY_FILE) for folder in folders]

    def is_set(self) -> bool:
        """True if the previous process did not stop cleanly."""
        return any(self._files.exists(path) for path in self._paths)

    def write(self) -> None:
        for path in self._paths:
            # A disk that is full or read-only has other ways to be noticed.
            with suppress(OSError):
                self._files.write_bytes_synced(path, b"")

    def remove(self) -> None:
        for path in self._paths:
            with suppress(OSError):
                self._files.unlink(path)
