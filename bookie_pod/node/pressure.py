"""Whether clients wait for the disks: what upkeep, and reads of the traffic class `batch`, give way to.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bookie_pod.storage.journal.journal import Journal

PRESSURE_BYTES: Final = 8 * 1024 * 1024
"""Bytes waiting for one journal's sync from which on what can wait gives way."""
PRESSURE_READ_S: Final = 0.02
"""Seconds from which on a read that is still under way makes it give way: longer than one takes on a disk that has
nothing else to do, rotating ones included."""


class Lanes(Protocol):
    """Threads that read for clients which do not want to wait."""

    @property
    def waited_s(self) -> float:
        """For how long the slowest read has been under way, in seconds."""
        ...


def under_pressure(journals: Sequence[Journal], lanes: Sequence[Lanes]) -> Callable[[], bool]:
    """Tells whether clients wait for the disks: their adds for a sync, or their reads."""
    return lambda: (
        any(journal.queued_bytes > PRESSURE_BYTES for journal in journals)
        or any(each.waited_s > PRESSURE_READ_S for each in lanes)
    )
