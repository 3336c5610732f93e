"""Metrics of the gateway: `bookie_gateway_*`. They are our own."""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.metrics.registry import Registry


class GatewayMetrics:
    """Instruments of one gateway. Any thread may observe; once per message."""

    def __init__(self, registry: Registry) -> None:
        self._scope = registry.scope("bookie_gateway")
        self.appended_entries = self._scope.counter("APPENDED_ENTRIES")
        """Entries taken from clients."""
        self.appended_bytes = self._scope.counter("APPENDED_BYTES")
        """Payload bytes of these."""
        self.read_entries = self._scope.counter("READ_ENTRIES")
        """Entries handed to clients."""
        self.read_bytes = self._scope.counter("READ_BYTES")
        """Payload bytes of these."""
        self.failed = self._scope.counter("FAILED_CALLS")
        """Calls that ended with an error."""

    def appended(self, entries: int, nbytes: int) -> None:
        """A batch was sent to bookies."""
        self.appended_entries.add(entries)
        self.appended_bytes.add(nbytes)

    def was_read(self, entries: int, nbytes: int) -> None:
        """A batch was handed to a client."""
        self.read_entries.add(entries)
        self.read_bytes.add(nbytes)

    def bind_levels(
        self, *, writers: Callable[[], float], streams: Callable[[], float], pending_bytes: Callable[[], float]
    ) -> None:
        """Export how much is open and under way."""
        self._scope.gauge("OPEN_WRITERS", writers)
        self._scope.gauge("OPEN_STREAMS", streams)
        self._scope.gauge("PENDING_BYTES", pending_bytes)
