"""Before the bookie serves: what it may have lost is put in limbo, so that nobody is told "no such entry".

Every ledger that the metadata place on this bookie exists here afterwards. Those that are closed or being recovered,
and those whose last ensemble this bookie belongs to, are in limbo: reads of what is not there answer "ledger state
unknown". They are fenced as well: the fence may be what was lost, and a writer who never heard that its ledger was
closed must not be acknowledged here. A ledger that is still written elsewhere and has this bookie in an earlier
ensemble only is left as it is: limbo would refuse its writer, should it come back here. One whose metadata are damaged
is taken for ours.

(The reference puts only ledgers into limbo that are not closed, and so denies entries of closed ones until they are
copied.)

Invariants
- The flag NEEDS_INTEGRITY_CHECK is durable first, then the limbo; only then may cookies be stamped, journals go, or the
  bookie forget that it is new.

Threads: event loop, before it serves.

Source: reference bookie behaviour, sections 7 and 8.1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.journal.directory import SUFFIX
from bookie_pod.storage.journal.marks import mark_file_name
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, StorageFault
from bookie_protocol.keys import is_unknown_key, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import LedgerStore
from bookie_protocol.together import read_ahead

_log = structlog.get_logger(__name__)

READS_AT_ONCE: Final = 100
TELL_EVERY_S: Final = 10.0
"""With millions of ledgers it takes minutes: seconds between two lines that say how far it is."""


async def ledgers_of(
    store: LedgerStore, bookie_id: str, on_damaged: Callable[[int, MetadataDamaged], None]
) -> AsyncIterator[LedgerMetadata]:
    """Metadata of every ledger that names this bookie, ascending; of those that cannot be understood `on_damaged` is
    told. Raises MetadataError."""
    count, tell_at = 0, time.monotonic() + TELL_EVERY_S
    async with aclosing(read_ahead(_ids(store), lambda each: _read(store, each), READS_AT_ONCE)) as answers:
        async for ledger_id, metadata in answers:
            count += 1
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_EVERY_S
                _log.info("reading the metadata of all ledgers", read=count, at_ledger=ledger_id)
            if isinstance(metadata, MetadataDamaged):
                on_damaged(ledger_id, metadata)
            elif metadata is not None and bookie_id in metadata.all_bookies():
                yield metadata


async def _ids(store: LedgerStore) -> AsyncGenerator[int, None]:
    async for span in store.ranges():
        for ledger_id in span.ids:
            yield ledger_id


async def newest_ledger(store: LedgerStore) -> int:
    """The highest ledger id there is; -1: there is no ledger. Raises MetadataError."""
    newest = -1
    async for span in store.ranges():
        newest = max((newest, *span.ids))
    return newest


def key_of(metadata: LedgerMetadata) -> bytes:
    """The master key that follows from the recorded password; empty if none is recorded."""
    return master_key(metadata.password) if metadata.password is not None else b""


async def _read(store: LedgerStore, ledger_id: int) -> tuple[int, LedgerMetadata | MetadataDamaged | None]:
    try:
        return ledger_id, (await store.read(ledger_id)).value
    except MetadataNotFound:
        return ledger_id, None
    except MetadataDamaged as error:
        return ledger_id, error


async def run_preboot_check(storage: LedgerStorage, store: LedgerStore, bookie_id: str, reason: str) -> int:
    """Put in limbo what may be lost; how many ledgers. Durable on return. Raises MetadataError, StorageFault."""
    limbo = _Limbo(storage)
    damaged: list[int] = []
    async for metadata in ledgers_of(store, bookie_id, lambda ledger_id, error: damaged.append(ledger_id)):
        await limbo.flag(reason)
        doubtful = metadata.state is not LedgerState.OPEN or bookie_id in metadata.last_ensemble
        limbo.put(metadata.ledger_id, key_of(metadata), doubtful=doubtful)
    for ledger_id in damaged:
        await limbo.flag(reason)
        limbo.put(ledger_id, b"", doubtful=True)
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

    def put(self, ledger_id: int, key: bytes, *, doubtful: bool) -> None:
        """Make the ledger, and put it in limbo if it is doubtful."""
        record = self._storage.ledger(ledger_id)
        if record is None or is_unknown_key(record.key):
            record = self._storage.set_master_key(ledger_id, key)
        if doubtful and not (record.fenced and record.limbo):
            record = replace(record, fenced=True, limbo=True)
            self._storage.set_ledger(ledger_id, record)
        self.count += record.limbo


def forget_marks(files: Files, journal_folders: Sequence[str], ledger_folders: Sequence[str]) -> None:
    """Forget the marks of journals that are gone: they point to files that nobody has any more. Raises StorageFault."""
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
