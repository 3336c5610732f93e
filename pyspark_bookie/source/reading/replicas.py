"""Replicas as rows: each copy of each entry (`readMode=replica`), or those of one bookie (`readMode=bookie:<id>`).

What a bookie says is told as it is, in `_corrupt`, as `VERDICT: text`:

    MISSING      the bookie's own word: it has no such entry
    DAMAGED      it gave bytes that are not the entry, or cannot read its disk there
    UNREACHABLE  it did not answer; of the copies there nothing is known

Invariants
- One row for every copy that the ledger's metadata speak of, good or not.
- A bookie that does not answer is asked once per fragment, not for each entry.

Event loop of the client only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.maintenance import ReplicaAnswer, ReplicaReader, replicas
from bookie_client.replication.check import verdict_of
from bookie_protocol.errors import BookieUnavailable, Refused
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.planning import Range
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin

if TYPE_CHECKING:
    from bookie_client.reading.handle import LedgerReader

ROWS: Final = 1_000
"""Rows of a chunk, at most,"""
BYTES: Final = 1024 * 1024
"""and bytes of their values, about."""


async def replica_chunks(reader: LedgerReader, wanted: Range, options: SourceOptions) -> AsyncGenerator[Chunk, None]:
    """Fragment by fragment, bookie by bookie. Raises what a bookie refuses (`Unauthorized`); with
    `readMode=bookie:<id>` and `failOnDataLoss` also the first copy that is not good."""
    source = replicas(reader)
    strict = not options.has_corrupt_column
    for first, last, bookies in _fragments(wanted):
        for bookie in bookies:
            if options.read_mode.bookie in (None, bookie):
                async with aclosing(_scan(source, wanted, bookie, first, last)) as chunks:
                    async for chunk in chunks:
                        if strict:
                            _check(wanted, chunk)
                        yield chunk


def _fragments(wanted: Range) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    ensembles = wanted.ledger.ensembles
    for place, (start, bookies) in enumerate(ensembles):
        end = ensembles[place + 1][0] - 1 if place + 1 < len(ensembles) else wanted.last
        first, last = max(start, wanted.first), min(end, wanted.last)
        if first <= last:
            yield first, last, bookies


async def _scan(
    source: ReplicaReader, wanted: Range, bookie: str, first: int, last: int
) -> AsyncGenerator[Chunk, None]:
    made = _Rows(wanted, bookie)
    gone: ReplicaAnswer | None = None
    async with aclosing(source.scan(bookie, first, last)) as answers:
        async for answer in answers:
            if isinstance(answer.error, Refused):
                raise answer.error
            made.add(answer)
            if made.is_full:
                yield made.chunk()
                made = _Rows(wanted, bookie)
            if isinstance(answer.error, BookieUnavailable):
                gone = answer
                break
    if gone is not None:
        for entry_id in source.held_by(bookie, gone.entry_id + 1, last):
            made.add(gone._replace(entry_id=entry_id, seconds=None))
            if made.is_full:
                yield made.chunk()
                made = _Rows(wanted, bookie)
    if made.entries:
        yield made.chunk()


class _Rows:
    """A chunk in the making."""

    def __init__(self, wanted: Range, bookie: str) -> None:
        self.entries: list[LedgerEntry] = []
        self._wanted = wanted
        self._bookie = bookie
        self._metadata = wanted.ledger.metadata()
        self._origins: list[RowOrigin] = []
        self._corrupt: list[str | None] = []
        self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= ROWS or self._nbytes >= BYTES

    def add(self, answer: ReplicaAnswer) -> None:
        entry_id, error = answer.entry_id, answer.error
        entry = answer.entry or LedgerEntry(self._wanted.ledger_id, entry_id, 0, b"")
        micros = None if answer.seconds is None else round(answer.seconds * 1e6)
        place = self._metadata.bookies_for(entry_id).index(self._bookie)
        self.entries.append(entry)
        self._origins.append(RowOrigin(self._bookie, place, micros))
        self._corrupt.append(None if error is None else f"{verdict_of(error).name}: {error}")
        self._nbytes += len(entry.payload)

    def chunk(self) -> Chunk:
        return Chunk(self._wanted.ledger, self.entries, self._origins, self._corrupt)


def _check(wanted: Range, chunk: Chunk) -> None:
    for entry, text in zip(chunk.entries, chunk.corrupt or (), strict=True):
        if text is not None:
            what = f"entry {entry.entry_id} of ledger {wanted.ledger_id}"
            raise PodkeeperSparkError(DATA_LOSS, f"{what}: {text}; set failOnDataLoss=false to get it as a row")
