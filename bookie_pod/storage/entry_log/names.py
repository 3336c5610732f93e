"""Names of entry-log files and the rule that finds the next id (reference disk formats, 4.1 and 5).

Pure functions; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bookie_pod.storage.log_ids import MAX_LOG_ID

LAST_ID_FILE = "lastId"
"""The file in every ledger directory with the last allocated id, in lower-case hex, and a newline."""

_LOG = re.compile(r"([0-9a-f]+)\.log")
_COMPACTED = re.compile(r"([0-9a-f]+)\.log\.([0-9a-f]+)\.compacted")


def log_file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def parse_log_name(name: str) -> int | None:
    """Return the id of `<hex>.log`; None for every other name, other spellings of a number included."""
    return _canonical_id(_LOG.fullmatch(name))


def parse_compacted_name(name: str) -> int | None:
    """Return the id of the new log in `<hex>.log.<hex>.compacted`; None for every other name."""
    return _canonical_id(_COMPACTED.fullmatch(name))


def compacting_name(log_id: int) -> str:
    """Return the file that transactional compaction writes before it is complete."""
    return f"{log_id:x}.log.compacting"


def compacted_name(log_id: int, source_id: int) -> str:
    """Return the complete file of a transactional compaction whose index update may be missing."""
    return f"{log_id:x}.log.{source_id:x}.compacted"


def parse_compaction(name: str) -> tuple[int, int] | None:
    """(new log id, source log id) of a `.compacted` name; None for every other name."""
    match = _COMPACTED.fullmatch(name)
    log_id = _canonical_id(match)
    return None if match is None or log_id is None else (log_id, int(match[2], 16))


def _canonical_id(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    log_id = int(match[1], 16)
    return log_id if log_id <= MAX_LOG_ID and f"{log_id:x}" == match[1] else None


def last_id_in_directory(names: Iterable[str], last_id_text: str | None) -> int:
    """Return the last id that one directory knows of, -1 if none.

    The greater of: the `lastId` file's value if it is a number, else the largest log id; and the
    id before the largest gap among the ids in use. The gap makes the ids wrap safely where `lastId` is lost.
    """
    names = list(names)
    logs = {log_id for name in names if (log_id := parse_log_name(name)) is not None}
    used = logs | {log_id for name in names if (log_id := parse_compacted_name(name)) is not None}
    recorded = _parse_last_id(last_id_text)
    if recorded is None:
        recorded = max(logs, default=-1)
    return max(recorded, _start_of_largest_gap(used) - 1)


def _parse_last_id(text: str | None) -> int | None:
    try:
        value = int((text or "").strip(), 16)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_LOG_ID else None


def _start_of_largest_gap(used: set[int]) -> int:
    best_start, best_length, candidate = 0, 0, 0
    for log_id in (*sorted(used), MAX_LOG_ID + 1):
        if log_id - candidate > best_length:
            best_start, best_length = candidate, log_id - candidate
        candidate = log_id + 1
    return best_start
