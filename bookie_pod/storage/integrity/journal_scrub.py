"""The scrub of a journal directory: framing and group checks of the files below the mark, which are kept as backups.

Threads: the scrubber's; `state` any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.integrity.entry_check import Pay, Report
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub_part import ScrubPart, ScrubPhase
from bookie_pod.storage.journal.directory import journal_path, list_journals
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.journal.survey import survey_journal
from bookie_protocol.errors import JournalDamaged, ResourcesShort, StorageFault


class JournalScrub(ScrubPart):
    """The journal files of one directory that a replay would not read any more (`journalMaxBackups`)."""

    def __init__(
        self,
        files: Files,
        folder: str,
        mark: Callable[[], LogMark],
        pace: ScrubPace,
        *,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or ScrubMetrics(Registry()), now_ms)
        self._mark = mark

    def _first_phase(self) -> ScrubPhase:
        return ScrubPhase.JOURNALS

    def _check(self) -> None:
        try:
            mark = self._mark()
            found = [each for each in list_journals(self._files, self.folder) if each < mark.journal_id]
        except (StorageFault, JournalDamaged) as error:
            self._not_checked(f"the journals of {self.folder}", StorageFault(str(error)))
            return
        for done, journal_id in enumerate(found):
            self._progress = (done, len(found))
            if journal_id <= self.position.log_id:
                continue
            try:
                check_journal(self._files, self.folder, journal_id, self._found, self._pay)
            except ResourcesShort as error:
                self._not_checked(journal_path(self.folder, journal_id), error)
            except StorageFault as error:
                self._found(Damage(DamageKind.JOURNAL, str(error), file_id=journal_id))
            self.counts.journals += 1
            self.position.log_id = journal_id
            self._save_now_and_then()


def check_journal(files: Files, folder: str, journal_id: int, report: Report, pay: Pay) -> None:
    """Check one journal file; one that was trimmed meanwhile is fine. `StorageFault` if it cannot be read."""
    path = journal_path(folder, journal_id)
    try:
        file = files.open(path)
        try:
            survey = survey_journal(cast("File", PacedFile(file, pay)), journal_id)
        finally:
            file.close()
    except FileNotFoundError:
        return
    except OSError as error:
        if files.exists(path):
            raise storage_fault(f"cannot read journal {path}", error) from error
        return
    if survey.damage is not None and files.exists(path):
        report(Damage(DamageKind.JOURNAL, f"{path} at {survey.end}: {survey.damage}", file_id=journal_id))


class PacedFile:
    """A `File` for reading whose reads are paid for."""

    def __init__(self, file: File, pay: Pay) -> None:
        self._file = file
        self._pay = pay

    def pread(self, length: int, offset: int) -> bytes:
        self._pay(0, length)
        return self._file.pread(length, offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)
