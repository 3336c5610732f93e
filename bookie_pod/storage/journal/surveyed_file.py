"""A journal file under survey: what both ways of judging it ask (`survey_checked`, `survey_unchecked`), and the result.

Invariants
- Nothing is changed, and nothing is remembered but the window on the file that was read last, and deletions.
- A survey's offsets are offsets of the file: `start <= end <= size`, unless the mark lies beyond the file.

Threads: one survey belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bookie_pod.storage.files import File
from bookie_pod.storage.journal.format import (
    DELETION_ENTRY_ID,
    FIRST_VERSION_WITH,
    JournalHeader,
    RecordKind,
    kind_of,
    tail_of_special_record,
)
from bookie_pod.storage.journal.reader import CHUNK, FileWindow, Step
from bookie_protocol.errors import JournalDamaged

_ZEROS = bytes(CHUNK)


@dataclass(frozen=True, slots=True)
class JournalSurvey:
    """The findings of one pass over a file, as offsets of the file.

    `start`, `end`  what is sound and to be replayed
    `torn`          the file ends in a torn tail
    `damage`        what is wrong at `end`; None if nothing is
    `blank`         nothing but zeros follows the header: a file in which nothing was ever written
    `size`          length of the file
    `continues`     where the records of the file before end, as this one's first group says; None: it does not say
    `deletions`     where the last record of each ledger's deletion is in the sound part
    """

    path: str
    journal_id: int
    header: JournalHeader
    start: int
    end: int
    size: int
    torn: bool = False
    damage: str | None = None
    blank: bool = False
    continues: int | None = None
    deletions: Mapping[int, int] = field(default_factory=dict)

    @property
    def resume_at(self) -> int:
        """Return the start for a later replay that would find nothing again: the sound end, or the end of the file."""
        return self.size if self.torn or self.damage else self.end

    @property
    def is_emptied(self) -> bool:
        """Return whether not even a header is there. A file has one before it is used."""
        return self.blank and self.header.length == 0

    def as_damaged(self, damage: str) -> JournalSurvey:
        return replace(self, torn=False, damage=damage)

    def as_ended(self) -> JournalSurvey:
        """Return the survey with nothing of note behind its sound part, as a later file knows about that."""
        return replace(self, torn=False, damage=None)

    def error(self) -> JournalDamaged:
        return JournalDamaged(
            f"journal {self.path} is damaged at offset {self.end}: {self.damage}; restore the file, or set "
            "skipReplayJournalInvalidRecord=true to give up the rest of it",
            self.path,
            self.end,
        )


class SurveyedFile:
    """A file and its window."""

    def __init__(self, file: File, journal_id: int) -> None:
        self.journal_id = journal_id
        self.window = FileWindow(file, file.size())
        self._deletions: list[tuple[int, int]] = []
        self._path = file.path

    def impossible(self, step: Step, header: JournalHeader) -> str | None:
        """Return what makes a record impossible in a file of this version; None if nothing does."""
        kind = kind_of(step.entry_id)
        if header.version < FIRST_VERSION_WITH.get(kind, 0):
            return f"a {kind.value} record, which version {header.version} does not know"
        if kind in (RecordKind.KEY, RecordKind.EXPLICIT_LAC):
            try:
                tail_of_special_record(self.window.read(step.body_offset, step.length))
            except ValueError as error:
                return f"a {kind.value} record is malformed: {error}"
        return None

    def saw(self, step: Step) -> None:
        """A record was seen that may turn out to be in the sound part."""
        if step.entry_id == DELETION_ENTRY_ID and not step.is_padding:
            self._deletions.append((step.ledger_id, step.offset))

    def only_zeros_from(self, offset: int) -> bool:
        """Return whether only zeros follow from here to the end of the file."""
        return self.only_zeros_between(offset, self.window.size)

    def only_zeros_between(self, begin: int, end: int) -> bool:
        return all(chunk == _ZEROS[: len(chunk)] for chunk in self.window.chunks(begin, end))

    def result(
        self,
        header: JournalHeader,
        start: int,
        end: int,
        *,
        torn: bool = False,
        damage: str | None = None,
        blank: bool = False,
        continues: int | None = None,
    ) -> JournalSurvey:
        """Return the survey of this file."""
        size = self.window.size
        deletions = {ledger_id: at for ledger_id, at in self._deletions if at < end}
        return JournalSurvey(
            self._path, self.journal_id, header, start, end, size, torn, damage, blank, continues, deletions
        )
