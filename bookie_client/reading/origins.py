"""The origins of the entries of a range: the bookie that served each, and how long its request took.

Off unless a caller asks (`origins_of`): it costs a dictionary entry for each ledger entry. The caller takes the origins
of the entries that it consumed, so that no more are kept than entries under way.

    origins = origins_of(reader)
    async for batch in reader.batches():
        for entry in batch:
            print(entry.entry_id, origins.take(entry.entry_id).bookie)

Event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Origin(NamedTuple):
    """The origin of one entry; empty if it was not noted. `seconds`: from the request to its answer; a batch
    counts as a whole."""

    bookie: str | None = None
    seconds: float | None = None


NOWHERE = Origin()


class Origins:
    """The origins of the entries that one handle reads."""

    def __init__(self) -> None:
        self._served: dict[int, Origin] = {}

    def served(self, bookie: str, entry_id: int) -> None:
        """A bookie gave the entry that is used."""
        self._served[entry_id] = Origin(bookie)

    def took(self, entry_id: int, seconds: float) -> None:
        """Note how long the request of an entry took that was served."""
        self._served[entry_id] = Origin(self._served.get(entry_id, NOWHERE).bookie, seconds)

    def batch(self, bookie: str, entry_ids: Iterable[int], seconds: float) -> None:
        """A bookie gave these entries at once."""
        origin = Origin(bookie, seconds)
        for entry_id in entry_ids:
            self._served[entry_id] = origin

    def take(self, entry_id: int) -> Origin:
        """Return the origin of an entry and forget it."""
        return self._served.pop(entry_id, NOWHERE)
