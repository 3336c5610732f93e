"""The digest check of one entry, for the scrubber and for reads of clients (`ReadCheck`).

Reads from an entry log are checked, so that a bit that flipped on the disk is reported before a client gets the entry,
also where no scrub has been yet. Entries in memory were checked when they were read, or never were on a disk, so they
are not checked again. This module also has what the scrubber's checks share: where findings and costs go.

Invariants
- Nothing raises for damage; `ScrubStopped` ends a check, and a `StorageFault` says that it could not be made.
- An entry that is read and whose CRC32C is right is sound, without a question: that is the type nearly every ledger
  has. Only if it is wrong, the metadata service is asked which type the ledger has.
- Nothing is called damaged by a type that was learnt before: ids are used again, and the ledger of now may have another
  one.
- A reader waits `WAIT_S` at most for that answer. Without one the entry is served unchecked, and no question is sent
  for `PAUSE_S`: reads need no metadata service. The reader checks the digest too.
- The type of a ledger for which it is unknown is asked for every `PAUSE_S` at most.
- MAC needs the ledger's password and DUMMY is no digest: such entries are served unchecked.

Threads: the scrubber's; any number of readers, and one of their own asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, Protocol

import google_crc32c

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import DigestUnknown, Row
from bookie_pod.storage.gc.throttle import ScrubStopped
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.entry import ENTRY_HEADER_SIZE
from bookie_protocol.errors import DigestMismatch

Report = Callable[[Damage], None]
Pay = Callable[[int, int], None]
"""`pay(entries, bytes)` waits until that much may be read; raises `ScrubStopped`."""
WAIT_S: Final = 1.0
PAUSE_S: Final = 30.0
MAX_KNOWN: Final = 65_536
_CRC32C_FIELD: Final = Struct(">I").pack
_CRC32C_END: Final = ENTRY_HEADER_SIZE + 4
_CHECKED: Final = (DigestType.CRC32, DigestType.CRC32C)


class DigestTypes(Protocol):
    """The digest type that a ledger's metadata names. The node implements it, which the storage must not import."""

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        """Return the digest type of a ledger; None if it is unknown, or cannot be determined now.

        May wait for the metadata service; never raises, but for `ScrubStopped`. With `fresh`, return the type of the
        ledger that has this id now, for a caller that is about to call an entry damaged: an older answer may be of an
        earlier ledger. Any thread.
        """
        ...


@dataclass(slots=True)
class ScrubCounts:
    """The progress of one pass."""

    entries: int = 0
    """Entries that were read."""
    digests: int = 0
    """The number of them whose digest was checked."""
    restored: int = 0
    """Index rows that were put back."""
    logs: int = 0
    journals: int = 0
    rows: int = 0
    faults: int = 0
    """Checks that could not be made."""


class EntryCheck:
    """The digest of one entry, as far as it can be checked without the ledger's password."""

    def __init__(self, digests: DigestTypes, counts: ScrubCounts) -> None:
        self._digests = digests
        self._counts = counts

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """Say what is wrong with the entry, None if nothing can be seen, or its digest type is unknown."""
        for fresh in (False, True):
            digest_type = self._digests.digest_type(ledger_id, fresh=fresh)
            if digest_type is None or digest_type is DigestType.MAC:
                return None
            problem = digest_problem(digest_type, ledger_id, entry_id, entry)
            if problem is None:
                self._counts.digests += 1
                return None
        return problem


def digest_problem(digest_type: DigestType, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
    """Return what is wrong with an entry of a ledger with this type, not MAC; None if nothing is."""
    try:
        digest_manager(digest_type, b"").verify(entry, ledger_id, entry_id)
    except DigestMismatch as error:
        return str(error)
    return None


def entry_damage(detail: str, ledger_id: int, entry_id: int, location: int) -> Damage:
    """A finding about one entry."""
    return Damage(
        DamageKind.ENTRY,
        detail,
        file_id=split_location(location)[0],
        ledger_id=ledger_id,
        entry_id=entry_id,
        location=location,
    )


def unread_entry(detail: str, ledger_id: int, entry_id: int, location: int) -> Damage:
    """A finding about an entry that could not be read. That is the disk's fault, and may pass."""
    return replace(entry_damage(detail, ledger_id, entry_id, location), location=0)


class ReadCheck:
    """See the module. `found` hears of each damaged entry, and whether it was asked for, on the reader's thread."""

    def __init__(
        self, digests: DigestTypes, found: Callable[[Damage, bool], None], clock: Callable[[], float] = time.monotonic
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

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """Say what is wrong with the entry, None if nothing can be seen. Raises `DigestUnknown`."""
        known = self._others.get(ledger_id)
        if known is None:
            sound = _is_sound_crc32c(entry)
        else:
            sound = known not in _CHECKED or digest_problem(known, ledger_id, entry_id, entry) is None
        if sound:
            return None
        digest = self._ask(ledger_id)
        if digest is None:
            raise DigestUnknown(f"the digest type of ledger {ledger_id} is unknown at the moment")
        if digest not in _CHECKED:
            return None
        return digest_problem(digest, ledger_id, entry_id, entry)

    def served(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """Say what is wrong with an entry that was asked for, and report it. Return None also if that is unknown."""
        return self._reported(location, ledger_id, entry_id, entry, asked=True)

    def _reported(self, location: int, ledger_id: int, entry_id: int, entry: bytes, *, asked: bool) -> str | None:
        try:
            problem = self.problem(ledger_id, entry_id, entry)
        except DigestUnknown:
            return None
        if problem is not None:
            self._found(entry_damage(problem, ledger_id, entry_id, location), asked)
        return problem

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        """The rows (entry id, entry, location) before the first with a problem, which is reported."""
        is_crc32c = ledger_id not in self._others
        for index, (entry_id, entry, location) in enumerate(rows):
            if is_crc32c and _is_sound_crc32c(entry):
                continue
            if self._reported(location, ledger_id, entry_id, entry, asked=False) is not None:
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
    """Check the digest as its `verify` does, without copies and messages: every read entry goes through this."""
    checksum = google_crc32c.extend(google_crc32c.value(entry[:ENTRY_HEADER_SIZE]), entry[_CRC32C_END:])
    return entry[ENTRY_HEADER_SIZE:_CRC32C_END] == _CRC32C_FIELD(checksum)
