"""Replay of one journal directory into storage, before the bookie serves (reference on-disk formats, section 2.7).

Invariants
- Every file is surveyed before the first record is handed out: a journal that cannot be replayed whole leaves the
  storage as it was.
- The mark is where a record begins in a file that is there, or nothing is replayed. Of several that may be right the
  oldest one that does is taken: too much is replayed sooner than too little.
- Without any mark all that is there is replayed. A bookie has one before it has a journal, be it (0, 0), so the marks
  went with the disks that held them, and what was trimmed before is no loss of the journal.
- A file says which one was written before it, and where that one's records end. One that is missing, or that ends
  earlier, is damage, and what is behind that end is nothing. Files that do not say it (of the reference, of earlier
  releases) follow each other by number, and only the newest that holds records may end in a torn tail, as the journal
  syncs a file before it writes to the next one.
- Anything else that is not sound is `JournalDamaged`, naming file and offset.
- `skip_invalid_records` gives up the rest of a damaged file, loudly, and goes on with the next one. What was given up
  may be of any ledger, and `ReplayEnd` says so: the caller doubts them all before it moves a mark.
- Of the files only a torn tail is ever changed, and only where the mark stays before it, and files that never got their
  header are removed (`settle_end`).
- Replay is idempotent for the sink: it may get records again that ledger storage holds already.
- What lies before the last deletion of its ledger is of a life that is over, and is not handed out.

What the sink does with records of ledgers whose key it does not know (deleted since): it skips them.

Threads: one, before the journal starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.journal.directory import journal_path, list_journals
from bookie_pod.storage.journal.format import NO_FILE, RecordKind, life_behind_key, next_log_of, tail_of_special_record
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.journal.reader import FileWindow, JournalRecord, records_between
from bookie_pod.storage.journal.survey import may_start_at, survey_journal
from bookie_pod.storage.journal.surveyed_file import JournalSurvey
from bookie_protocol.errors import JournalDamaged, JournalMissing, StartupError

_log = structlog.get_logger(__name__)

_PROGRESS_INTERVAL = 8 * 1024 * 1024
"""Bytes of a file between two calls of the progress function."""

_FILE_REMEDY = (
    "restore the file, or set skipReplayJournalInvalidRecord=true to go on without it and let its ledgers be healed "
    "from their other copies"
)
_MARK_REMEDY = (
    "restore the file; or, if the journal directory is whole, remove the mark files, and all of it is replayed; or set "
    "skipReplayJournalInvalidRecord=true to replay what is there and let the rest be healed from its other copies"
)
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in total."""


