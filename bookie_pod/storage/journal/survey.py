"""A survey of a journal file: its sound part, and whether its end is clean, torn or damaged.

A journal file is preallocated, so it ends in zeros, and a crash may lose any part of what was not synced: whole
sectors in any order (they read as zeros), the rest of a sector, or the end of the file. What was synced must be there.

The header tells by which rules a file is judged: `survey_checked` where its groups have checks, else
`survey_unchecked`. A file in which nothing was ever written, or whose header was never synced, is blank.

Pure judgement over reads; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.journal.directory import journal_path, list_journals
from bookie_pod.storage.journal.format import (
    HEADER_FIELDS_LENGTH,
    LENGTH,
    MAGIC,
    Checks,
    JournalHeader,
    parse_header,
)
from bookie_pod.storage.journal.reader import FileWindow, JournalRecord, records_between
from bookie_pod.storage.journal.survey_checked import CheckedSurvey
from bookie_pod.storage.journal.survey_unchecked import UncheckedSurvey
from bookie_pod.storage.journal.surveyed_file import JournalSurvey, SurveyedFile
from bookie_protocol.errors import JournalDamaged


def survey_journal(file: File, journal_id: int, start: int = 0) -> JournalSurvey:
    """Find the sound part of a file, from the record at `start` (0: the first)."""
    surveyed = SurveyedFile(file, journal_id)
    window = surveyed.window
    no_header = JournalHeader(1)
    if 0 < start >= window.size:
        return surveyed.result(no_header, start, start)
    first = window.read(0, HEADER_FIELDS_LENGTH)
    try:
        header = parse_header(first, journal_id)
    except ValueError as error:
        if surveyed.only_zeros_from(HEADER_FIELDS_LENGTH):
            return surveyed.result(no_header, 0, 0, blank=True)
        return surveyed.result(no_header, 0, 0, damage=str(error))
    if header.version == 1 and _is_unwritten(surveyed, first):
        return surveyed.result(header, 0, 0, blank=True)
    start = max(start, header.length)
    if surveyed.only_zeros_from(start):
        return surveyed.result(header, start, start, blank=start == header.length)
    if header.checks is Checks.NONE:
        return UncheckedSurvey(surveyed, header).survey(start)
    return CheckedSurvey(surveyed, header).survey(start)


def may_start_at(file: File, journal_id: int, offset: int) -> bool:
    """Return whether a mark may be at this offset.

    It may be where the first record begins; where a group or, without group checks, a record ends; or where a replay
    stopped, which is at the end of the file or, with the reference, one word behind the last record. A replay that
    looks at no checks (the reference's, that of an earlier release) reads torn tails.
    """
    surveyed = SurveyedFile(file, journal_id)
    window = surveyed.window
    if offset >= window.size:
        return offset == window.size
    try:
        header = parse_header(window.read(0, HEADER_FIELDS_LENGTH), journal_id)
    except ValueError:
        return offset == 0
    if offset <= header.length:
        return True
    judges: list[CheckedSurvey | UncheckedSurvey] = []
    if header.checks is not Checks.NONE:
        judges.append(CheckedSurvey(surveyed, header))
    if header.checks is Checks.NONE or surveyed.only_zeros_from(offset):
        judges.append(UncheckedSurvey(surveyed, header))
    word = offset - LENGTH.size
    follows = surveyed.only_zeros_from(word)
    return any(
        judge.ends_group(offset) or (follows and (word == header.length or judge.ends_group(word))) for judge in judges
    )


def read_records(file: File, journal_id: int) -> Iterator[JournalRecord]:
    """The sound records of a file in order. Raises `JournalDamaged` after them if the file is damaged there."""
    survey = survey_journal(file, journal_id, 0)
    window = FileWindow(file, survey.size)
    yield from records_between(window, survey.header.version, survey.start, survey.end)
    if survey.damage is not None:
        raise survey.error()


def read_folders(
    files: Files, folders: Iterable[str], on_damage: Callable[[JournalDamaged], None], *, while_trimmed: bool = False
) -> Iterator[JournalRecord]:
    """The records of all journals in these `current` folders; behind damage the next journal follows.

    `while_trimmed`: one that is gone since it was listed is passed over. `StorageFault` for what cannot be read,
    `JournalDamaged` for a name that is none.
    """
    for folder in folders:
        for journal_id in list_journals(files, folder):
            path = journal_path(folder, journal_id)
            try:
                file = files.open(path)
                try:
                    yield from read_records(file, journal_id)
                finally:
                    file.close()
            except JournalDamaged as error:
                on_damage(error)
            except OSError as error:
                if while_trimmed and isinstance(error, FileNotFoundError):
                    continue
                raise storage_fault(f"cannot read journal {path}", error) from error


def _is_unwritten(file: SurveyedFile, first: bytes) -> bool:
    """Return whether this is a header that was never synced: some first bytes of it, then zeros."""
    kept = first.rstrip(b"\0")
    return MAGIC.startswith(kept) and file.only_zeros_from(len(kept))
