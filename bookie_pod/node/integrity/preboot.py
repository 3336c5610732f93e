"""The step before the bookie serves that puts ledgers in limbo whose entries it may have lost.

So no client gets "no such entry" for them.

Every ledger that the metadata place on this bookie exists here afterwards, in limbo: reads of what is not there answer
"ledger state unknown". Those that are closed or being recovered, and those whose last ensemble this bookie belongs to,
are fenced as well: the fence may be what was lost, and a writer that does not know that its ledger was closed must not
be acknowledged here. One that is still written elsewhere, and has this bookie in an earlier ensemble only, takes its
writer's adds, should it come back here. One whose metadata are damaged is taken for ours.

(The reference puts only ledgers into limbo that are not closed and in whose last ensemble it is, and so denies entries
of others until they are copied.)

Invariants
- The flag NEEDS_INTEGRITY_CHECK is durable first, then the limbo; only then may cookies be stamped, journals go, or the
  bookie forget that it is new.

Threads: event loop, before it serves.

Source: docs/internals/bookie-behaviour.md, sections 7 and 8.1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.journal.directory import SUFFIX
from bookie_pod.storage.journal.marks import mark_file_name
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.keys import has_unnamed, is_same_life, life_of_copies, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.together import read_ahead

_log = structlog.get_logger(__name__)

READS_AT_ONCE: Final = 100
TELL_EVERY_S: Final = 10.0
"""Seconds between two lines that report progress: with millions of ledgers it takes minutes."""


async def ledgers_of(
    store: LedgerStore,
    bookie_id: str,
    on_damaged: Callable[[int, MetadataDamaged], None],
    among: Iterable[int] | None = None,
) -> AsyncIterator[Versioned[LedgerMetadata]]:
    """Yield the metadata of every ledger, or of those in `among`, that names this bookie, in this order.

    `on_damaged` is called for those that cannot be understood. Raises MetadataError.
    """
    count, tell_at = 0, time.monotonic() + TELL_EVERY_S
    ids = _ids(store) if among is None else _each(among)
    async with aclosing(read_ahead(ids, lambda each: _read(store, each), READS_AT_ONCE)) as answers:
        async for ledger_id, found in answers:
            count += 1
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_EVERY_S
                _log.info("reading the metadata of all ledgers", read=count, at_ledger=ledger_id)
            if isinstance(found, MetadataDamaged):
                on_damaged(ledger_id, found)
            elif found is not None and bookie_id in found.value.all_bookies():
                yield found


async def _ids(store: LedgerStore) -> AsyncGenerator[int, None]:
    async for span in store.ranges():
        for ledger_id in span.ids:
            yield ledger_id


async def _each(ledger_ids: Iterable[int]) -> AsyncGenerator[int, None]:
    for ledger_id in ledger_ids:
        yield ledger_id


async def newest_ledger(store: LedgerStore) -> int:
    """The highest ledger id there is; -1: there is no ledger. Raises MetadataError."""
    newest = -1
    async for span in store.ranges():
        newest = max((newest, *span.ids))
    return newest


def key_of(metadata: LedgerMetadata) -> bytes:
    """Return the master key that follows from the recorded password; empty if none is recorded."""
    return master_key(metadata.password) if metadata.password is not None else b""


def is_of_another(record: LedgerRecord, metadata: LedgerMetadata) -> bool:
    """Return whether what is stored is certainly not of this ledger: it has another key, or another life under which
    nothing came that names none."""
    key, life = key_of(metadata), life_of_copies(metadata.creation_token)
    if key and record.key and record.key != key:
        return True
    return bool(life and record.life) and not is_same_life(record.life, life) and not has_unnamed(record.life)


async def _read(store: LedgerStore, ledger_id: int) -> tuple[int, Versioned[LedgerMetadata] | MetadataDamaged | None]:
    try:
        return ledger_id, await store.read(ledger_id)
    except MetadataNotFound:
        return ledger_id, None
    except MetadataDamaged as error:
        return ledger_id, error


async def run_preboot_check(storage: LedgerStorage, store: LedgerStore, bookie_id: str, reason: str) -> int:
    """Put in limbo what may be lost; how many ledgers. Durable on return. Raises MetadataError, StorageFault."""
    limbo = _Limbo(storage)
    damaged: list[int] = []
    async for stored in ledgers_of(store, bookie_id, lambda ledger_id, error: damaged.append(ledger_id)):
        metadata = stored.value
        await limbo.flag(reason)
        may_be_fenced = metadata.state is not LedgerState.OPEN or bookie_id in metadata.last_ensemble
        limbo.put(metadata.ledger_id, key_of(metadata), may_be_fenced=may_be_fenced)
    for ledger_id in damaged:
        await limbo.flag(reason)
        limbo.put(ledger_id, b"", may_be_fenced=True)
    if limbo.flagged:
        await asyncio.to_thread(storage.flush)
        _log.warning("ledgers are in limbo", count=limbo.count, with_damaged_metadata=len(damaged))
    return limbo.count


class _Limbo:
    """The ledgers that were put in limbo; nothing is remembered of a bookie that no ledger names."""

    def __init__(self, storage: LedgerStorage) -> None:
        self.count = 0
        self.flagged = False
        self._storage = storage

    async def flag(self, reason: str) -> None:
        """Durable before anything is in limbo."""
        if not self.flagged:
            _log.warning("data may be lost here: ledgers are put in limbo until they are checked", reason=reason)
            flags = await asyncio.to_thread(self._storage.flags)
            await asyncio.to_thread(self._storage.set_flags, flags | NEEDS_INTEGRITY_CHECK)
            self.flagged = True

    def put(self, ledger_id: int, key: bytes, *, may_be_fenced: bool) -> None:
        """Make the ledger, and put it in limbo."""
        record = self._storage.ledger(ledger_id)
        if record is None:  # no new life: logs may hold what it had
            record = LedgerRecord(key, first_log=0)
            self._storage.set_ledger(ledger_id, record)
        elif not record.key:  # with zeros, what is stored came from a client without a password
            record = self._storage.set_master_key(ledger_id, key)
        fenced = record.fenced or may_be_fenced
        self._storage.set_ledger(ledger_id, replace(record, fenced=fenced, limbo=True))
        self.count += 1


def forget_marks(files: Files, journal_folders: Sequence[str], ledger_folders: Sequence[str]) -> None:
    """Forget the marks of journals that are gone: they point to files that no longer exist. Raises StorageFault."""
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
            raise storage_fault(f"cannot forget the mark of journal {folder}", error) from error
