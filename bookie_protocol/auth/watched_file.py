"""The content of a small file, read again when it has changed: secrets are rotated without a restart.

A file that can no longer be read raises an error; its former content is not used.

Threads: one at a time; the file is small.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from bookie_protocol.errors import InvalidConfiguration

T = TypeVar("T")
CHECK_S: Final = 5.0
LARGEST: Final = 64 * 1024
"""Bytes of a file that is read."""


class WatchedFile(Generic[T]):
    """`parse` makes of its bytes what is asked for, and raises ValueError with the reason where it cannot."""

    def __init__(
        self, what: str, path: str, parse: Callable[[bytes], T], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`what`: how messages call it, such as the key that names it."""
        self._what = what
        self._path = path
        self._parse = parse
        self._clock = clock
        self._looked_at = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._value: T

    def value(self) -> T:
        """Return the content as it was at most `CHECK_S` ago. Raises InvalidConfiguration."""
        now = self._clock()
        if self._seen is None or now - self._looked_at >= CHECK_S:
            self._looked_at = now
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            status = os.stat(self._path)
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
                raise ValueError("it is not a file")
            if identity != self._seen:
                self._seen = None
                with open(self._path, "rb") as file:
                    content = file.read(LARGEST + 1)
                if len(content) > LARGEST:
                    raise ValueError(f"it has more than {LARGEST} bytes")
                self._value = self._parse(content)
                self._seen = identity
        except (OSError, ValueError) as error:
            self._seen = None
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise InvalidConfiguration(f"{self._what}={self._path}: {reason}") from error
