"""An archive of texts that only its owner may read.

Invariants
- It has its name once it is complete; until then it is a file beside it, which goes if the work fails. Both have mode
  0600 from the beginning, and no file or link that another user has put in their place is written through.
- All texts together have at most `most_bytes`: a text that exceeds it is cut at its begin, and `cut` says so.

Threads: one.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from types import TracebackType
from typing import Final

MOST_BYTES: Final = 512 * 1024 * 1024


class PrivateArchive:
    """A context manager that writes `path` (`.tar.gz`). All members are in the folder `top`."""

    def __init__(self, path: str, top: str, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._top = top
        self._room = most_bytes
        self.files = 0
        self.cut: list[str] = []
        """The members that are not complete."""

    def __enter__(self) -> PrivateArchive:
        folder, name = os.path.split(self._path)
        descriptor, self._unfinished = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
        self._file = os.fdopen(descriptor, "wb")
        self._archive = tarfile.open(fileobj=self._file, mode="w:gz")
        return self

    def add(self, name: str, text: str) -> None:
        """Add a member; of one that is too long its end."""
        content = text.encode(errors="replace")
        if len(content) > self._room:
            self.cut.append(f"{name}: only the last {self._room:,} of {len(content):,} bytes")
            content = content[len(content) - self._room :]
        self._room -= len(content)
        member = tarfile.TarInfo(f"{self._top}/{name}")
        member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
        self._archive.addfile(member, io.BytesIO(content))
        self.files += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                self._archive.close()
            if kind is None:
                os.replace(self._unfinished, self._path)
        finally:
            if os.path.lexists(self._unfinished):
                os.unlink(self._unfinished)
