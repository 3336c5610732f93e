"""Reading ranges of ledgers through the client, as chunks of rows.

The rows are entries, or each copy of each entry (`readMode=replica`), or those of one bookie (`readMode=bookie:<id>`).

The error of a bookie about its copy is in `_corrupt`, as `VERDICT: text`:

    MISSING      the bookie's own word: it has no such entry
    DAMAGED      it gave bytes that are not the entry, or cannot read its disk there
    UNREACHABLE  it did not answer; of the copies there nothing is known

Invariants
- Rows come range by range, each in order of its entries. Replicas of one range come bookie by bookie.
- Tiny ranges are read ahead, some at a time and bounded in bytes, so that a thousand ledgers of ten entries do not
  wait for a thousand round trips.
- An entry is lost only if every bookie that should have it says that it has none, or has it damaged. Everything else
  (no bookie answers) is an error whatever `failOnDataLoss` says: unreachable is not missing.
- No row is of another ledger of the same number: what bookies gave first of a range is handed on after the metadata
  service has named the ledger that was planned, and the range ends well only if it does so again.
- A ledger that was deleted since it was planned is read on from the archive, if that has it, behind the last entry that
  bookies gave (`tiers=all`).
- One row for every copy that the ledger's metadata speak of, good or not.
- A bookie that does not answer is asked once per fragment, not for each entry.

Event loop of the client only.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.maintenance import Origins, ReplicaAnswer, ReplicaReader, origins_of, replicas
from bookie_client.replication.check import verdict_of
from bookie_protocol.errors import (
    BookieUnavailable,
    DigestMismatch,
    MetadataUnavailable,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    Refused,
    StorageFault,
)
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned
from bookie_protocol.shown import shown_uri
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.reading import ArchiveDamaged, read_entries
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError, spark_error
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.planning import Range
from pyspark_bookie.source.reading.chunk import ArchivedEntries, Chunk, RowOrigin
from pyspark_bookie.source.selection import stored_metadata
from pyspark_bookie.source.snapshots import moved_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.client import Client
    from bookie_client.reading.handle import LedgerReader

TINY_BYTES: Final = 512 * 1024
"""Ranges of at most so many bytes are read ahead,"""
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""so many bytes at a time,"""
AHEAD_RANGES: Final = 64
"""and so many ranges."""
LOST: Final = (NotThere, DigestMismatch, StorageFault)
AT_A_TIME: Final = 4
_reads = threading.BoundedSemaphore(AT_A_TIME)
ROWS: Final = 1_000
"""Rows of a chunk, at most,"""
BYTES: Final = 1024 * 1024
"""and bytes of their values, about."""


async def range_chunks(client: Client, ranges: Sequence[Range], options: SourceOptions) -> AsyncGenerator[Chunk, None]:
    """All rows of the ranges. Raises `PodkeeperSparkError` that names the ledger."""
    password = options.password.read()
    for group in _groups(ranges):
        if len(group) == 1:
            async with aclosing(_named(client, group[0], options, password)) as chunks:
                async for chunk in chunks:
                    yield chunk
            continue
        async with aclosing(_ahead(client, group, options, password)) as chunks:
            async for chunk in chunks:
                yield chunk


def open_range(client: Client, wanted: Range, password: bytes | None) -> LedgerReader:
    """Return a reader by the snapshot, without a request. Raises `Unauthorized`."""
    ledger = wanted.ledger
    return client.open_stored(
        Versioned(ledger.metadata(), ledger.identity),
        password=password,
        digest=ledger.digest_type,
        last_add_confirmed=ledger.last_entry_id,
    )


# --- many tiny ranges -------------------------------------------------------------------------------------------


