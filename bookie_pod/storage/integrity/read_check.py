"""The digest of what comes out of an entry log for a reader: a bit that flipped on the disk is told before a client
gets it, also where no scrub has been yet.

What memory holds was checked when it was read, or never was on a disk, so it is not checked again.

Invariants
- An entry whose CRC32C is right is sound, without a question: that is the type nearly every ledger has. Only if it is
  not, somebody is asked which type the ledger has.
- Nothing is called damaged by a type that was learnt before: ids are used again, and the ledger of now may have
  another one.
- A reader waits `WAIT_S` at most for that answer. Without one the entry is served unchecked, and nobody is asked for
  `PAUSE_S`: reads need no metadata service. The reader checks the digest too.
- A ledger of which nobody knows the type is asked about every `PAUSE_S` at most.
- MAC needs the ledger's password and DUMMY is no digest: such entries are served as they are.

Threads: any number of readers; one of its own asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from struct import Struct
from typing import Final

import google_crc32c

from bookie_pod.storage.entry_log.interface import Row
from bookie_pod.storage.gc.throttle import ScrubStopped
from bookie_pod.storage.integrity.entry_check import DigestTypes, digest_problem, entry_damage
from bookie_pod.storage.integrity.quarantine import Damage
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import ENTRY_HEADER_SIZE

WAIT_S: Final = 1.0
PAUSE_S: Final = 30.0
MAX_KNOWN: Final = 65_536
_CRC32C_FIELD: Final = Struct(">I").pack
_CRC32C_END: Final = ENTRY_HEADER_SIZE + 4
_CHECKED: Final = (DigestType.CRC32, DigestType.CRC32C)


class ReadCheck:
    """See the module. `found` hears of each damaged entry, on the reader's thread."""

    def __init__(
        self, digests: DigestTypes, found: Callable[[Damage], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._digests = digests
        self._found = found
        self._clock = clock
        self._others: dict[int, DigestType] = {}
        """Types other than CRC32C, of ledgers that were asked about."""
        self._unknown_until: dict[int, float] = {}
        """Ledgers that have no type, or none that anybody knows, and when they are asked about again."""
        self._lock = threading.Lock()
        self._asker: ThreadPoolExecutor | None = None
        self._silent_until = 0.0

    def problem(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """What is wrong with the entry, which is reported too; None: nothing that can be seen."""
        known = self._others.get(ledger_id)
        if known is None:
            sound = _is_sound_crc32c(entry)
        else:
            sound = known not in _CHECKED or digest_problem(known, ledger_id, entry_id, entry) is None
        if sound:
            return None
        digest = self._ask(ledger_id)
        if digest is None or digest not in _CHECKED:
            return None
        problem = digest_problem(digest, ledger_id, entry_id, entry)
        if problem is not None:
            self._found(entry_damage(problem, ledger_id, entry_id, location))
        return problem

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        """The rows (entry id, entry, location) before the first with a problem, which is reported."""
        is_crc32c = ledger_id not in self._others
        for index, (entry_id, entry, location) in enumerate(rows):
            if is_crc32c and _is_sound_crc32c(entry):
                continue
            if self.problem(location, ledger_id, entry_id, entry) is not None:
                return rows[:index]
        return rows

    def _ask(self, ledger_id: int) -> DigestType | None:
        with self._lock:
            now = self._clock()
            if now < self._silent_until or now < self._unknown_until.get(ledger_id, now):
                return None
            if self._asker is None:
                self._asker = ThreadPoolExecutor(1, "digest-types")
            answer: Future[DigestType | None] = self._asker.submit(self._digests.digest_type, ledger_id, fresh=True)
        try:
            found = answer.result(WAIT_S)
        except WaitTimeout:
            answer.cancel()
            self._silent_until = self._clock() + PAUSE_S
            return None
        except ScrubStopped:
            return None
        self._keep(ledger_id, found)
        return found

    def _keep(self, ledger_id: int, found: DigestType | None) -> None:
        with self._lock:
            if found is DigestType.CRC32C:
                self._others.pop(ledger_id, None)
                return
            for kept in (self._others, self._unknown_until):
                if len(kept) >= MAX_KNOWN:
                    kept.clear()
            if found is None:
                self._unknown_until[ledger_id] = self._clock() + PAUSE_S
            else:
                self._others[ledger_id] = found


def _is_sound_crc32c(entry: bytes) -> bool:
    """As `verify` of that digest, without its copies and messages: every entry that is read goes through this."""
    checksum = google_crc32c.extend(google_crc32c.value(entry[:ENTRY_HEADER_SIZE]), entry[_CRC32C_END:])
    return entry[ENTRY_HEADER_SIZE:_CRC32C_END] == _CRC32C_FIELD(checksum)
