"""Rows on their way from the client to Arrow: some entries of one ledger, and what is known of each.

Entries of an archived ledger are still in the buffers of Arrow that Parquet was read into: each becomes an object when
it is accessed, as those of `bookie_client.reading.entry` do, and their columns are taken of all at once.

Values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from bookie_client.reading.entry import LedgerEntry, payload_bytes, payloads_of
from pyspark_bookie.source.planning import LedgerSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN_LAC: Final = -2
"""The last add confirmed of entries in files of older versions, which do not tell it."""


class ArchivedEntries(Sequence[LedgerEntry]):
    """Consecutive entries from `first` on. `lacs` None: the file does not tell."""

    def __init__(
        self,
        ledger_id: int,
        first: int,
        bounds: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
        lacs: npt.NDArray[np.int64] | None,
    ) -> None:
        self.first = first
        self._ledger_id = ledger_id
        self._bounds = bounds
        self._data = data
        self._lacs = lacs

    @classmethod
    def of(cls, ledger_id: int, batch: pa.RecordBatch) -> ArchivedEntries:
        """Return the entries of a batch with at least one row, as `read_entries` gives it."""
        values = batch.column("value")
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        held = np.frombuffer(data if data is not None else b"", np.uint8)
        lacs = batch.column("lac").to_numpy() if "lac" in batch.schema.names else None
        return cls(ledger_id, batch.column("entry_id")[0].as_py(), bounds, held, lacs)

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads."""
        return int(self._bounds[-1]) - int(self._bounds[0])

    def pieces(self, limit: int) -> Iterator[ArchivedEntries]:
        """Parts of at most `limit` bytes of payload; an entry stays whole."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self._bounds, int(self._bounds[start]) + limit, side="right")) - 1
            end = min(max(end, start + 1), len(self))
            yield self._part(start, end)
            start = end

    # --- columns, see `EntryColumns` ------------------------------------------------------------------------------

    def sizes(self) -> npt.NDArray[np.int32]:
        return np.diff(self._bounds)

    def copy_payloads(self, into: npt.NDArray[np.uint8]) -> None:
        into[:] = self._data[self._bounds[0] : self._bounds[-1]]

    def lacs(self) -> npt.NDArray[np.int64]:
        return np.full(len(self), UNKNOWN_LAC, np.int64) if self._lacs is None else self._lacs

    # --- a sequence ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, place: int) -> LedgerEntry: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[LedgerEntry]: ...

    def __getitem__(self, place: int | slice) -> LedgerEntry | Sequence[LedgerEntry]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._part(start, max(start, stop)) if step == 1 else [self[at] for at in range(start, stop, step)]
        at = range(len(self))[place]
        payload = self._data[self._bounds[at] : self._bounds[at + 1]].tobytes()
        lac = UNKNOWN_LAC if self._lacs is None else int(self._lacs[at])
        return LedgerEntry(self._ledger_id, self.first + at, 0, payload, lac)

    def _part(self, start: int, stop: int) -> ArchivedEntries:
        lacs = None if self._lacs is None else self._lacs[start:stop]
        return ArchivedEntries(self._ledger_id, self.first + start, self._bounds[start : stop + 1], self._data, lacs)


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
