"""Stores copies of entries on this bookie, as the adds of a recovery would be.

Invariants
- A copy goes through the write cache and the journal like any add, so it is durable when `store` has returned.
- At most `BATCH_BYTES` are under way, and clients come first: where a cache is full or the journal is behind, copies
  wait.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bookie_pod.ledgers.operations import LedgerOperations, resolve
from bookie_protocol.entry import read_prefix
from bookie_protocol.errors import BookieReadOnly, NoSuchLedger

BATCH_BYTES: Final = 1024 * 1024
WAIT_S: Final = 0.02


class LocalCopies:
    """`busy()`: clients wait for the disks. `writable()`: the disks have room for adds of recovery."""

    def __init__(self, operations: LedgerOperations, *, busy: Callable[[], bool], writable: Callable[[], bool]) -> None:
        self._operations = operations
        self._busy = busy
        self._writable = writable
        self._lanes = operations.lanes()
        self._waiting: list[asyncio.Future[None]] = []
        self._nbytes = 0

    async def store(self, ledger_id: int, key: bytes, entry_id: int, entry: bytes) -> None:
        """Take one copy; it is durable after the next `settle`.

        Raises BookieReadOnly, BadRequest, LedgerFenced (deleted meanwhile), Unauthorized, StorageFault.
        """
        while True:
            if not self._writable():
                raise BookieReadOnly("this bookie takes no copies: its disks are full")
            full = self._operations.storage.is_full(ledger_id)
            if full:
                self._operations.storage.request_flush(ledger_id)
            elif not self._busy():
                break
            await asyncio.sleep(WAIT_S)
        try:
            known = self._operations.ledgers.for_read(ledger_id).key
        except NoSuchLedger:
            known = b""
        lac = read_prefix(entry)[2]
        lane = self._operations.add(self._lanes, ledger_id, entry_id, lac, known or key, entry, recovery=True)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: BaseException | None) -> None:
            resolve(done, error)
            self._operations.on_acknowledged()

        self._operations.submit(lane, 1, stored)
        self._waiting.append(done)
        self._nbytes += len(entry)
        if self._nbytes >= BATCH_BYTES:
            await self.settle()

    async def settle(self) -> None:
        """Wait until everything that was stored is durable. Raises StorageFault."""
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        if waiting:
            await asyncio.gather(*waiting)
