"""Rebuilding the `ledgers` database: which ledgers a directory holds, with their keys and fences.

Sources, the better first
1. the old database, as far as it can be read: its records are kept as they are, but fenced if it has lost its end
   (`index.seal`), where a fence may have been;
2. journals: keys, fences and explicit LACs of ledgers that were written lately;
3. entry logs and the location index: that a ledger is there.

A ledger whose old record is gone is *fenced*: nobody knows whether it was, and a fence that is forgotten lets a writer
add behind a recovery. Its writer, if there still is one, has to begin a new ledger. A key that nobody knows stays
empty, and the next client that presents one sets it. Ledgers that were deleted may come back; garbage collection
deletes them again.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints, and keeps one batch of rows.

Source: reference on-disk formats, section 8.3; reference bookie behaviour, section 12.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from bookie_pod.storage.index.ledger_data import LedgerRecord, decode, encode
from bookie_pod.storage.index.ledgers import FLAGS_KEY
from bookie_pod.storage.index.store import OrderedStore
from bookie_pod.storage.inspect.index import LedgerRows
from bookie_pod.storage.journal.format import RecordKind, tail_of_special_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_protocol.errors import ResourcesShort, StorageFault
from bookie_protocol.keys import is_unknown_key, takes_the_place_of

_ID: Final = struct.Struct(">q")
_STAMP: Final = b"\xff" * 16
"""Its deletion leaves no row, but the database counts as written (see `engines.detection`)."""
BATCH_ROWS: Final = 4096
STEP_RECORDS: Final = 1024


@dataclass(slots=True)
class LedgerRebuildReport:
    """What a rebuild did so far."""

    kept: int = 0
    """Ledgers with the record of the old database."""
    from_journals: int = 0
    """Ledgers that only a journal knew."""
    from_entries: int = 0
    """Ledgers of which only entries were left."""
    kept_in_doubt: int = 0
    """Those of them that were fenced, as the old database has lost its end."""
    without_key: int = 0
    """Ledgers whose key nobody knew."""
    old_unreadable: str | None = None
    """Why the old database could not be read to its end."""

    @property
    def ledgers(self) -> int:
        return self.kept + self.from_journals + self.from_entries

    @property
    def fenced_in_doubt(self) -> int:
        """Ledgers that were fenced because nobody knew."""
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
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when everything is done and durable. `StorageFault`."""
        return next(self._work, None) is not None

    def run(self) -> LedgerRebuildReport:
        """Everything at once."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        for source in (self._take_old, self._take_journals, self._take_entries):
            yield from source()
        self._flush()
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
            raise  # nobody can tell just now
        except StorageFault as error:
            self.report.old_unreadable = str(error)

    def _take_flags(self, old: LedgerRows) -> None:
        flags = old.flags_row()
        if flags is not None:
            batch = self._target.batch()
            batch.put(FLAGS_KEY, flags)
            batch.commit(sync=False)

    def _keep(self, ledger_id: int, record: LedgerRecord) -> None:
        if self._old_lost_end and not record.fenced:
            record = replace(record, fenced=True)
            self.report.kept_in_doubt += 1
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
        if record.kind not in (RecordKind.KEY, RecordKind.FENCE, RecordKind.EXPLICIT_LAC):
            return
        known = self._get(record.ledger_id)
        if known is None:
            known = self._make(record.ledger_id)
            if known is None:
                known = LedgerRecord(b"", fenced=True)
                self.report.from_journals += 1
                self.report.without_key += 1
        if record.kind is RecordKind.FENCE:
            changed = replace(known, fenced=True)
        elif record.kind is RecordKind.EXPLICIT_LAC:
            changed = replace(known, explicit_lac=tail_of_special_record(record.body))
        else:
            changed = self._with_key(known, tail_of_special_record(record.body))
        self._put(record.ledger_id, changed)

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
                self._put(ledger_id, LedgerRecord(b"", fenced=True))
                self.report.from_entries += 1
                self.report.without_key += 1
            yield True

    def _make(self, ledger_id: int) -> LedgerRecord | None:
        """What a damaged old database still says of one ledger when asked for it alone."""
        if self._old is None or self.report.old_unreadable is None:
            return None
        try:
            record = self._old.record(ledger_id)
        except ResourcesShort:
            raise  # nobody can tell just now
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
        value = self._target.get(_ID.pack(ledger_id))
        return None if value is None else decode(value)

    def _put(self, ledger_id: int, record: LedgerRecord) -> None:
        self._pending[ledger_id] = record
        if len(self._pending) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        batch = self._target.batch()
        for ledger_id in sorted(self._pending):
            batch.put(_ID.pack(ledger_id), encode(self._pending[ledger_id]))
        self._pending.clear()
        batch.commit(sync=False)
