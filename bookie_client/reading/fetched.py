"""What requests for consecutive entries brought. Immutable; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bookie_client.reading.entry import LedgerEntry, payload_bytes
from bookie_protocol.errors import PodkeeperError


class Fetched(NamedTuple):
    """Consecutive entries, and what the one behind them met; `nbytes` of payload."""

    entries: Sequence[LedgerEntry]
    nbytes: int
    error: PodkeeperError | None


def interleaved(columns: Sequence[Fetched], count: int) -> Fetched:
    """Put together what came of `count` entries at each place modulo the number of columns: up to the first that is
    missing."""
    if len(columns) == 1:
        return columns[0]
    step = len(columns)
    stop = min(count, *(place + len(column.entries) * step for place, column in enumerate(columns)))
    entries: list[LedgerEntry] = [None] * stop  # type: ignore[list-item]
    nbytes = 0
    for place, column in enumerate(columns):
        taken = column.entries[: len(range(place, stop, step))]
        entries[place::step] = taken
        nbytes += column.nbytes if len(taken) == len(column.entries) else payload_bytes(taken)
    return Fetched(entries, nbytes, columns[stop % step].error if stop < count else None)


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
