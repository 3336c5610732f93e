"""The files of one journal directory: names, listing, trimming (reference on-disk formats, section 2.1).

A file is named by its id in lowercase hexadecimal without leading zeros, and `.txn`. Ids ascend with time.

Threads: any; `remove_below` belongs to the checkpoint thread.
"""

from __future__ import annotations

import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import JournalDamaged

SUFFIX = ".txn"
_LARGEST_ID = 0x3FFF_FFFF_FFFF_FFFF
"""Ids begin at the time in milliseconds and grow by one: after this, as many again can follow."""

_log = structlog.get_logger(__name__)


def journal_path(directory: str, journal_id: int) -> str:
    return f"{directory}/{journal_id:x}{SUFFIX}"


def list_journals(files: Files, directory: str) -> list[int]:
    """Ids of the journal files of a directory (its `current` folder), ascending.

    Raises `JournalDamaged` for a `.txn` file whose name is no id, `StorageFault` if the folder cannot be
    read.
    """
    try:
        names = files.listdir(directory)
    except OSError as error:
        raise storage_fault(f"cannot list journal directory {directory}", error) from error
    return sorted(_journal_id(directory, name) for name in names if name.endswith(SUFFIX))


def _journal_id(directory: str, name: str) -> int:
    stem = name.split(".", 1)[0]
    digits = set("0123456789abcdefABCDEF")
    journal_id = int(stem, 16) if stem and digits.issuperset(stem) else -1
    if not 0 <= journal_id <= _LARGEST_ID:
        path = f"{directory}/{name}"
        raise JournalDamaged(f"{path} is not named like a journal (<hexadecimal id>{SUFFIX}): move it away", path)
    return journal_id


def remove_journals_below(files: Files, directory: str, mark: LogMark, max_backups: int) -> list[int]:
    """Delete journals whose id is strictly below the mark's, but for the `max_backups` newest of them.

    A file that cannot be deleted is logged and tried again next time. Returns the ids deleted.
    """
    below = [journal_id for journal_id in list_journals(files, directory) if journal_id < mark.journal_id]
    removed: list[int] = []
    for journal_id in below[: max(0, len(below) - max_backups)]:
        path = journal_path(directory, journal_id)
        try:
            files.unlink(path)
        except OSError as error:
            _log.warning("cannot delete an old journal", path=path, error=str(error))
        else:
            removed.append(journal_id)
            _log.info("deleted a journal below the mark", path=path, mark_id=f"{mark.journal_id:x}")
    return removed
