"""The repair after data was lost: this bookie's ledgers get their end and missing entries from other bookies.

Once after the start, whenever a rebuild of an index or a scrub has ended, and again, ever more rarely, while it fails:
of every ledger if the storage's flag NEEDS_INTEGRITY_CHECK is set, else of those in limbo, for any reason:
1. those that are fenced, in limbo and not closed are recovered. This bookie's word does not count there, because it
   answers "ledger state unknown". The writer of one that is not fenced is let go on;
2. every entry that the metadata place here and that is not here is copied, also one that the index places into an entry
   log that is gone. An entry that is damaged here is the scrubber's business;
3. the ledger leaves limbo once its entries are durable; one that is written, and here, once it is closed. When no
   ledger failed the flag is cleared.

Invariants
- The flag is cleared only after one whole walk over the metadata without a failure, and after a flush.
- A ledger leaves limbo, and the flag goes, only if the storage has put no ledger in limbo since the comparison began:
  what was there then may be lost by now.
- A ledger that the metadata service no longer has is done: garbage collection removes it.
- Entries under another key than the metadata tell, or another life, are a stranger's, or a former ledger's: they do not
  count, and nothing is stored among them. So the check fails until they are gone, or the ledger is placed elsewhere.
- A ledger that failed stays in limbo and is tried again. What is in limbo, and not placed here, is the collection's.
- Copies name the life of the ledger, which the metadata, read again, have confirmed before the first one is stored.
- A copy goes through the write cache and the journal like any add, so it is durable when it has been stored. At most
  `BATCH_BYTES` are under way, and clients come first: where a cache is full or the journal is behind, copies wait.

Threads: event loop; look-ups on threads.

Source: docs/internals/bookie-behaviour.md, section 8.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.ledgers.operations import LedgerOperations, WriteLane, another_is_stored, resolve
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.node.identity.earlier_life import look
from bookie_pod.node.integrity.preboot import is_of_another, key_of, ledgers_of
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_protocol.entry import read_prefix
from bookie_protocol.errors import (
    BookieReadOnly,
    CouldNotTell,
    LedgerDeleted,
    LedgerStateUnknown,
    NoSuchLedger,
    PodkeeperError,
)
from bookie_protocol.keys import is_same_life, life_of_copies
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import LedgerLife
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore

if TYPE_CHECKING:
    from bookie_pod.node.integrity.replicas import Replicas

BATCH_BYTES: Final = 1024 * 1024
WAIT_S: Final = 0.02
_log = structlog.get_logger(__name__)

INTERVAL_S: Final = 3.0
MAX_INTERVAL_S: Final = 600.0
"""Seconds between two failing checks, in the end.

Each walks over the metadata of the whole cluster, and entries without any copy fail for good.
"""
RECOVERIES_AT_ONCE: Final = 20
LOOKS: Final = 10
"""Looks at the metadata of a ledger before its first copy is stored, while requests come that may be another one's."""
COPIES_AT_ONCE: Final = 3000
"""Missing entries that are looked up before they are copied."""


