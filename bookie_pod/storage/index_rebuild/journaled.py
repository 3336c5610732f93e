"""The data that journals have of ledgers, for a rebuild of what a lost index had.

Pure functions; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.journal.format import RecordKind, life_behind_key, next_log_of, tail_of_special_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.log_ids import began_before
from bookie_protocol.keys import NO_LIFE, takes_the_place_of


@dataclass(slots=True)
class Journaled:
    """The data of one ledger behind its last deletion: what is before that is of a life that is over."""

    lives: bool = False
    """True if it has a record, so that the ledger is here."""
    key: bytes = b""
    life: bytes = NO_LIFE
    fenced: bool = False
    explicit_lac: bytes | None = None
    next_log: int = 0
    """The first log that may hold entries behind that deletion; 0: any may."""

    def is_behind(self, record: LedgerRecord) -> bool:
        """Return whether this record of the ledger is surely from before the deletion."""
        return began_before(record.first_log or 0, self.next_log)


def take(journaled: dict[int, Journaled], record: JournalRecord, *, limit: int | None = None) -> None:
    """Add the next record of a journal; a ledger beyond the `limit` is left out."""
    known = journaled.get(record.ledger_id)
    if record.kind is RecordKind.DELETION:
        if known is not None or limit is None or len(journaled) < limit:
            journaled[record.ledger_id] = Journaled(next_log=next_log_of(record.body))
        return
    if record.kind not in (RecordKind.ENTRY, RecordKind.KEY, RecordKind.FENCE, RecordKind.EXPLICIT_LAC):
        return
    if known is None:
        if limit is not None and len(journaled) >= limit:
            return
        known = journaled[record.ledger_id] = Journaled()
    known.lives = True
    if record.kind is RecordKind.FENCE:
        known.fenced = True
    elif record.kind is RecordKind.EXPLICIT_LAC:
        known.explicit_lac = tail_of_special_record(record.body)
    elif record.kind is RecordKind.KEY:
        if takes_the_place_of(key := tail_of_special_record(record.body), known.key):
            known.key = key
        known.life = life_behind_key(record.body) or known.life
