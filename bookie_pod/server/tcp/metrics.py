"""What the TCP server counts. The metrics package implements it; nothing here knows Prometheus.

Called once per batch where a batch exists, never per entry on the hot path. Threads: event loop only.
"""

from __future__ import annotations

from typing import Final, Protocol


class ServerMetrics(Protocol):
    """Observations of the request processor. Times are milliseconds."""

    def adds_done(self, entries: int, elapsed_ms: float, success: bool) -> None:
        """A batch of adds was answered (reception to answer)."""
        ...

    def add_refused(self, elapsed_ms: float) -> None: ...
    def add_rejected(self) -> None:
        """TOO_MANY_REQUESTS for an add."""
        ...

    def read_done(self, kind: str, elapsed_ms: float, success: bool) -> None:
        """`kind`: read, fence, long_poll, batch, read_lac, write_lac, force, bookie_info, entry_list."""
        ...

    def read_rejected(self) -> None: ...


class _NoServerMetrics:
    def adds_done(self, entries: int, elapsed_ms: float, success: bool) -> None: ...
    def add_refused(self, elapsed_ms: float) -> None: ...
    def add_rejected(self) -> None: ...
    def read_done(self, kind: str, elapsed_ms: float, success: bool) -> None: ...
    def read_rejected(self) -> None: ...


NO_SERVER_METRICS: Final = _NoServerMetrics()
