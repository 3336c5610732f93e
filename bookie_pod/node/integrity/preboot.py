"""Before the bookie serves: what it may have lost is put in limbo, so that nobody is told "no such entry".

Every ledger that the metadata place on this bookie exists here afterwards. Those that are closed, and those whose last
ensemble this bookie belongs to, are in limbo: reads of what is not there answer "ledger state unknown". Those that are
not closed are fenced as well: the fence may be what was lost. A ledger that is still written elsewhere and has this
bookie in an earlier ensemble only is left as it is: limbo would refuse its writer, should it come back here.

(The reference puts only ledgers into limbo that are not closed, and so denies entries of closed ones until they are
copied.)

Invariants
- The flag NEEDS_INTEGRITY_CHECK is durable first, then the limbo; only then may cookies be stamped or journals go.
- A ledger whose metadata cannot be read ends the start: nobody knows whether it is ours.

Threads: event loop, before it serves.

Source: reference bookie behaviour, sections 7 and 8.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import structlog

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.journal.directory import SUFFIX
from bookie_pod.storage.journal.marks import mark_file_name
from bookie_protocol.errors import MetadataNotFound, StorageFault
from bookie_protocol.keys import is_unknown_key, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerStore

_log = structlog.get_logger(__name__)

READS_AT_ONCE: Final = 100


async def ledgers_of(store: LedgerStore, bookie_id: str) -> AsyncIterator[LedgerMetadata]:
    """Metadata of every ledger that names this bookie, ascending. Raises MetadataError."""
    async for span in store.ranges():
        for at in range(0, len(span.ids), READS_AT_ONCE):
            some = span.ids[at : at + READS_AT_ONCE]
            for metadata in await asyncio.gather(*(_read(store, ledger_id) for ledger_id in some)):
                if metadata is not None and bookie_id in metadata.all_bookies():
                    yield metadata


def key_of(metadata: LedgerMetadata) -> bytes:
    """The master key that follows from the recorded password; empty if none is recorded."""
    return master_key(metadata.password) if metadata.password is not None else b""


async def _read(store: LedgerStore, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await store.read(ledger_id)).value
    except MetadataNotFound:
        return None


async def run_preboot_check(storage: DbLedgerStorage, store: LedgerStore, bookie_id: str, reason: str) -> int:
    """Put in limbo what may be lost; how many ledgers. Durable on return. Raises MetadataError, StorageFault."""
    _log.warning("data may be lost here: ledgers are put in limbo until they are checked", reason=reason)
    await asyncio.to_thread(storage.set_flags, storage.flags() | NEEDS_INTEGRITY_CHECK)
    count = 0
    async for metadata in ledgers_of(store, bookie_id):
        in_last = bookie_id in metadata.last_ensemble
        record = storage.ledger(metadata.ledger_id)
        if record is None or is_unknown_key(record.key):
            record = storage.set_master_key(metadata.ledger_id, key_of(metadata))
        fenced = record.fenced or (in_last and not metadata.is_closed)
        limbo = record.limbo or in_last or metadata.is_closed
        if (fenced, limbo) != (record.fenced, record.limbo):
            storage.set_ledger(metadata.ledger_id, replace(record, fenced=fenced, limbo=limbo))
        count += limbo
    await asyncio.to_thread(storage.flush)
    _log.warning("ledgers are in limbo", count=count)
    return count


def forget_marks(files: Files, journal_folders: Sequence[str], ledger_folders: Sequence[str]) -> None:
    """Of journals that are gone: their marks point to files that nobody has any more. Raises StorageFault."""
    for index, folder in enumerate(journal_folders):
        try:
            if files.is_dir(folder) and any(name.endswith(SUFFIX) for name in files.listdir(folder)):
                continue
            for ledger_folder in ledger_folders:
                path = f"{ledger_folder}/{mark_file_name(index, len(journal_folders))}"
                if files.exists(path):
                    files.unlink(path)
                    files.sync_directory(ledger_folder)
                    _log.warning("the mark of a journal that is gone is forgotten", path=path)
        except OSError as error:
            raise StorageFault(f"cannot forget the mark of journal {folder}: {error}") from error
