"""Rebuilding the ledger index of a stopped bookie from what is left of it, the journals and the entry logs.

The sources for the ledgers of a directory, with their keys and fences, the better first:
1. the old `ledgers` database, as far as it can be read: its records are kept as they are; if it has lost its end
   (`index.seal`), fenced and in limbo, but for those that are surely from before the last deletion of their ledger;
2. journals: keys, fences and explicit LACs of ledgers that were written lately, or that one is here at all, as its
   entries say; not what lies before the last deletion of its ledger;
3. entry logs and the location index: that a ledger is there.

A ledger whose old record is gone is *fenced* and in *limbo*, because it is unknown whether it was. A fence that is
forgotten lets a writer add behind a recovery; its writer, if there still is one, has to begin a new ledger. A limbo
that is forgotten denies what was lost here: the storage's flag, if it may be lost too, asks for a check of everything.
The replay does the rest: what it meets behind the mark, also a deletion, it carries out on these records as on any.
An unknown key stays empty, and the next client that presents one sets it. Ledgers that were deleted may come back;
garbage collection deletes them again.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints, and keeps one batch of rows.

Source: docs/internals/bookie-behaviour.md, section 12 (`rebuild-db-ledgers-index`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from bookie_pod.storage.index.ledger_data import LedgerRecord, decode, encode
from bookie_pod.storage.index.ledgers import FLAGS_KEY, NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.store import OrderedStore
from bookie_pod.storage.index_rebuild.journaled import Journaled, take
from bookie_pod.storage.inspect.index import LedgerRows
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_protocol.errors import ResourcesShort, StorageFault
from bookie_protocol.keys import is_unknown_key, takes_the_place_of

_LEDGER_ID: Final = struct.Struct(">q")
_STAMP: Final = b"\xff" * 16
"""Its deletion leaves no row, but the database counts as written (see `engines.detection`)."""
BATCH_ROWS: Final = 4096
STEP_RECORDS: Final = 1024


@dataclass(slots=True)
class LedgerRebuildReport:
    """The progress of a rebuild."""

    kept: int = 0
    """Ledgers with the record of the old database."""
    from_journals: int = 0
    """Ledgers that only a journal knew."""
    from_entries: int = 0
    """Ledgers of which only entries were left."""
    kept_in_doubt: int = 0
    """The number of them that were fenced because the old database has lost its end."""
    without_key: int = 0
    """Ledgers whose key is unknown."""
    old_unreadable: str | None = None
    """The reason why the old database could not be read to its end."""

    @property
    def ledgers(self) -> int:
        return self.kept + self.from_journals + self.from_entries

    @property
    def fenced_in_doubt(self) -> int:
        """Return the number of ledgers that were fenced because their fence is unknown."""
        return self.kept_in_doubt + self.from_journals + self.from_entries


class LedgerRebuild:
    """Fills an empty `ledgers` database. Call `step` until it returns False, or `run`."""

    def __init__(
        self,
        target: OrderedStore,
        *,
        old: LedgerRows | None,
        journal_records: Iterable[JournalRecord],
        ledgers_with_entries: Iterable[int],
        old_lost_end: bool = False,
        belongs: Callable[[int], bool] = lambda ledger_id: True,
    ) -> None:
        """`old_lost_end`: the newest rows of `old` are gone. `belongs`: whether a ledger is one of this directory's."""
        self.report = LedgerRebuildReport()
        self._target = target
        self._old = old
        self._journal_records = journal_records
        self._with_entries = ledgers_with_entries
        self._old_lost_end = old_lost_end
        self._belongs = belongs
        self._pending: dict[int, LedgerRecord] = {}
        self._journaled: dict[int, Journaled] = {}
        self._flags = 0
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when everything is done and durable. `StorageFault`."""
        return next(self._work, None) is not None

    def run(self) -> LedgerRebuildReport:
        """Do everything."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        for source in (self._take_journals, self._take_old, self._add_journaled, self._take_entries):
            yield from source()
        self._flush()
        if self._old is None or self._old_lost_end or self.report.old_unreadable is not None:
            self._put_flags(self._flags | NEEDS_INTEGRITY_CHECK)
        batch = self._target.batch()
        batch.delete(_STAMP)
        batch.commit(sync=False)
        self._target.sync()

    # --- sources --------------------------------------------------------------------------------------------

    def _take_old(self) -> Iterator[bool]:
        if self._old is None:
            return
        try:
            for ledger_id, record in self._old.records():
                if record is not None:
                    self._keep(ledger_id, record)
                else:
                    self.report.old_unreadable = f"ledger {ledger_id}: its record does not parse"
                yield True
            self._take_flags(self._old)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self.report.old_unreadable = str(error)

    def _take_flags(self, old: LedgerRows) -> None:
        row = old.flags_row()
        if row is not None:
            self._flags = int.from_bytes(row, "big")
            self._put_flags(self._flags)

    def _put_flags(self, flags: int) -> None:
        batch = self._target.batch()
        batch.put(FLAGS_KEY, flags.to_bytes(8, "big"))
        batch.commit(sync=False)

    def _keep(self, ledger_id: int, record: LedgerRecord) -> LedgerRecord | None:
        if self._old_lost_end:
            # What is lost may be its end. Of a whole database the replay ends it, with its rows.
            if self._journaled.get(ledger_id, Journaled()).is_behind(record):
                return None
            self.report.kept_in_doubt += not record.fenced
            record = replace(record, fenced=True, limbo=True)
        self._put(ledger_id, record)
        self.report.kept += 1
        self.report.without_key += is_unknown_key(record.key)
        return record

    def _take_journals(self) -> Iterator[bool]:
        for at, record in enumerate(self._journal_records):
            if record.ledger_id >= 0 and self._belongs(record.ledger_id):
                take(self._journaled, record)
            if at % STEP_RECORDS == 0:
                yield True

    def _add_journaled(self) -> Iterator[bool]:
        for at, (ledger_id, found) in enumerate(self._journaled.items()):
            if found.lives:
                self._put(ledger_id, self._with(found, self._known(ledger_id)))
            if at % STEP_RECORDS == 0:
                yield True

    def _with(self, found: Journaled, known: LedgerRecord | None) -> LedgerRecord:
        if known is None:
            known = self._made(found)
            self.report.from_journals += 1
        key = known.key
        if takes_the_place_of(found.key, key):
            key = found.key
            self.report.without_key -= not is_unknown_key(key)
        lac = known.explicit_lac if found.explicit_lac is None else found.explicit_lac
        fenced, life = known.fenced or found.fenced, found.life or known.life
        return replace(known, key=key, fenced=fenced, explicit_lac=lac, life=life)

    def _made(self, found: Journaled) -> LedgerRecord:
        """Return the record of a ledger of which nothing is known but that it is here."""
        self.report.without_key += 1
        return LedgerRecord(b"", fenced=True, limbo=True, first_log=found.next_log)

    def _take_entries(self) -> Iterator[bool]:
        for ledger_id in self._with_entries:
            if ledger_id >= 0 and self._belongs(ledger_id) and self._known(ledger_id) is None:
                self._put(ledger_id, self._made(self._journaled.get(ledger_id, Journaled())))
                self.report.from_entries += 1
            yield True

    def _known(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record in the new database, or in a damaged old one that is asked for this ledger alone."""
        record = self._get(ledger_id)
        if record is not None or self._old is None or self.report.old_unreadable is None:
            return record
        try:
            record = self._old.record(ledger_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return None
        return None if record is None else self._keep(ledger_id, record)

    # --- the target -----------------------------------------------------------------------------------------

    def _get(self, ledger_id: int) -> LedgerRecord | None:
        record = self._pending.get(ledger_id)
        if record is not None:
            return record
        value = self._target.get(_LEDGER_ID.pack(ledger_id))
        return None if value is None else decode(value)

    def _put(self, ledger_id: int, record: LedgerRecord) -> None:
        self._pending[ledger_id] = record
        if len(self._pending) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        batch = self._target.batch()
        for ledger_id in sorted(self._pending):
            batch.put(_LEDGER_ID.pack(ledger_id), encode(self._pending[ledger_id]))
        self._pending.clear()
        batch.commit(sync=False)