def _groups(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Runs of tiny ranges; each other one alone."""
    group: list[Range] = []
    for each in ranges:
        if _is_tiny(each):
            group.append(each)
            continue
        if group:
            yield group
            group = []
        yield [each]
    if group:
        yield group


def _is_tiny(wanted: Range) -> bool:
    """Return True if so little is read that it is read together with others. An archived ledger is read in whole
    row groups, however little is wanted."""
    return (wanted.nbytes if wanted.ledger.archive is None else wanted.ledger.length) <= TINY_BYTES


async def _ahead(
    client: Client, ranges: Sequence[Range], options: SourceOptions, password: bytes | None
) -> AsyncGenerator[Chunk, None]:
    waiting = deque(ranges)
    under_way: deque[tuple[asyncio.Task[list[Chunk]], int]] = deque()
    nbytes = 0
    try:
        while waiting or under_way:
            while waiting and (not under_way or (nbytes < AHEAD_BYTES and len(under_way) < AHEAD_RANGES)):
                each = waiting.popleft()
                task = asyncio.ensure_future(_all_of(client, each, options, password))
                under_way.append((task, each.cost))
                nbytes += each.cost
            task, cost = under_way[0]
            for chunk in await task:
                yield chunk
            under_way.popleft()
            nbytes -= cost
    finally:
        for task, _ in under_way:
            task.cancel()
        # Their errors are dropped: the first one counts.
        await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)


async def _all_of(client: Client, wanted: Range, options: SourceOptions, password: bytes | None) -> list[Chunk]:
    async with aclosing(_named(client, wanted, options, password)) as chunks:
        return [chunk async for chunk in chunks]


# --- one range --------------------------------------------------------------------------------------------------


async def _named(
    client: Client, wanted: Range, options: SourceOptions, password: bytes | None
) -> AsyncGenerator[Chunk, None]:
    """Errors name the ledger."""
    try:
        async with aclosing(_of_either_tier(client, wanted, options, password)) as chunks:
            async for chunk in chunks:
                yield chunk
    except PodkeeperError as error:
        raise spark_error(error, f"ledger {wanted.ledger_id}") from None


async def _of_either_tier(
    client: Client, wanted: Range, options: SourceOptions, password: bytes | None
) -> AsyncGenerator[Chunk, None]:
    if wanted.ledger.archive is not None:
        async with aclosing(_archived_chunks(wanted, options)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    try:
        async with aclosing(_bookies_chunks(client, wanted, options, password)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    except _Moved as moved:
        left = moved.left
    async with aclosing(_archived_chunks(left, options)) as chunks:
        async for chunk in chunks:
            yield chunk


# --- from the archive -------------------------------------------------------------------------------------------


class _Moved(Exception):
    """The ledger was deleted, and the archive has it: what is to be read there."""

    def __init__(self, left: Range) -> None:
        super().__init__()
        self.left = left


async def _archived_chunks(wanted: Range, options: SourceOptions) -> AsyncGenerator[Chunk, None]:
    """Read archived entries as `archive_chunks` does, but report damage in a row, or end the read."""
    first = wanted.first
    async with aclosing(archive_chunks(wanted, options)) as found:
        async for each in found:
            if isinstance(each, Chunk):
                first = each.entries[-1].entry_id + 1
                yield each
            else:
                yield _lost(wanted, min(first, each.last), each, options, each.last)
                first = each.last + 1


async def _moved(client: Client, wanted: Range, first: int, options: SourceOptions) -> Range | None:
    """Return the rest of a deleted ledger in the archive; None: that does not have it, or has another one of this
    id. Raises `PodkeeperError`."""
    ledger = await moved_snapshot(client, wanted.ledger_id, options, wanted.ledger.stream)
    if ledger is None or (wanted.ledger.is_closed and ledger.last_entry_id != wanted.ledger.last_entry_id):
        return None
    return Range(ledger, first, wanted.last)


# --- from bookies -----------------------------------------------------------------------------------------------


async def _bookies_chunks(
    client: Client, wanted: Range, options: SourceOptions, password: bytes | None
) -> AsyncGenerator[Chunk, None]:
    """Raises `_Moved`, `PodkeeperError`."""
    if options.password.recorded:
        try:
            password = (await client.stored_metadata(wanted.ledger_id)).value.password or b""
        except NoSuchLedger as error:
            if left := await _moved(client, wanted, wanted.first, options):
                raise _Moved(left) from None
            yield _lost(wanted, wanted.first, error, options, wanted.last)
            return
    given = 0
    async with open_range(client, wanted, password) as reader:
        read = _quorum_chunks(client, reader, wanted, options)
        chunks = read if options.read_mode.is_quorum else replica_chunks(reader, wanted, options)
        async with aclosing(chunks):
            async for chunk in chunks:
                if not given and await _is_another(client, wanted):
                    break
                given += 1
                yield chunk
            else:
                if given > 1 and await _is_another(client, wanted):
                    raise PodkeeperSparkError(
                        DATA_LOSS, f"{_replaced(wanted)} while it was read; run the query, or the batch, again"
                    )
                return
    if left := await _moved(client, wanted, wanted.first, options):
        raise _Moved(left)
    yield _lost(wanted, wanted.first, NoSuchLedger(_replaced(wanted)), options, wanted.last)


async def _is_another(client: Client, wanted: Range) -> bool:
    """Return whether another ledger has the number of the one that was planned. One that was deleted and not made
    again gave its own entries. Raises `MetadataUnavailable`."""
    stored = await stored_metadata(client, wanted.ledger_id)
    return stored is not None and LedgerLife.of(stored) != wanted.ledger.life


def _replaced(wanted: Range) -> str:
    return f"ledger {wanted.ledger_id} was deleted, and another ledger was made with its number"


async def _quorum_chunks(
    client: Client, reader: LedgerReader, wanted: Range, options: SourceOptions
) -> AsyncGenerator[Chunk, None]:
    """Yield each entry once. A loss is reported in a row, or ends the read. Raises `_Moved`."""
    origins = origins_of(reader) if options.has_metadata_column else None
    first = wanted.first
    while first <= wanted.last:
        try:
            async with aclosing(reader.batches(first, wanted.last)) as batches:
                async for entries in batches:
                    first = entries[-1].entry_id + 1
                    yield Chunk(wanted.ledger, entries, _origins(reader, origins, entries))
            return
        except PodkeeperError as error:
            why = await _why(client, wanted, error)
            is_gone = isinstance(why, NoSuchLedger)
            if is_gone and (left := await _moved(client, wanted, first, options)):
                raise _Moved(left) from None
            if not isinstance(error, LOST):
                raise
            yield _lost(wanted, first, why, options, wanted.last if is_gone else first)
            if is_gone:
                return
            first += 1


async def _why(client: Client, wanted: Range, error: PodkeeperError) -> PodkeeperError:
    """Return the error to report: that the ledger was deleted meanwhile overrides the errors of bookies."""
    try:
        await client.metadata(wanted.ledger_id)
    except NoSuchLedger as gone:
        return gone
    except MetadataUnavailable:
        raise  # the ledger may be gone, and in the archive
    except PodkeeperError:
        pass
    return error


def _lost(wanted: Range, first: int, error: PodkeeperError, options: SourceOptions, last: int) -> Chunk:
    """One row for the lost entries `first` to `last`."""
    ledger_id, last = wanted.ledger_id, min(last, wanted.last)
    what = (
        f"entries {first} to {last} of ledger {ledger_id}" if first < last else f"entry {first} of ledger {ledger_id}"
    )
    told = spark_error(error)
    text = f"{what}: lost: {told.message}"
    if options.fail_on_data_loss:
        remedy = "set failOnDataLoss=false to go on, with what is lost told in the column _corrupt"
        raise PodkeeperSparkError(DATA_LOSS, f"{text} ({told.code}); {remedy}")
    return Chunk(wanted.ledger, [LedgerEntry(ledger_id, first, 0, b"")], corrupt=[f"[BOOKIE_{told.code}] {text}"])


def _origins(reader: LedgerReader, origins: Origins | None, entries: Sequence[LedgerEntry]) -> list[RowOrigin] | None:
    if origins is None:
        return None
    metadata = reader.metadata
    rows = []
    for entry in entries:
        origin = origins.take(entry.entry_id)
        bookies = metadata.bookies_for(entry.entry_id)
        rows.append(
            RowOrigin(
                origin.bookie,
                bookies.index(origin.bookie) if origin.bookie in bookies else None,
                None if origin.seconds is None else round(origin.seconds * 1e6),
            )
        )
    return rows


async def archive_chunks(wanted: Range, options: SourceOptions) -> AsyncGenerator[Chunk | ArchiveDamaged, None]:
    """Ranges of archived ledgers as chunks of rows.

    Files are read by threads beside the event loop, and entries stay in Arrow's buffers until they are copied into
    their record batch.

    Invariants
    - Damaged, missing or unreachable files are reported with the ledger and the file. Only what is damaged is lost; a
      file that is missing or out of reach is an error, whatever `failOnDataLoss` says.
    - At most `AT_A_TIME` row groups of a process are being read at the same time.

    Yields each entry once, in order, and an error in place of damaged ones, with the last of them. Raises
    `ArchivedFileMissing`, `ArchiveUnavailable`, `PodkeeperSparkError` for an archive that cannot be used here.

    Event loop of the client; the threads run `read_entries` alone.
    """
    ledger = wanted.ledger.archive
    assert ledger is not None
    files = await asyncio.to_thread(Files, ledger.target, f"the archive of ledger {ledger.ledger_id}")
    origin = RowOrigin(f"archive:{shown_uri(ledger.target)}")
    first = wanted.first
    while first <= wanted.last:
        batches = read_entries(files, ledger, first, wanted.last)
        try:
            while (batch := await asyncio.to_thread(_next, batches)) is not None:
                for entries in ArchivedEntries.of(ledger.ledger_id, batch).pieces(options.arrow_batch_bytes):
                    origins = [origin] * len(entries) if options.has_metadata_column else None
                    first = entries.first + len(entries)
                    yield Chunk(wanted.ledger, entries, origins)
            return
        except ArchiveDamaged as error:
            yield error
            first = error.last + 1


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    with _reads:
        return next(batches, None)


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