class ReplaySink(Protocol):
    """Receives records in the order of the journal. The node implements it, which the storage must not import."""

    def on_key(self, ledger_id: int, key: bytes, life: bytes) -> None: ...
    def on_fence(self, ledger_id: int) -> None: ...
    def on_explicit_lac(self, ledger_id: int, packet: bytes) -> None: ...
    def on_deletion(self, ledger_id: int, next_log: int) -> None: ...
    def on_entry(self, ledger_id: int, entry_id: int, entry: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`skip_invalid_records` is `skipReplayJournalInvalidRecord`."""

    skip_invalid_records: bool = False


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The result of a replay.

    `began`   the mark that it began at
    `mark`    to be written once storage is flushed: a replay from there finds nothing again
    `after`   where the records end: what the next file names as having come before it
    `torn`    a torn tail follows there
    `unused`  files behind it that hold a header and nothing else
    `unbegun` files behind it that never got a header
    `given_up` why records may have been left out, one reason for each place
    """

    began: LogMark
    mark: LogMark
    after: LogMark
    torn: bool = False
    unused: tuple[int, ...] = ()
    unbegun: tuple[int, ...] = ()
    given_up: tuple[str, ...] = ()


def _choose_mark(
    directory: str, marks: Sequence[LogMark], files: Files, options: ReplayOptions, given_up: list[str]
) -> LogMark:
    """Return the mark to replay a journal from: the oldest of `marks` (ascending) at which a record begins.

    If there is none, everything that is there is replayed: deleted files were below a mark. The same holds with
    `skip_invalid_records` if no record begins at any mark.
    """
    present = list_journals(files, directory)
    for mark in marks:
        if mark == LogMark() or (mark.journal_id in present and _stands(files, directory, mark)):
            return mark
    everything = LogMark(present[0], 0) if present else LogMark()
    if not marks:
        if present:
            _log.warning("no mark is there, all journals are replayed", directory=directory)
        return everything
    newest = marks[-1]
    path = journal_path(directory, newest.journal_id)
    if newest.journal_id in present:
        error: StartupError = JournalDamaged(
            f"journal {path} is damaged, or its last mark is: no record begins at the mark, "
            f"offset {newest.offset}; {_MARK_REMEDY}",
            path,
            newest.offset,
        )
    else:
        error = JournalMissing(
            f"{path} is missing, and the last mark (offset {newest.offset}) points into it; {_MARK_REMEDY}", path
        )
    if not options.skip_invalid_records:
        raise error
    _log.error("no mark is right, all that is there is replayed", reason=str(error))
    given_up.append(str(error))
    return everything


def _stands(files: Files, directory: str, mark: LogMark) -> bool:
    with _opened(files, journal_path(directory, mark.journal_id)) as file:
        return may_start_at(file, mark.journal_id, mark.offset)


def replay_journal(
    directory: str,
    marks: Sequence[LogMark],
    files: Files,
    sink: ReplaySink,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> ReplayEnd:
    """Hand every sound record at or above the oldest of `marks` (ascending) that is right to `sink`.

    (0, 0): from the first file that ever was. No mark: from the first that is there.

    Raises `JournalMissing`, `JournalDamaged`, or `StorageFault` if a file cannot be read; whatever the sink raises.
    """
    options = options or ReplayOptions()
    given_up: list[str] = []
    began = mark = after = _choose_mark(directory, marks, files, options, given_up)
    ids = [journal_id for journal_id in list_journals(files, directory) if journal_id >= mark.journal_id]
    surveys = _Judge(directory, mark, options, given_up).judged([_survey(files, directory, each, mark) for each in ids])
    deletions = {ledger_id: at for survey in surveys for ledger_id, at in _deletions_in(survey)}
    total = sum(survey.end - survey.start for survey in surveys)
    done = 0
    torn = False
    for survey in surveys:
        _replay_file(files, survey, sink, deletions, _Progress(progress, done, total))
        done += survey.end - survey.start
        if not survey.blank:
            mark = max(mark, LogMark(survey.journal_id, survey.resume_at))
            after = max(after, LogMark(survey.journal_id, survey.end))
            torn = survey.torn
    behind = [each for each in surveys if each.journal_id > after.journal_id and each.damage is None]
    unused = tuple(each.journal_id for each in behind if not each.is_emptied)
    unbegun = tuple(each.journal_id for each in behind if each.is_emptied)
    return ReplayEnd(began, mark, after, torn, unused, unbegun, tuple(given_up))


def settle_end(directory: str, files: Files, end: ReplayEnd, *, cut: bool = False) -> None:
    """Make what was replayed durable: a process that was killed need not have, and a mark, or the file that follows,
    says that it is. `cut`: without the torn tail behind it, which would look like damage once the next file holds
    records and no mark is past it. Files behind it that never got a header, or lost it to a power failure, would look
    emptied then: those go, and the headers of the others are made durable too.

    Raises `StorageFault`.
    """
    _remove_unbegun(directory, files, end)
    for journal_id in end.unused:
        _settle(files, journal_path(directory, journal_id))
    if end.after != LogMark() and (end.torn or not cut):
        _settle(files, journal_path(directory, end.after.journal_id), end.after.offset if cut else None)


def _settle(files: Files, path: str, size: int | None = None) -> None:
    """Make a file durable, cut to `size` before if that is given."""
    try:
        file = files.open(path, writable=size is not None)
        try:
            if size is not None:
                file.truncate(size)
                _log.warning("the torn tail of a journal is cut off", path=path, offset=size)
            file.sync()
        finally:
            file.close()
    except OSError as error:
        raise storage_fault(f"cannot settle the end of journal {path}", error) from error


def _remove_unbegun(directory: str, files: Files, end: ReplayEnd) -> None:
    for journal_id in end.unbegun:
        path = journal_path(directory, journal_id)
        try:
            files.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("cannot remove a journal that was never begun", path=path, error=str(error))
        else:
            _log.info("removed a journal that was never begun", path=path)


class _Progress:
    """Tells the caller's function about one file of many."""

    def __init__(self, tell: Progress | None, before: int, total: int) -> None:
        self._tell = tell
        self._before = before
        self._total = total

    def done(self, nbytes: int) -> None:
        if self._tell is not None:
            self._tell(self._before + nbytes, self._total)


@contextmanager
def _opened(files: Files, path: str) -> Iterator[File]:
    try:
        file = files.open(path)
        try:
            yield file
        finally:
            file.close()
    except OSError as error:
        raise storage_fault(f"cannot read journal {path}", error) from error


def _survey(files: Files, directory: str, journal_id: int, mark: LogMark) -> JournalSurvey:
    with _opened(files, journal_path(directory, journal_id)) as file:
        return survey_journal(file, journal_id, mark.offset if journal_id == mark.journal_id else 0)


class _Judge:
    """Refuses what is damaged or missing, and torn tails where none can be; or gives it up, if it may."""

    def __init__(self, directory: str, mark: LogMark, options: ReplayOptions, given_up: list[str]) -> None:
        self._given_up = given_up
        self._directory = directory
        self._mark = mark
        self._options = options

    def judged(self, surveys: Sequence[JournalSurvey]) -> list[JournalSurvey]:
        """The surveys, as later files let them appear."""
        by_id = {survey.journal_id: survey for survey in surveys}
        for later in surveys:
            if not later.blank or later.header.previous is not None:
                self._look_before(later, by_id)
        written = [survey.journal_id for survey in surveys if not survey.blank]
        for survey in surveys:
            found = by_id[survey.journal_id]
            if found.torn and found.journal_id != written[-1]:
                found = by_id[found.journal_id] = found.as_damaged("its tail is torn, yet later journals hold records")
            if found.damage is not None:
                self._refuse(found.error())
            elif found.torn:
                _log.warning("journal ends in a torn tail", path=found.path, offset=found.end)
        return list(by_id.values())

    def _look_before(self, later: JournalSurvey, by_id: dict[int, JournalSurvey]) -> None:
        """Check that the file before `later` is there, and is as `later` knows it."""
        previous, end = later.header.previous, later.continues
        if previous is None:
            # Nothing is known of what came before the first file, if everything is to be replayed.
            previous = NO_FILE if later.journal_id == min(by_id) else later.journal_id - 1
        if previous == NO_FILE or previous < self._mark.journal_id:
            return
        before = by_id.get(previous)
        if before is None:
            path = journal_path(self._directory, previous)
            self._refuse(JournalMissing(f"{path} is missing, and {later.path} was made after it; {_FILE_REMEDY}", path))
        elif end is None:
            if before.is_emptied and previous != self._mark.journal_id:
                by_id[previous] = before.as_damaged(f"it is empty, yet {later.path} was made after it was begun")
        elif before.end < end:
            by_id[previous] = before.as_damaged(f"{later.path}, which was written after it, says that it goes to {end}")
        else:
            by_id[previous] = before.as_ended()

    def _refuse(self, error: StartupError) -> None:
        if not self._options.skip_invalid_records:
            raise error
        _log.error("the rest of a journal is given up", reason=str(error))
        self._given_up.append(str(error))


def _deletions_in(survey: JournalSurvey) -> Iterator[tuple[int, int]]:
    """Ledgers, and their last deletions in a file (`_place`)."""
    return ((ledger_id, _place(survey, offset)) for ledger_id, offset in survey.deletions.items())


def _place(survey: JournalSurvey, offset: int) -> int:
    """Return a number for a record's place in the journal, for comparison: a collection deletes very many ledgers."""
    return survey.journal_id << 48 | offset


def _replay_file(
    files: Files, survey: JournalSurvey, sink: ReplaySink, deletions: Mapping[int, int], progress: _Progress
) -> None:
    if survey.end <= survey.start:
        return
    with _opened(files, survey.path) as file:
        window = FileWindow(file, survey.size)
        told = survey.start
        for record in records_between(window, survey.header.version, survey.start, survey.end):
            if not deletions or deletions.get(record.ledger_id, -1) <= _place(survey, record.offset):
                _hand_out(record, survey, sink)
            if record.offset - told >= _PROGRESS_INTERVAL:
                told = record.offset
                progress.done(told - survey.start)
        progress.done(survey.end - survey.start)


def _hand_out(record: JournalRecord, survey: JournalSurvey, sink: ReplaySink) -> None:
    if record.kind is RecordKind.ENTRY:
        sink.on_entry(record.ledger_id, record.entry_id, record.body)
    elif record.kind is RecordKind.KEY:
        sink.on_key(record.ledger_id, tail_of_special_record(record.body), life_behind_key(record.body))
    elif record.kind is RecordKind.FENCE:
        sink.on_fence(record.ledger_id)
    elif record.kind is RecordKind.EXPLICIT_LAC:
        sink.on_explicit_lac(record.ledger_id, tail_of_special_record(record.body))
    elif record.kind is RecordKind.DELETION:
        sink.on_deletion(record.ledger_id, next_log_of(record.body))
    else:
        _log.warning(
            "record of unknown kind skipped",
            path=survey.path,
            offset=record.offset,
            ledger_id=record.ledger_id,
            entry_id=record.entry_id,
        )
