"""Replay of one journal directory into ledger storage, before the bookie serves (reference formats, section 2.7).

Invariants
- Every file is surveyed before the first record is handed out: a journal that cannot be replayed whole leaves the
  storage as it was.
- Only the newest file that holds records may end in a torn tail, as the journal syncs a file before it writes to the
  next one. Anything else that is not sound is `JournalDamaged`, naming file and offset.
- `skip_invalid_records` gives up the rest of a damaged file, loudly, and goes on with the next one.
- Replay is idempotent for the sink: it may get records again that ledger storage holds already.

What the sink does with records of ledgers whose key it does not know (deleted since): it skips them.

Threads: one, before the journal starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.directory import journal_path, list_journals
from bookie_pod.storage.journal.format import RecordKind, tail_of_special_record
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.journal.reader import FileWindow, JournalRecord, records_between
from bookie_pod.storage.journal.survey import survey_journal
from bookie_pod.storage.journal.surveyed_file import JournalSurvey
from bookie_protocol.errors import JournalMissing, StorageFault

_log = structlog.get_logger(__name__)

_PROGRESS_INTERVAL = 8 * 1024 * 1024
"""Bytes of a file between two calls of the progress function."""


class ReplaySink(Protocol):
    """Where records go, in the order of the journal."""

    def on_key(self, ledger_id: int, key: bytes) -> None: ...
    def on_fence(self, ledger_id: int) -> None: ...
    def on_explicit_lac(self, ledger_id: int, packet: bytes) -> None: ...
    def on_entry(self, ledger_id: int, entry_id: int, entry: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`skip_invalid_records` is `skipReplayJournalInvalidRecord`."""

    skip_invalid_records: bool = False


Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in total."""


def replay_journal(
    directory: str,
    mark: LogMark,
    files: Files,
    sink: ReplaySink,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> LogMark:
    """Hand every sound record at or above `mark` to `sink`; returns the mark to write once storage is flushed.

    Raises `JournalMissing`, `JournalDamaged`, or `StorageFault` if a file cannot be read; whatever the sink raises.
    """
    options = options or ReplayOptions()
    surveys = [_survey(files, directory, journal_id, mark) for journal_id in _ids(files, directory, mark)]
    _judge(surveys, options)
    total = sum(survey.end - survey.start for survey in surveys)
    done = 0
    for survey in surveys:
        _replay_file(files, survey, sink, _Progress(progress, done, total))
        done += survey.end - survey.start
        mark = mark if survey.blank else max(mark, LogMark(survey.journal_id, survey.resume_at))
    return mark


class _Progress:
    """Tells the caller's function about one file of many."""

    def __init__(self, tell: Progress | None, before: int, total: int) -> None:
        self._tell = tell
        self._before = before
        self._total = total

    def done(self, nbytes: int) -> None:
        if self._tell is not None:
            self._tell(self._before + nbytes, self._total)


def _ids(files: Files, directory: str, mark: LogMark) -> list[int]:
    found = [journal_id for journal_id in list_journals(files, directory) if journal_id >= mark.journal_id]
    if mark.journal_id > 0 and mark.journal_id not in found:
        raise JournalMissing(
            f"{journal_path(directory, mark.journal_id)} is missing, and the last mark (offset {mark.offset}) "
            "points into it: restore the file, or recover this bookie's data from its replicas"
        )
    return found


def _survey(files: Files, directory: str, journal_id: int, mark: LogMark) -> JournalSurvey:
    path = journal_path(directory, journal_id)
    offset = mark.offset if journal_id == mark.journal_id else 0
    try:
        file = files.open(path)
        try:
            return survey_journal(file, journal_id, offset)
        finally:
            file.close()
    except OSError as error:
        raise StorageFault(f"cannot read journal {path}: {error.strerror or error}") from error


def _judge(surveys: Sequence[JournalSurvey], options: ReplayOptions) -> None:
    """Refuse damage, and torn tails where none can be."""
    written = [survey for survey in surveys if not survey.blank]
    for survey in written:
        found = survey
        if survey.torn and survey is not written[-1]:
            found = survey.as_damaged("its tail is torn, yet later journals hold records")
        if found.damage is not None:
            if not options.skip_invalid_records:
                raise found.error()
            _log.error(
                "journal is damaged, the rest of it is given up",
                path=found.path,
                offset=found.end,
                damage=found.damage,
            )
        elif survey.torn:
            _log.warning("journal ends in a torn tail", path=survey.path, offset=survey.end)


def _replay_file(files: Files, survey: JournalSurvey, sink: ReplaySink, progress: _Progress) -> None:
    if survey.end <= survey.start:
        return
    try:
        file = files.open(survey.path)
    except OSError as error:
        raise StorageFault(f"cannot read journal {survey.path}: {error.strerror or error}") from error
    try:
        window = FileWindow(file, survey.size)
        told = survey.start
        for record in records_between(window, survey.header.version, survey.start, survey.end):
            _hand_out(record, survey, sink)
            if record.offset - told >= _PROGRESS_INTERVAL:
                told = record.offset
                progress.done(told - survey.start)
        progress.done(survey.end - survey.start)
    finally:
        file.close()


def _hand_out(record: JournalRecord, survey: JournalSurvey, sink: ReplaySink) -> None:
    if record.kind is RecordKind.ENTRY:
        sink.on_entry(record.ledger_id, record.entry_id, record.body)
    elif record.kind is RecordKind.KEY:
        sink.on_key(record.ledger_id, tail_of_special_record(record.body))
    elif record.kind is RecordKind.FENCE:
        sink.on_fence(record.ledger_id)
    elif record.kind is RecordKind.EXPLICIT_LAC:
        sink.on_explicit_lac(record.ledger_id, tail_of_special_record(record.body))
    else:
        _log.warning(
            "record of unknown kind skipped",
            path=survey.path,
            offset=record.offset,
            ledger_id=record.ledger_id,
            entry_id=record.entry_id,
        )