class LocalCopies:
    """Stores copies of entries here, as the adds of a recovery would be. `busy()`: clients wait for the disks.
    `writable()`: the disks have room for adds of recovery."""

    def __init__(
        self,
        operations: LedgerOperations,
        metadata: LedgerStore,
        *,
        busy: Callable[[], bool],
        writable: Callable[[], bool],
    ) -> None:
        self._operations = operations
        self._metadata = metadata
        self._busy = busy
        self._writable = writable
        self._lanes = operations.lanes()
        self._waiting: list[asyncio.Future[None]] = []
        self._nbytes = 0

    async def store(self, metadata: LedgerMetadata, entry_id: int, entry: bytes) -> None:
        """Take one copy; it is durable after the next `settle`.

        Raises BookieReadOnly, BadRequest, LedgerFenced or LedgerDeleted (deleted meanwhile), LedgerStateUnknown
        (another ledger of the id is stored here, or there is another one now), MetadataError, Unauthorized,
        StorageFault.
        """
        ledger_id = metadata.ledger_id
        while True:
            if not self._writable():
                raise BookieReadOnly("this bookie takes no copies: its disks are full")
            full = self._operations.storage.is_full(ledger_id)
            if full:
                self._operations.storage.request_flush(ledger_id)
            elif not self._busy():
                break
            await asyncio.sleep(WAIT_S)
        lane = await self._admit(metadata, entry_id, entry)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: BaseException | None) -> None:
            resolve(done, error)
            self._operations.on_acknowledged()

        self._operations.submit(lane, 1, stored)
        self._waiting.append(done)
        self._nbytes += len(entry)
        if self._nbytes >= BATCH_BYTES:
            await self.settle()

    async def _admit(self, metadata: LedgerMetadata, entry_id: int, entry: bytes) -> WriteLane:
        ledgers, ledger_id = self._operations.ledgers, metadata.ledger_id
        life = life_of_copies(metadata.creation_token)
        is_open = False
        if not ledgers.is_known(ledger_id) or (life and not is_same_life(ledgers.life_of(ledger_id), life)):
            metadata = await self._look_again(metadata)
            is_open = bool(life) and metadata.state is LedgerState.OPEN
            if metadata.is_closed:  # its writer may not have heard of its end
                ledgers.create_fenced(ledger_id, key_of(metadata))
        record = self._operations.storage.ledger(ledger_id)
        if record is not None and is_of_another(record, metadata):
            raise another_is_stored(ledger_id)
        key, lac = (record and record.key) or key_of(metadata), read_prefix(entry)[2]
        ledgers.alive = ledger_id if is_open else None
        try:
            return self._operations.add(self._lanes, ledger_id, entry_id, lac, key, entry, recovery=True, life=life)
        finally:
            ledgers.alive = None

    async def _look_again(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return the metadata as they are now: those that were read long ago may be of a former ledger of the id.

        Raises LedgerDeleted, LedgerStateUnknown, MetadataError.
        """
        ledger_id, life = metadata.ledger_id, life_of_copies(metadata.creation_token)
        with self._operations.ledgers.watch(ledger_id, life, key_of(metadata) or None) as watch:
            for _ in range(LOOKS):
                watch.begin()
                found = await look(self._metadata, ledger_id)
                if found is None:
                    raise LedgerDeleted(f"ledger {ledger_id} was deleted")
                if found.creation_token != metadata.creation_token:
                    raise LedgerStateUnknown(f"ledger {ledger_id}: another ledger has this id now")
                is_open = bool(life) and found.state is LedgerState.OPEN
                if not watch.is_outdated and not watch.must_look_again(is_open=is_open):
                    return found
        raise LedgerStateUnknown(f"ledger {ledger_id}: requests that may be another ledger's came at each look")

    async def settle(self) -> None:
        """Wait until everything that was stored is durable. Raises StorageFault."""
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        if waiting:
            await asyncio.gather(*waiting)


@dataclass(slots=True)
class DataIntegrityState:
    """The state of the check, for the admin API."""

    needed: bool = False
    running: bool = False
    in_limbo: int = 0
    """Ledgers in limbo, when it was looked last."""
    ledgers_open: int = 0
    """The number of checked ledgers that stay in limbo until their writer closes them."""
    ledgers_checked: int = 0
    """The number of ledgers checked in this run or the last one."""
    ledgers_failed: int = 0
    entries_copied: int = 0
    """The number of entries copied since the process started."""
    ledgers_recovered: int = 0
    last_error: str = ""


class DataIntegrityCheck:
    """`connect()` gives the replicas when they are needed first."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: Ledgers,
        store: LedgerStore,
        bookie_id: str,
        connect: Callable[[], Awaitable[Replicas]],
        copies: LocalCopies,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.state = DataIntegrityState()
        self._storage = storage
        self._ledgers = ledgers
        self._store = store
        self._bookie_id = bookie_id
        self._connect = connect
        self._copies = copies
        self._interval_s = interval_s
        self._requested = asyncio.Event()
        self._doubts = -1
        """The doubts of the storage when it was looked last."""

    def request(self) -> None:
        """Look for ledgers in limbo once more, now. Event loop."""
        self._requested.set()

    def request_if_doubted(self) -> None:
        """Look once more if the storage has put ledgers in limbo since the last look. Event loop."""
        if self._storage.doubts != self._doubts:
            self.request()

    async def serve(self) -> None:
        """Run now and after each request. Never returns."""
        while True:
            await self.run()
            await self._requested.wait()

    async def run(self) -> None:
        """Check until nothing is left to do."""
        pause = self._interval_s
        while True:
            self._requested.clear()
            self._doubts = self._storage.doubts
            everything, limbo = await asyncio.to_thread(self._what_is_needed)
            self.state.needed = everything or bool(limbo)
            if not self.state.needed:
                return
            try:
                if await self.check():
                    return
            except PodkeeperError as error:
                self.state.last_error = str(error)
                _log.warning("the data integrity check will be repeated", reason=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), pause)
            pause = min(2 * pause, MAX_INTERVAL_S)

    def _what_is_needed(self) -> tuple[bool, list[int]]:
        """Return whether every ledger is to be checked, and which are in limbo. Raises `StorageFault`."""
        ledger_ids = sorted(self._storage.ledger_ids())
        limbo = [each for each in ledger_ids if (record := self._storage.ledger(each)) is not None and record.limbo]
        self.state.in_limbo = len(limbo)
        return bool(self._storage.flags() & NEEDS_INTEGRITY_CHECK), limbo

    async def check(self) -> bool:
        """One check; whether nothing is left to do. Raises MetadataError, StorageFault."""
        state = self.state
        state.running, state.ledgers_checked, state.ledgers_failed, state.ledgers_open = True, 0, 0, 0
        doubts = self._storage.doubts
        try:
            everything, limbo = await asyncio.to_thread(self._what_is_needed)
            _log.info("data integrity check begins", of_all_ledgers=everything, in_limbo=len(limbo))
            replicas = await self._connect()
            await self._recover_all(replicas, limbo)
            among = None if everything else limbo
            async for stored in ledgers_of(self._store, self._bookie_id, self._failed, among):
                await self._ledger(replicas, stored.value)
            if state.ledgers_failed:
                _log.warning("ledgers failed the data integrity check, tried again", count=state.ledgers_failed)
                return False
            await asyncio.to_thread(self._storage.flush)
            if everything and not await asyncio.to_thread(self._storage.clear_flags, NEEDS_INTEGRITY_CHECK, doubts):
                return False
            await asyncio.to_thread(self._what_is_needed)
            state.needed, state.last_error = state.ledgers_open > 0, ""
            _log.info(
                "data integrity check complete",
                ledgers=state.ledgers_checked,
                still_open=state.ledgers_open,
                copied=state.entries_copied,
            )
            return not state.needed
        finally:
            state.running = False

    # --- ledgers without an end -----------------------------------------------------------------------------

    async def _recover_all(self, replicas: Replicas, limbo: Sequence[int]) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            async for stored in ledgers_of(self._store, self._bookie_id, lambda ledger_id, error: None, limbo):
                if stored.value.is_closed or not self._is_fenced_in_limbo(stored.value):
                    continue
                if len(waiting) >= RECOVERIES_AT_ONCE:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting.add(asyncio.create_task(self._recover(replicas, LedgerLife.of(stored))))
            if waiting:
                await asyncio.wait(waiting)
        finally:
            for task in waiting:
                task.cancel()

    async def _recover(self, replicas: Replicas, life: LedgerLife) -> None:
        try:
            await replicas.recover(life)
            self.state.ledgers_recovered += 1
        except LedgerDeleted:
            return
        except PodkeeperError as error:
            # It is not closed when its turn to be copied comes, and counts as failed there.
            self.state.last_error = str(error)
            _log.warning("a ledger in limbo could not be recovered", ledger=life.ledger_id, reason=str(error))

    # --- copies ---------------------------------------------------------------------------------------------

    async def _ledger(self, replicas: Replicas, metadata: LedgerMetadata) -> None:
        ledger_id = metadata.ledger_id
        try:
            self._tell_key(metadata)
            if self._is_fenced_in_limbo(metadata) and not metadata.is_closed:
                raise CouldNotTell(f"ledger {ledger_id} is in limbo, and its end is not known yet")
            doubts = self._storage.doubts
            missing = self._missing(metadata)
            while some := await asyncio.to_thread(lambda: list(islice(missing, COPIES_AT_ONCE))):
                await self._copy(replicas, metadata, some)
            self._leave_limbo(metadata, doubts)
            self.state.ledgers_checked += 1
        except LedgerDeleted:
            return
        except PodkeeperError as error:
            self._failed(ledger_id, error)

    def _tell_key(self, metadata: LedgerMetadata) -> None:
        """Give a ledger without a key, as a rebuild leaves it, that of the metadata. Else the next client that comes,
        perhaps a stranger, would tell it."""
        record, key = self._storage.ledger(metadata.ledger_id), key_of(metadata)
        if record is not None and not record.key and key:
            self._ledgers.for_write(metadata.ledger_id, key)

    def _is_fenced_in_limbo(self, metadata: LedgerMetadata) -> bool:
        record = self._storage.ledger(metadata.ledger_id)
        return record is not None and record.fenced and record.limbo and not is_of_another(record, metadata)

    def _failed(self, ledger_id: int, error: PodkeeperError) -> None:
        self.state.ledgers_failed += 1
        self.state.last_error = str(error)
        _log.warning("a ledger failed the data integrity check", ledger=ledger_id, reason=str(error))

    def _missing(self, metadata: LedgerMetadata) -> Iterator[int]:
        """Entries that belong here and are not, ascending; looks at the index as it is asked."""
        held = self._held(metadata)
        next_held = next(held, None)
        for entry_id in expected_entries(metadata, self._bookie_id):
            while next_held is not None and next_held < entry_id:
                next_held = next(held, None)
            if next_held != entry_id:
                yield entry_id

    def _held(self, metadata: LedgerMetadata) -> Iterator[int]:
        """Yield the ids of the entries here; end early if the ledger is deleted, or another one is stored, which the
        copying code finds out itself.
        """
        record = self._storage.ledger(metadata.ledger_id)
        if record is not None and not is_of_another(record, metadata):
            with suppress(NoSuchLedger):
                yield from self._storage.entry_ids(metadata.ledger_id, in_logs=True)

    async def _copy(self, replicas: Replicas, metadata: LedgerMetadata, missing: list[int]) -> None:
        failed, last = 0, ""
        async for found in replicas.fetch(metadata, missing):
            if found.entry is None:
                failed, last = failed + 1, f"entry {found.entry_id}: {found.error}"
                continue
            await self._copies.store(metadata, found.entry_id, found.entry)
            self.state.entries_copied += 1
        await self._copies.settle()
        _log.info("missing entries copied", ledger=metadata.ledger_id, entries=len(missing) - failed, failed=failed)
        if failed:
            raise CouldNotTell(f"{failed} entries of ledger {metadata.ledger_id} could not be fetched; {last}")

    def _leave_limbo(self, metadata: LedgerMetadata, doubts: int) -> None:
        record = self._storage.ledger(metadata.ledger_id)
        if record is None or not record.limbo:
            return
        if self._storage.doubts != doubts:
            raise CouldNotTell(f"ledger {metadata.ledger_id}: entries may have been lost here since they were compared")
        is_over = metadata.is_closed or self._bookie_id not in metadata.last_ensemble
        if is_over and not is_of_another(record, metadata):
            self._ledgers.leave_limbo(metadata.ledger_id)
        else:
            self.state.ledgers_open += 1


def expected_entries(metadata: LedgerMetadata, bookie_id: str) -> Iterator[int]:
    """Yield the ids of the entries that the metadata place on this bookie, ascending.

    Of a ledger that is not closed these are only the ids before its last ensemble, whose end is unknown.
    """
    from bookie_client.replication.fragments import fragments  # bookies load the client when they need it

    for fragment in fragments(metadata.ledger_id, metadata, -1):
        for position in fragment.positions(bookie_id):
            yield from fragment.entries_of(position)
