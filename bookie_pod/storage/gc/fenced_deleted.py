"""Ledgers that were fenced when they were deleted here: `gc-fenced-ledgers`.

Such a ledger is unknown to this bookie, so a late writer that does not know of the fence could create it again, and its
adds would be acknowledged. So the bookie remembers the fence for seven days after the deletion, or after the last
question about it, also over restarts.

The file has a copy in each ledger directory, rows of ledger id and the time at which it is forgotten, in ms since the
epoch. (`RowsFile` says what is around them.)

Invariants
- Garbage collection makes it durable that a ledger was fenced *before* it deletes the ledger. If a remembered ledger
  exists all the same, its own record counts: callers look for the ledger first, and ask here only if there is none.
- The copies are read together. One that is missing or damaged says nothing; a copy that could not be written is an
  older one. At least one takes what `remember` and `write` are asked to keep, or they raise.
- At most `MAX_LEDGERS`; those to be forgotten first go first.
- Within a process time is that of `clock`; a clock that was set back keeps nothing for longer than seven days.

Threads: `add` and `was_fenced` on the event loop, which waits for no disk there; `remember` and `write` on any other.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.packed_ids import RowsFile
from bookie_protocol.errors import StorageFault

NAME: Final = "gc-fenced-ledgers"
MAGIC: Final = b"PKGCFNC1"
MAX_LEDGERS: Final = 100_000
REMEMBERED_S: Final = 7 * 24 * 3600.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def fenced_files(files: Files, folders: Sequence[str]) -> list[RowsFile]:
    """The copies in these `current` folders."""
    lost = "nothing known here of ledgers that were fenced and deleted: a late writer could create one of them anew"
    return [RowsFile(files, folder, NAME, MAGIC, lost) for folder in folders]


class FencedAndDeleted:
    """See the module. Without `copies` nothing outlives the process."""

    def __init__(
        self,
        copies: Sequence[RowsFile] = (),
        *,
        limit: int = MAX_LEDGERS,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._copies = copies
        self._limit = limit
        self._clock = clock
        self._now_ms = now_ms
        self._lock = threading.Lock()
        """Guards the two fields below; never held during input or output."""
        self._forgotten_at: OrderedDict[int, float] = OrderedDict()
        """The time at which each ledger is forgotten, by `clock`, ascending."""
        self._changed = False
        self._writing = threading.Lock()
        self._read()

    # --- event loop -----------------------------------------------------------------------------------------

    def add(self, ledger_id: int) -> None:
        """It was deleted, and was fenced. Durable with the next `write`."""
        self._put((ledger_id,))

    def was_fenced(self, ledger_id: int) -> bool:
        """Return whether the ledger was fenced and deleted lately. The question renews the memory."""
        at = self._forgotten_at.get(ledger_id)
        if at is None:
            return False
        if at < self._clock():
            with self._lock:
                self._forgotten_at.pop(ledger_id, None)
            return False
        self._put((ledger_id,))
        return True

    def _put(self, ledger_ids: Collection[int]) -> None:
        with self._lock:
            at = self._clock() + REMEMBERED_S
            for ledger_id in ledger_ids:
                self._forgotten_at[ledger_id] = at
                self._forgotten_at.move_to_end(ledger_id)
            while len(self._forgotten_at) > self._limit:
                self._forgotten_at.popitem(last=False)
            self._changed = True

    # --- the file -------------------------------------------------------------------------------------------

    def remember(self, ledger_ids: Collection[int]) -> None:
        """They are fenced and about to be deleted: durable on return. `StorageFault`."""
        self._put(ledger_ids)
        self.write()

    def write(self) -> None:
        """Make everything added so far durable. Raises `StorageFault`."""
        with self._writing:
            with self._lock:
                if not self._changed:
                    return
                self._changed = False
                offset = self._now_ms() / 1000 - self._clock()
                count = len(self._forgotten_at)
                ids = np.fromiter(self._forgotten_at, np.int64, count)
                at = np.fromiter(self._forgotten_at.values(), np.float64, count)
            failures = []
            for copy in self._copies:
                try:
                    copy.write(ids, ((at + offset) * 1000).astype(np.int64))
                except StorageFault as error:
                    failures.append(error)
            if failures and len(failures) == len(self._copies):
                with self._lock:
                    self._changed = True
                raise failures[0]

    def _read(self) -> None:
        now_ms, now = self._now_ms(), self._clock()
        found: dict[int, int] = {}
        for copy in self._copies:
            for ledger_id, at_ms in zip(*(column.tolist() for column in copy.read()), strict=True):
                found[ledger_id] = max(at_ms, found.get(ledger_id, 0))
        latest = sorted((at_ms, ledger_id) for ledger_id, at_ms in found.items() if at_ms > now_ms)[-self._limit :]
        for at_ms, ledger_id in latest:
            self._forgotten_at[ledger_id] = now + min((at_ms - now_ms) / 1000, REMEMBERED_S)
