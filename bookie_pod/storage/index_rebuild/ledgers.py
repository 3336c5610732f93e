"""Rebuilding the ledger index of a stopped bookie from what is left of it, the journals and the entry logs.

The sources for the ledgers of a directory, with their keys and fences, the better first:
1. the old `ledgers` database, as far as it can be read: its records are kept as they are, but fenced and in limbo if it
   has lost its end (`index.seal`), where that may have been;
2. journals: keys, fences and explicit LACs of ledgers that were written lately; not what lies before the last deletion
   of its ledger, and nothing of a record of the old database that is surely of a life before it;
3. entry logs and the location index: that a ledger is there.

A ledger whose old record is gone is *fenced* and in *limbo*, because it is unknown whether it was. A fence that is
forgotten lets a writer add behind a recovery; its writer, if there still is one, has to begin a new ledger. A limbo
that is forgotten denies what was lost here: the storage's flag, if it may be lost too, asks for a check of everything.
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
from bookie_pod.storage.inspect.index import LedgerRows
from bookie_pod.storage.journal.format import RecordKind, next_log_of, tail_of_special_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.log_ids import is_before
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
        self._before: dict[int, LedgerRecord | None] = {}
        """Records of ledgers that journals tell something of, as they were without that."""
        self._next_logs: dict[int, int] = {}
        """The first logs of ledgers that were deleted, should journals or entries say that they are here again."""
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
        for source in (self._take_old, self._take_journals, self._take_entries):
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

    def _keep(self, ledger_id: int, record: LedgerRecord) -> None:
        if self._old_lost_end:
            self.report.kept_in_doubt += not record.fenced
            record = replace(record, fenced=True, limbo=True)
        self._put(ledger_id, record)
        self.report.kept += 1
        self.report.without_key += is_unknown_key(record.key)

    def _take_journals(self) -> Iterator[bool]:
        for at, record in enumerate(self._journal_records):
            if record.ledger_id >= 0 and self._belongs(record.ledger_id):
                self._take_journal_record(record)
            if at % STEP_RECORDS == 0:
                yield True

    def _take_journal_record(self, record: JournalRecord) -> None:
        if record.kind is RecordKind.DELETION:
            self._delete(record.ledger_id, next_log_of(record.body))
        if record.kind not in (RecordKind.KEY, RecordKind.FENCE, RecordKind.EXPLICIT_LAC):
            return
        known = self._get(record.ledger_id)
        if known is None:
            known = self._make(record.ledger_id)
        if record.ledger_id not in self._before:
            self._before[record.ledger_id] = known
        if known is None:
            known = self._made(record.ledger_id)
            self.report.from_journals += 1
        if record.kind is RecordKind.FENCE:
            changed = replace(known, fenced=True)
        elif record.kind is RecordKind.EXPLICIT_LAC:
            changed = replace(known, explicit_lac=tail_of_special_record(record.body))
        else:
            changed = self._with_key(known, tail_of_special_record(record.body))
        self._put(record.ledger_id, changed)

    def _delete(self, ledger_id: int, next_log: int) -> None:
        """Drop the data found of the ledger so far, unless it is a record of a later life: that life is over."""
        known = self._get(ledger_id)
        before = self._before.get(ledger_id, known)
        if before is not None and next_log and before.first_log and is_before(before.first_log, next_log):
            self.report.kept -= 1
            self._before[ledger_id] = before = None
        elif before is None and known is not None:
            self.report.from_journals -= 1
        self._next_logs[ledger_id] = next_log
        if known is None or known is before:
            return
        self.report.without_key += (before is not None and is_unknown_key(before.key)) - is_unknown_key(known.key)
        if before is not None:
            self._put(ledger_id, before)
            return
        self._pending.pop(ledger_id, None)
        batch = self._target.batch()
        batch.delete(_LEDGER_ID.pack(ledger_id))
        batch.commit(sync=False)

    def _made(self, ledger_id: int) -> LedgerRecord:
        """The record of a ledger of which nothing is known but that it is here."""
        self.report.without_key += 1
        return LedgerRecord(b"", fenced=True, limbo=True, first_log=self._next_logs.get(ledger_id, 0))

    def _with_key(self, known: LedgerRecord, key: bytes) -> LedgerRecord:
        if not takes_the_place_of(key, known.key):
            return known
        self.report.without_key -= not is_unknown_key(key)
        return replace(known, key=key)

    def _take_entries(self) -> Iterator[bool]:
        for ledger_id in self._with_entries:
            if ledger_id < 0 or not self._belongs(ledger_id) or self._get(ledger_id) is not None:
                continue
            if self._make(ledger_id) is None:
                self._put(ledger_id, self._made(ledger_id))
                self.report.from_entries += 1
            yield True

    def _make(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record that a damaged old database still has when it is asked for this ledger alone."""
        if self._old is None or self.report.old_unreadable is None or ledger_id in self._next_logs:
            return None
        try:
            record = self._old.record(ledger_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return None
        if record is not None:
            self._keep(ledger_id, record)
        return record

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
