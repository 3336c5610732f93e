"""Ids of entry logs, and which of two is older.

They are given out in order and wrap to 0 behind `MAX_LOG_ID`. Where an id may be missing, 0 stands for no log.

Pure functions; any thread.
"""

from __future__ import annotations

from typing import Final

MAX_LOG_ID: Final = 0x7FFFFFFF


def following_id(log_id: int) -> int:
    """The id after `log_id`."""
    return 0 if log_id >= MAX_LOG_ID else log_id + 1


def two_behind(log_id: int) -> int:
    """The id after the next, or the one behind that if it would say "no log"."""
    return (log_id + 2) & MAX_LOG_ID or 1


def is_before(log_id: int, first: int) -> bool:
    """Return whether a log is older than the log `first`; ids may have wrapped between them.

    0 means no log: none is older.
    """
    return first != 0 and 0 < (first - log_id) & MAX_LOG_ID <= MAX_LOG_ID // 2


def began_before(first: int, next_log: int) -> bool:
    """Return whether a life that began in the log `first` surely ended with the deletion that says that the next one
    begins in `next_log` at the earliest.

    A life that is deleted began two logs before that, or earlier. One that begins a single log before is a later one,
    of a process that found no `lastId`. 0 for either log: nothing is known.
    """
    return first != 0 and is_before(following_id(first), next_log)


def later_of(one: int, other: int) -> int:
    """Return the later of two logs, of which 0 is none."""
    return other if is_before(one, other) else one
