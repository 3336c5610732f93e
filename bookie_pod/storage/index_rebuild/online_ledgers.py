"""Rebuilding the ledger index of a ledger directory that serves.

What the bookie has in memory is the ledger index; the database only repeats it. So every record that it has is kept as
it is: no fence is lowered, no key and no explicit LAC forgotten. What can be lacking are whole ledgers. One is restored
if it has left something here (entries in a log, records in a journal), was not deleted here, and the metadata service
says that it exists and places it on this bookie.

An entry log tells that a ledger was here, and no more: key, fence and explicit LAC are in no entry. So a restored
ledger is *fenced*, because nobody knows whether it was, and a fence that is forgotten lets a writer add behind a
recovery. Its key is the journal's, else the one that follows from the password in its metadata, else unknown: the next
client that presents one sets it. Its explicit LAC is the journal's, or none.

Invariants
- "Could not tell" ends the rebuild: a ledger whose metadata cannot be read is neither restored nor passed over.
- Memory holds the ids of one log, of what was asked (`MAX_ASKED`), and what journals say of ledgers that are not known
  (`MAX_JOURNALED`; beyond that they are restored without it).

Threads: that of the rebuild, beside everything else.

Source: reference on-disk formats, section 8.3; reference bookie behaviour, section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index_rebuild.state import RebuildPhase, RebuildState
from bookie_pod.storage.index_rebuild.swap import NewDatabase
from bookie_pod.storage.journal.format import RecordKind, tail_of_special_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.journal.survey import read_folders
from bookie_protocol.errors import JournalDamaged
from bookie_protocol.keys import is_unknown_key, master_key

_log = structlog.get_logger(__name__)

MAX_ASKED: Final = 1 << 20
MAX_JOURNALED: Final = 1 << 20
MAX_DAMAGES: Final = 100


@dataclass(slots=True)
class _Journaled:
    """What journals say of a ledger that is not known."""

    key: bytes = b""
    explicit_lac: bytes | None = None


class LedgersRebuild:
    """One rebuild. `belongs`: whether a ledger is one of this directory's. `is_gone`: whether it was deleted here and
    has not come back. `pay_question` waits until the metadata service may be asked."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        files: Files,
        journal_folders: Sequence[str],
        metadata: GcMetadata,
        pace: ScrubPace,
        state: RebuildState,
        *,
        belongs: Callable[[int], bool],
        is_gone: Callable[[int], bool],
        pay_question: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._journal_folders = journal_folders
        self._metadata = metadata
        self._pace = pace
        self._state = state
        self._belongs = belongs
        self._is_gone = is_gone
        self._pay_question = pay_question
        self._journaled: dict[int, _Journaled] = {}
        self._asked: set[int] = set()

    def restore(self) -> None:
        """Make known what is lacking. Raises `ScrubStopped`, `StorageFault`, `MetadataError`."""
        self._state.phase = RebuildPhase.LEDGERS
        self._metadata.check_instance()
        for record in self._journal_records():
            if self._is_lacking(record.ledger_id):
                self._take(record)
        for ledger_id in list(self._journaled):
            self._look_at(ledger_id)
        logs = self._directory.logs
        for log_id in logs.log_ids():
            found = logs.ledgers_map(log_id, self._pace.pay)
            if not found.complete and found.end is not None:
                _note(self._state.damages, found.end.detail)
            for ledger_id in found.ledgers:
                if self._is_lacking(ledger_id):
                    self._look_at(ledger_id)

    def replace(self, new: NewDatabase) -> None:
        """Write the new database and use it. Raises `ScrubStopped`, `StorageFault`; then the one in use stays."""
        ledgers = self._directory.ledgers
        try:
            for count in ledgers.fill(new.store):
                self._state.ledgers += count
                self._pace.pay(count, 0)
            self._state.phase = RebuildPhase.SWAP
            ledgers.adopt(new.store, new.switch)
        finally:
            ledgers.abandon()
        if new.failure is not None:
            raise new.failure

    # --- journals -------------------------------------------------------------------------------------------

    def _journal_records(self) -> Iterator[JournalRecord]:
        for record in read_folders(self._files, self._journal_folders, self._note_damage, while_trimmed=True):
            self._pace.pay(1, len(record.body))
            yield record

    def _note_damage(self, error: JournalDamaged) -> None:
        _note(self._state.journal_damages, str(error))

    def _take(self, record: JournalRecord) -> None:
        known = self._journaled.get(record.ledger_id)
        if known is None:
            if len(self._journaled) >= MAX_JOURNALED:
                return
            known = self._journaled[record.ledger_id] = _Journaled()
        if record.kind is RecordKind.KEY and is_unknown_key(known.key):
            known.key = tail_of_special_record(record.body)
        elif record.kind is RecordKind.EXPLICIT_LAC:
            known.explicit_lac = tail_of_special_record(record.body)

    # --- ledgers --------------------------------------------------------------------------------------------

    def _is_lacking(self, ledger_id: int) -> bool:
        return (
            ledger_id >= 0
            and self._belongs(ledger_id)
            and self._directory.ledgers.get(ledger_id) is None
            and not self._is_gone(ledger_id)
        )

    def _look_at(self, ledger_id: int) -> None:
        if ledger_id in self._asked:
            return
        if len(self._asked) >= MAX_ASKED:
            self._asked.clear()
        self._asked.add(ledger_id)
        self._pay_question()
        metadata = self._metadata.read(ledger_id)
        if metadata is None or self._metadata.bookie_id not in metadata.all_bookies():
            return
        found = self._journaled.get(ledger_id, _Journaled())
        key = found.key
        if is_unknown_key(key) and metadata.password is not None:
            key = master_key(metadata.password)
        if self._directory.restore_ledger(ledger_id, LedgerRecord(key, True, False, found.explicit_lac)):
            self._state.ledgers_restored += 1
            self._state.ledgers_without_key += is_unknown_key(key)
            _log.warning("a ledger that the index lacked is known again, fenced", ledger=ledger_id)


def _note(damages: list[str], damage: str) -> None:
    if len(damages) < MAX_DAMAGES:
        damages.append(damage)
