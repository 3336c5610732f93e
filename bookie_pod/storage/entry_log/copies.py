"""One look at a copy of an entry, which has three answers: its bytes, gone, or unknown.

Rebuilds and the scrubber compare copies, and give or keep rows by what they find. A read that failed is neither a bad
copy nor a missing one, so no caller of this module catches a `StorageFault` to find out.

Threads: any.
"""

from __future__ import annotations

from enum import Enum

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_protocol.errors import EntryDamaged, ResourcesShort, StorageFault


class NoCopy(Enum):
    """The answers of a look that gave no bytes."""

    GONE = "gone"
    """The log is not there, ends before the place, or holds other bytes there."""
    UNKNOWN = "unknown"
    """The log could not be read: that says nothing about the copy."""


def look_at(logs: ReadableLogs, location: int, ledger_id: int, entry_id: int) -> bytes | NoCopy:
    """Return the entry at this place. Raises `ResourcesShort`: the caller has to end, and to be repeated."""
    log_id = split_location(location)[0]
    if not logs.exists(log_id):
        return NoCopy.GONE
    try:
        return logs.read(location, ledger_id, entry_id)
    except ResourcesShort:
        raise
    except EntryDamaged:
        return NoCopy.GONE
    except StorageFault:
        return NoCopy.UNKNOWN if logs.exists(log_id) else NoCopy.GONE
