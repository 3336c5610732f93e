"""The judge of records in logs that a power cut may have torn, for rebuilds of an index.

A power cut leaves records with parts of their bytes, in logs of which nothing proves that they were synced. Such a
record was never acknowledged, or the replay of the journal has put its entry into another log. A compaction that the
power cut ended leaves torn copies of entries whose synced copies are still there.

Invariants
- A record that no digest vouches for takes the place of no copy that is surely better: one for which a digest vouches,
  one that the complete old index names, or one of which these bytes are a torn part. Of others the newest counts. Nor
  does it take the place of a copy that could not be read just now.
- In a ledger whose digests need a password, an entry for which a digest vouches without one is of an earlier ledger of
  its id: it does not take the place of what the old index names.
- It gets no row if it was surely never synced: its ledger has digests that need no password, and the old index, which
  is complete, places nothing at or behind it in its log.
- What is unknown gets its row: a read of it may fail then, but nothing is denied.

Threads: one. Memory holds a number for each log in question, and the rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from enum import Enum
from itertools import islice
from operator import eq
from typing import Final, Protocol

from bookie_pod.storage.entry_log.copies import NoCopy, look_at
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_pod.storage.entry_log.torn import is_torn_from
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch, ResourcesShort, StorageFault

SAMPLES: Final = 8
"""Entries of a ledger that are read to find out whether its digests need a password."""
ROWS_PER_STEP: Final = 1024
_DIGESTS: Final = tuple(digest_manager(each, b"") for each in (DigestType.CRC32C, DigestType.CRC32))


class Digests(Enum):
    """The digests of the entries of one ledger."""

    OPEN = "open"
    """They can be checked without a password."""
    PASSWORD = "password"
    """They cannot: they need a password, or there are none."""
    UNKNOWN = "unknown"


class OldRows(Protocol):
    """An index that may be damaged."""

    def ledger_ids(self) -> Iterable[int]: ...
    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]: ...
    def location_of(self, ledger_id: int, entry_id: int) -> int: ...


class TornRecords:
    """The judge of records in logs that a power cut may have torn."""

    def __init__(
        self,
        logs: ReadableLogs,
        new_location: Callable[[int, int], int],
        old: OldRows | None,
        is_living: Callable[[int, int], bool],
        *,
        complete: bool,
    ) -> None:
        """`new_location` asks the index that is built. `is_living`: whether what a log (the second number) holds of a
        ledger is its own. `complete`: the old index names every entry that was synced, and no other place."""
        self._logs = logs
        self._new_location = new_location
        self._old = old
        self._is_living = is_living
        self._complete = complete and old is not None
        self._last: dict[int, int] = {}
        """The highest position in each log to which the old index leads."""
        self._digests: tuple[int, Digests] = (-1, Digests.UNKNOWN)
        """The ledger that was asked for last, and its digests."""
        self._waiting: dict[tuple[int, int], int] = {}
        """Noted rows, by ledger and entry."""

    def look_through(self, log_ids: Container[int]) -> Iterator[bool]:
        """Look for these logs in the old index, before anything else; yields now and then."""
        if self._old is None or not self._complete:
            return
        seen = 0
        try:
            for ledger_id in self._old.ledger_ids():
                for _, location in self._old.rows(ledger_id):
                    log_id, position = split_location(location)
                    if position > self._last.get(log_id, 0) and log_id in log_ids:
                        self._last[log_id] = position
                    seen += 1
                    if seen % ROWS_PER_STEP == 0:
                        yield True
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            self._complete = False

    def leads_behind(self, log_id: int, position: int) -> bool | None:
        """Return whether the old index leads to this position of the log, or behind it; None: that is unknown."""
        if self._last.get(log_id, -1) >= position:
            return True
        return False if self._complete else None

    def is_sound(self, ledger_id: int, entry_id: int, entry: bytes) -> bool:
        """Return whether a digest vouches for these bytes."""
        for manager in _DIGESTS:
            try:
                manager.verify(entry, ledger_id, entry_id)
            except DigestMismatch:
                continue
            return True
        return False

    def gets_row(self, ledger_id: int, entry_id: int, location: int, entry: bytes) -> bool:
        """Return whether a record that is not sound gets a row. `StorageFault`."""
        old, new = self._old_location(ledger_id, entry_id), self._location_of(ledger_id, entry_id)
        is_named = old == location
        if new != location and self._is_better(
            new, ledger_id, entry_id, entry, named=self._complete and new == old, yields=is_named
        ):
            return False
        if is_named:
            return True
        if old != new and self._is_better(old, ledger_id, entry_id, entry, named=self._complete):
            return False
        is_behind = self.leads_behind(*split_location(location))
        return is_behind is not False or self._digests_of(ledger_id) is not Digests.OPEN

    def note_row(self, ledger_id: int, entry_id: int, location: int) -> None:
        """Note a row that the new index gets, but may not answer with before `written`."""
        self._waiting[ledger_id, entry_id] = location

    def written(self) -> None:
        """Forget the noted rows: the new index answers with them."""
        self._waiting.clear()

    def _location_of(self, ledger_id: int, entry_id: int) -> int:
        return self._waiting.get((ledger_id, entry_id)) or self._new_location(ledger_id, entry_id)

    def _old_location(self, ledger_id: int, entry_id: int) -> int:
        try:
            return 0 if self._old is None else self._old.location_of(ledger_id, entry_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return 0  # the old index is damaged there

    def _is_better(
        self, other: int, ledger_id: int, entry_id: int, entry: bytes, *, named: bool, yields: bool = False
    ) -> bool:
        """Return whether the copy at another place is surely no worse than these bytes: a digest vouches for it, the
        complete old index names it (`named`), or these bytes are what a power cut has left of it.

        So is one that cannot be read now. `yields`: the old index names these bytes, so a copy that cannot be read does
        not count if the ledger may need a password, nor one of an earlier ledger if it does."""
        if other == 0 or not self._is_living(ledger_id, split_location(other)[0]):
            return False
        kept = look_at(self._logs, other, ledger_id, entry_id)
        if isinstance(kept, NoCopy):
            return kept is NoCopy.UNKNOWN and not (yields and self._digests_of(ledger_id) is not Digests.OPEN)
        if named or is_torn_from(entry, kept):
            return True
        if not self.is_sound(ledger_id, entry_id, kept):
            return False
        return not yields or self._digests_of(ledger_id) is not Digests.PASSWORD or _is_like(entry, kept)

    def _digests_of(self, ledger_id: int) -> Digests:
        if self._digests[0] != ledger_id:
            self._digests = (ledger_id, self._sample(ledger_id))
        return self._digests[1]

    def _sample(self, ledger_id: int) -> Digests:
        try:
            rows = list(islice(self._old.rows(ledger_id), SAMPLES)) if self._old is not None else []
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return Digests.UNKNOWN
        seen = 0
        for entry_id, location in rows:
            copy = look_at(self._logs, location, ledger_id, entry_id)
            if isinstance(copy, NoCopy):
                continue
            if self.is_sound(ledger_id, entry_id, copy):
                return Digests.OPEN
            seen += 1
        # One copy without a sound digest may as well be a rotten one.
        return Digests.PASSWORD if seen > 1 else Digests.UNKNOWN


def _is_like(damaged: bytes, sound: bytes) -> bool:
    """Return whether these are the same bytes but for some damage, and not those of another entry."""
    return len(damaged) == len(sound) and 2 * sum(map(eq, damaged, sound)) >= len(sound)
