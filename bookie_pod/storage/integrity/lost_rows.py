"""Entries that a scrub finds in entry logs and that have no row in the index: which of their copies gets it.

Without the row the bookie would answer "no such entry". A copy for which a digest vouches gets it at once. Any other
one may be torn or rotten, and a better one may lie in a later log: it waits until all logs were seen. Then the newest
copy counts, but for one that a power cut has torn from an older one. While an entry has no row, garbage collection
keeps all of its copies.

Invariants
- The ledger of an entry that may have been durable and gets no row now is in limbo: no caller takes "no such entry" for
  the last word. It leaves limbo once it was compared with other bookies.
- An index that lacked the row of an entry in a log that was surely synced is not known to be complete any more,
  whatever becomes of that entry. That is noted before the row is back. In any other log it may have been an add that
  was never acknowledged.
- Limbo is durable before the position of the pass is stored behind the entry.
- Garbage collection and this module judge an entry without a row by one rule (`was_synced`). A row that is put back
  would count as a proof for what lies before it, so an entry that was never synced is remembered first (`unsynced`).
  Where that is unknown, nothing behind in its log gets a row in this pass.
- A copy that waited and cannot be read gets its row all the same: reads of it fail then, and nothing is denied.
- What waits is forgotten with the process, and nothing that waits gets a row by a pass that did not see all logs in one
  process, nor do entries beyond `MAX_WAITING`: a later pass finds them again.
- A log whose damage lasts is never seen whole, so it does not keep rows back forever. Garbage collection keeps such a
  log, and a sound copy that is found later takes the row of a damaged one (`take_over`).

Threads: the scrubber's.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import structlog

from bookie_pod.storage.entry_log.copies import NoCopy, look_at
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.interface import DigestUnknown
from bookie_pod.storage.entry_log.torn import is_torn_from
from bookie_pod.storage.gc.index_check import IndexedRows, was_synced
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.integrity.entry_check import (
    DigestTypes,
    EntryCheck,
    Pay,
    Report,
    ScrubCounts,
    digest_problem,
    entry_damage,
    unread_entry,
)
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import StorageFault

MAX_WAITING: Final = 1 << 16
_OPEN: Final = (DigestType.CRC32C, DigestType.CRC32)
"""Digests that need no password."""

_log = structlog.get_logger(__name__)


class LostRows:
    """The entries without a row of one pass."""

    def __init__(
        self,
        storage: CollectedStorage,
        rows: IndexedRows,
        digests: DigestTypes,
        entries: EntryCheck,
        report: Report,
        pay: Pay,
        counts: ScrubCounts,
        unsynced: Callable[[int], None],
        not_checked: Callable[[str, StorageFault], None],
        damaged: Container[int] = frozenset(),
    ) -> None:
        """`unsynced(location)` remembers durably that nothing is to lead there. `damaged` holds the locations of
        entries that are known to be damaged."""
        self._storage = storage
        self._rows = rows
        self._digests = digests
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts
        self._unsynced = unsynced
        self._not_checked = not_checked
        self._damaged = damaged
        self._waiting: dict[tuple[int, int], int] = {}
        """The place of the best copy so far, by ledger and entry."""
        self._left_out = 0
        self.untold = False
        """It is unknown whether an earlier entry of this log, which has no row, was synced."""

    def begin_log(self) -> None:
        self.untold = False

    def take(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> bool:
        """Take note of a copy, whose ledger lives. Return whether it has the row now. Raises `StorageFault`."""
        if self.untold:
            return self._keep_back(ledger_id)
        synced = self._was_synced(location, ledger_id, entry_id, entry)
        if synced is None:
            return self._keep_back(ledger_id)
        if not synced:
            self._unsynced(location)
            return False
        if not self._is_vouched_for(ledger_id, entry_id, entry):
            self._wait(location, ledger_id, entry_id, entry)
            return self._keep_back(ledger_id)
        self._waiting.pop((ledger_id, entry_id), None)
        return self._restore(location, ledger_id, entry_id)

    def _keep_back(self, ledger_id: int) -> bool:
        self._storage.may_lack_rows(ledger_id)
        self._storage.deny_nothing(ledger_id)
        return False

    def take_over(self, location: int, row: int, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """Let this copy have the row of its entry if it is sound, and the one to which the row leads is damaged. Raises
        `StorageFault`."""
        if (
            row in self._damaged
            and not self.untold
            and not self._storage.is_earlier_life(ledger_id, split_location(location)[0])
            and self._is_vouched_for(ledger_id, entry_id, entry)
            and self._was_synced(location, ledger_id, entry_id, entry)
        ):
            self._restore(location, ledger_id, entry_id, row)

    def _was_synced(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> bool | None:
        """Return whether a copy was synced; None if its digest cannot be known now."""
        try:
            return was_synced(self._storage, self._rows, location, ledger_id, entry_id, entry)
        except DigestUnknown as error:
            self.untold = True
            self._not_checked(f"entry {entry_id} of ledger {ledger_id}, to which no good row leads", error)
            return None

    def finish(self, *, all_seen: bool) -> None:
        """Give the rows to the copies that wait, if this pass has seen all logs. Limbo is durable on return. Raises
        `StorageFault`."""
        if self._left_out:
            error = StorageFault(
                f"more than {MAX_WAITING} entries without a row: rebuild the index with `bookie index rebuild`"
            )
            self._not_checked(f"{self._left_out} copies of entries without a row", error)
        waiting, self._waiting, self._left_out = self._waiting if all_seen else {}, {}, 0
        for (ledger_id, entry_id), location in waiting.items():
            if self._storage.has_ledger(ledger_id) and not self._storage.is_earlier_life(
                ledger_id, split_location(location)[0]
            ):
                self._settle(location, ledger_id, entry_id)
        self._storage.secure()

    def _settle(self, location: int, ledger_id: int, entry_id: int) -> None:
        copy = self._look_at(location, ledger_id, entry_id)
        if copy is NoCopy.GONE or not self._restore(location, ledger_id, entry_id):
            return
        if isinstance(copy, NoCopy):
            detail = f"entry {entry_id} of ledger {ledger_id} cannot be read at {location} (log << 32 | position)"
            self._report(unread_entry(detail, ledger_id, entry_id, location))
        elif (problem := self._entries.problem(ledger_id, entry_id, copy)) is not None:
            self._report(entry_damage(problem, ledger_id, entry_id, location))

    # --- copies ---------------------------------------------------------------------------------------------

    def _is_vouched_for(self, ledger_id: int, entry_id: int, entry: bytes) -> bool:
        known = self._digests.digest_type(ledger_id)
        types = _OPEN if known is None else (known,) if known in _OPEN else ()
        return any(digest_problem(each, ledger_id, entry_id, entry) is None for each in types)

    def _wait(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> None:
        place = (ledger_id, entry_id)
        other = self._waiting.get(place)
        if other is None and len(self._waiting) >= MAX_WAITING:
            self._left_out += 1
            return
        if other is not None:
            copy = self._look_at(other, ledger_id, entry_id)
            if copy is NoCopy.UNKNOWN or (isinstance(copy, bytes) and is_torn_from(entry, copy)):
                return
        self._waiting[place] = location

    def _look_at(self, location: int, ledger_id: int, entry_id: int) -> bytes | NoCopy:
        copy = look_at(self._storage.logs, location, ledger_id, entry_id)
        self._pay(1, SIZE_BYTES + (0 if isinstance(copy, NoCopy) else len(copy)))
        return copy

    def _restore(self, location: int, ledger_id: int, entry_id: int, row: int = 0) -> bool:
        if not row and self._storage.logs.is_proved_synced(split_location(location)[0]):
            self._storage.may_lack_rows(ledger_id)  # first: durable before the row is
        try:
            if not self._storage.restore(ledger_id, entry_id, location, row):
                return False
        except StorageFault as error:
            detail = f"the index does not take the row of entry {entry_id} of ledger {ledger_id}: {error}"
            self._report(Damage(DamageKind.INDEX, detail, ledger_id=ledger_id, entry_id=entry_id, location=location))
            return self._keep_back(ledger_id)
        self._counts.restored += 1
        _log.warning(
            "an entry in an entry log had no row in the index, or one that led to a damaged copy; now it has one",
            ledger=ledger_id,
            entry=entry_id,
            location=location,
            before=row,
        )
        return True
