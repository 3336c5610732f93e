"""How full and how old the open ledger of a stream is, and when the next one must begin.

Pure; times are seconds of any one clock.

Source: reference client protocol, section 25, item 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie_client.streams.model import StreamSettings


@dataclass(slots=True)
class Filling:
    """What was sent to one ledger."""

    settings: StreamSettings
    begun: float
    entries: int = 0
    nbytes: int = 0

    def add(self, entries: int, nbytes: int) -> None:
        """So much was sent."""
        self.entries += entries
        self.nbytes += nbytes

    def is_old(self, now: float) -> bool:
        """Whether the ledger must end though nothing comes. An empty one does not age."""
        return self.seconds_until_old(now) == 0

    def is_full(self, now: float, nbytes: int) -> bool:
        """Whether the ledger must end before an entry of so many bytes is sent."""
        settings = self.settings
        if not self.entries or now - self.begun < settings.min_ledger_seconds:
            return False
        return self.entries >= settings.max_ledger_entries or self.nbytes + nbytes > settings.max_ledger_bytes

    def fitting(self, now: float, payloads: Sequence[bytes]) -> int:
        """How many of these, from the first on, may be sent to the ledger; the first one in any case."""
        settings = self.settings
        if len(payloads) <= 1 or now - self.begun < settings.min_ledger_seconds:
            return len(payloads)
        most = min(len(payloads), settings.max_ledger_entries - self.entries)
        count, nbytes = 0, self.nbytes
        while count < most and (nbytes := nbytes + len(payloads[count])) <= settings.max_ledger_bytes:
            count += 1
        return max(1, count)

    def seconds_until_old(self, now: float) -> float | None:
        """None: never, as long as nothing is sent."""
        if not self.entries:
            return None
        return max(0.0, self.begun + max(self.settings.max_ledger_seconds, self.settings.min_ledger_seconds) - now)
