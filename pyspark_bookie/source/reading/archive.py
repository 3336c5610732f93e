"""Ranges of archived ledgers as chunks of rows.

Files are read by threads beside the event loop, and entries stay in Arrow's buffers until they are copied into their
record batch.

Invariants
- What is damaged, missing or out of reach is told with the ledger and the file. Only what is damaged is lost; a file
  that is missing or out of reach is an error, whatever `failOnDataLoss` says.
- At most `AT_A_TIME` row groups of a process are being read at the same time.

Event loop of the client; the threads run `read_entries` alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final

from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.parts import ArchiveDamaged, read_entries
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.planning import Range
from pyspark_bookie.source.reading.archived_entries import ArchivedEntries
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin

if TYPE_CHECKING:
    import pyarrow as pa

AT_A_TIME: Final = 4
_reads = threading.BoundedSemaphore(AT_A_TIME)


async def archive_chunks(wanted: Range, options: SourceOptions) -> AsyncGenerator[Chunk | ArchiveDamaged, None]:
    """Each entry once, in order; in place of what is damaged what is wrong, and up to where. Raises
    `ArchivedFileMissing`, `ArchiveUnavailable`, `PodkeeperSparkError` for an archive that cannot be used here."""
    ledger = wanted.ledger.archive
    assert ledger is not None
    files = await asyncio.to_thread(Files, ledger.target, f"the archive of ledger {ledger.ledger_id}")
    origin = RowOrigin(f"archive:{ledger.target}")
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
