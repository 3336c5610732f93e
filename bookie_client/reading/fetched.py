"""What a request for consecutive entries brought. Immutable; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.errors import PodkeeperError


class Fetched(NamedTuple):
    """Consecutive entries, and what the one behind them met; `nbytes` of payload."""

    entries: Sequence[LedgerEntry]
    nbytes: int
    error: PodkeeperError | None


def fetched(answers: Iterable[LedgerEntry | PodkeeperError]) -> Fetched:
    """The entries in front of the first error."""
    entries: list[LedgerEntry] = []
    nbytes = 0
    for answer in answers:
        if not isinstance(answer, LedgerEntry):
            return Fetched(entries, nbytes, answer)
        entries.append(answer)
        nbytes += len(answer.payload)
    return Fetched(entries, nbytes, None)
