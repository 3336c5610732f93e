"""The known damage of one ledger or journal directory.

Invariants
- An entry is known by its *location*: a copy that re-replication or a repair writes lies elsewhere and is served at
  once. The damaged copy stays refused as long as its log exists: read-ahead would find it beside its neighbours.
- What a power cut has left of an entry that was never synced is remembered, and gets no row: once the index places
  something behind it, it looks like damage.
- What could not be read has no location: it is refused no longer than its disk refuses it.
- At most `limit` damages are kept; those beyond are counted, and found again by the next pass.
- A pass that has looked at everything forgets what it did not meet again: it was repaired, rewritten or deleted.

Threads: the scrubber changes it; any thread may read. `locations` is made for the read path: one look-up, no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from bookie_pod.storage.entry_log.format import split_location

MAX_DAMAGES: Final = 10_000
MAX_SUPERSEDED: Final = 100_000


class DamageKind(Enum):
    """The kind of damage; the value is used in the state file and in the admin API."""

    ENTRY = "entry"
    """One entry: other bytes where the index points, or a wrong digest."""
    LOG = "entry log"
    """Header or framing of an entry log."""
    LEDGERS_MAP = "ledgers map"
    """The table at the end of an entry log, which garbage collection goes by."""
    INDEX = "index"
    """The index of a ledger cannot be read."""
    JOURNAL = "journal"
    """A journal file that is kept as a backup."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding. Ids are -1 where they mean nothing."""

    kind: DamageKind
    detail: str
    """The finding, with file and offset."""
    file_id: int = -1
    """Entry log or journal."""
    ledger_id: int = -1
    entry_id: int = -1
    location: int = 0
    """The location in the index of a damaged entry, which is not served from there.

    0: it could not be read, and each read tries again.
    """
    found_ms: int = 0
    """The time at which it was found first, ms since the epoch."""
    seen_in_pass: int = 0

    @property
    def key(self) -> tuple[str, int, int, int, int]:
        """Return what makes two findings the same."""
        return self.kind.value, self.file_id, self.ledger_id, self.entry_id, self.location


class QuarantineRegister:
    """The damages of one directory."""

    def __init__(
        self, damages: Iterable[Damage] = (), superseded: Iterable[int] = (), limit: int = MAX_DAMAGES
    ) -> None:
        self.locations: set[int] = set()
        """The locations of damaged entries. Read-only for others."""
        self.overflowed = 0
        """Findings that did not fit since the last complete pass."""
        self._limit = limit
        self._lock = threading.Lock()
        self._damages: dict[tuple[str, int, int, int, int], Damage] = {}
        self._logs: dict[int, str] = {}
        self.unwanted: set[int] = set()
        """Locations of damaged copies to which no row of the index points any more, or none ever did. Read-only for
        others."""
        for damage in damages:
            self._put(damage)
        self._supersede(superseded)

    def __len__(self) -> int:
        return len(self._damages)

    def add(self, damage: Damage) -> bool:
        """Take note of a finding; False if it was known."""
        with self._lock:
            known = self._damages.get(damage.key)
            if known is not None:
                self._damages[damage.key] = replace(damage, found_ms=known.found_ms)
                return False
            if len(self._damages) >= self._limit:
                self.overflowed += 1
                return True
            self._put(damage)
            return True

    def _put(self, damage: Damage) -> None:
        self._damages[damage.key] = damage
        if damage.kind is DamageKind.ENTRY and damage.location:
            self.locations.add(damage.location)
        _hold(self._logs, damage)

    def end_pass(
        self,
        number: int,
        is_superseded: Callable[[Damage], bool] = lambda damage: True,
        log_exists: Callable[[int], bool] = lambda log_id: True,
    ) -> list[Damage]:
        """Pass `number` has looked at everything: forget what it did not meet, and return that.

        `is_superseded`: there is another copy of this entry, so that the damaged one is never wanted again.
        """
        gone = [each for each in self.damages() if each.seen_in_pass < number]
        superseded = [each.location for each in gone if each.location and is_superseded(each)]
        with self._lock:
            self.unwanted.intersection_update([each for each in self.unwanted if log_exists(split_location(each)[0])])
            self._supersede(superseded)
            self._rebuild([each for each in self._damages.values() if each.seen_in_pass >= number])
            self.overflowed = 0
        return gone

    def discard(self, damages: Iterable[Damage]) -> None:
        """Forget some: there are other copies of these entries."""
        repaired = {each.key: each.location for each in damages}
        with self._lock:
            self._supersede(repaired.values())
            self._rebuild([each for each in self._damages.values() if each.key not in repaired])

    def supersede(self, location: int) -> bool:
        """Remember that what lies there gets no row. Return False if that was known, or there are too many."""
        with self._lock:
            before = len(self.unwanted)
            self._supersede([location])
            return len(self.unwanted) > before

    def _supersede(self, locations: Iterable[int]) -> None:
        for location in locations:
            if location and len(self.unwanted) < MAX_SUPERSEDED:
                self.unwanted.add(location)
                self.locations.add(location)

    def _rebuild(self, damages: list[Damage]) -> None:
        # In place, because the read path holds this very set; what stays refused never leaves it meanwhile.
        self.locations.intersection_update(self.unwanted | {each.location for each in damages})
        logs: dict[int, str] = {}
        for damage in damages:
            _hold(logs, damage)
        # At once: garbage collection asks without the lock, and may at no moment see a log that stays held as free.
        self._damages, self._logs = {each.key: each for each in damages}, logs

    def superseded(self) -> list[int]:
        """Return `unwanted`, ascending."""
        with self._lock:
            return sorted(self.unwanted)

    def damages(self) -> list[Damage]:
        """All of them, the oldest first."""
        with self._lock:
            return sorted(self._damages.values(), key=lambda each: (each.found_ms, each.key))

    def held_logs(self) -> Mapping[int, str]:
        """Return the held logs, and the finding in each; as of now, read-only."""
        return self._logs


def _hold(logs: dict[int, str], damage: Damage) -> None:
    if damage.kind is DamageKind.ENTRY and damage.location:
        logs.setdefault(split_location(damage.location)[0], damage.detail)
    elif damage.kind in (DamageKind.LOG, DamageKind.LEDGERS_MAP):
        logs[damage.file_id] = damage.detail


def to_json(damage: Damage) -> dict[str, Any]:
    """Return the damage for the state file and the admin API."""
    return {
        "kind": damage.kind.value,
        "detail": damage.detail,
        "fileId": damage.file_id,
        "ledgerId": damage.ledger_id,
        "entryId": damage.entry_id,
        "location": damage.location,
        "foundMs": damage.found_ms,
        "seenInPass": damage.seen_in_pass,
    }


def from_json(stored: dict[str, Any]) -> Damage:
    """The inverse. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    return Damage(
        DamageKind(stored["kind"]),
        str(stored["detail"]),
        int(stored["fileId"]),
        int(stored["ledgerId"]),
        int(stored["entryId"]),
        int(stored["location"]),
        int(stored["foundMs"]),
        int(stored["seenInPass"]),
    )
