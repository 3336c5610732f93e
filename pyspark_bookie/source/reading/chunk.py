"""Rows on their way from the client to Arrow: some entries of one ledger, and what is known of each.

Values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bookie_client.reading.entry import payload_bytes, payloads_of
from pyspark_bookie.source.planning import LedgerSnapshot
from pyspark_bookie.source.reading.archived_entries import ArchivedEntries

if TYPE_CHECKING:
    from bookie_client.reading.entry import LedgerEntry


class RowOrigin(NamedTuple):
    """The `_metadata` of a row, as far as it is not the ledger's."""

    bookie: str | None = None
    replica_index: int | None = None
    latency_us: int | None = None


@dataclass(slots=True)
class Chunk:
    """`origins` and `corrupt` (what is wrong with a row; None: nothing) are as long as `entries`, or None where no
    column needs them."""

    ledger: LedgerSnapshot
    entries: Sequence[LedgerEntry]
    origins: Sequence[RowOrigin] | None = None
    corrupt: Sequence[str | None] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads."""
        entries = self.entries
        return entries.nbytes if isinstance(entries, ArchivedEntries) else payload_bytes(entries)

    def slices(self, limit: int) -> Iterator[Chunk]:
        """Pieces of about `limit` bytes of payload; an entry stays whole."""
        start, nbytes = 0, 0
        for place, payload in enumerate(payloads_of(self.entries)):
            if place > start and nbytes + len(payload) > limit:
                yield self._slice(start, place)
                start, nbytes = place, 0
            nbytes += len(payload)
        yield self._slice(start, len(self.entries))

    def _slice(self, start: int, stop: int) -> Chunk:
        return Chunk(
            self.ledger,
            self.entries[start:stop],
            None if self.origins is None else self.origins[start:stop],
            None if self.corrupt is None else self.corrupt[start:stop],
        )
