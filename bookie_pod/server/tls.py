"""A server's TLS context that follows its files: certificates are renewed without a restart.

Invariants
- Files that are no good at start-up end the start; files that become so later leave the last good ones in use.
- Connections keep the certificate that they began with; a new one counts from the next handshake on.

Threads: made anywhere, once at start-up; `RenewedTls.context` on the event loop: the files are small, and looked at
only once in an interval.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Sequence

import structlog

from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)


class RenewedTls:
    """What handshakes of one port use."""

    def __init__(
        self,
        port: str,
        files: Sequence[str | None],
        load: Callable[[], ssl.SSLContext],
        refresh_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`port`: its name in the log. `load` reads `files`. `refresh_s`: between two looks at them, 0 for none;
        `clock` in seconds.

        Raises InvalidConfiguration as `load` does.
        """
        self._port = port
        self._files = tuple(path for path in files if path)
        self._load = load
        self._refresh_s = refresh_s
        self._clock = clock
        self._looked_at = clock()
        # Before the files are read: one that changes meanwhile is read again.
        self._seen = self._identity()
        self._context = load()

    def context(self) -> ssl.SSLContext:
        """The context for the next handshake, with the files as they were at the last look at them."""
        now = self._clock()
        if self._refresh_s and now - self._looked_at >= self._refresh_s:
            self._looked_at = now
            self._refresh()
        return self._context

    def _refresh(self) -> None:
        found = self._identity()
        if found == self._seen:
            return
        try:
            self._context = self._load()
        except InvalidConfiguration as error:
            _log.error("new TLS files cannot be used: the last ones stay in use", port=self._port, reason=str(error))
            return
        self._seen = found
        _log.info("new TLS files", port=self._port, files=list(self._files))

    def _identity(self) -> tuple[tuple[int, int, int], ...]:
        """Another one when a file was exchanged."""
        found = []
        for path in self._files:
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)
