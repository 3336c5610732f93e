"""The memory of garbage collection across restarts: `gc-state.json` in the ledger directory.

    {"lastMinorMs": 0, "lastMajorMs": 0, "minorCount": 0, "majorCount": 0, "lastOverReplicatedMs": 0, "lastIndexMs": 0,
     "quarantined": {"17": "at 4711: ..."}}

Invariants
- The file is replaced whole and durably, so a crash leaves the old one or the new one.
- A file that is missing or cannot be understood is an empty one: timers begin now, damage is found again. The first
  pass writes it, so that a restart before the first compaction does not reset the timers each time. The same holds for
  a single time that an older release did not write.

Threads: the garbage collection thread.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from bookie_pod.storage.files import Files, refuse_if_short, storage_fault
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.schedule import GcTimes
from bookie_protocol.errors import UNREADABLE

_log = structlog.get_logger(__name__)

NAME: Final = "gc-state.json"
_LATER_TIMES: Final = {"lastOverReplicatedMs", "lastIndexMs"}


@dataclass(slots=True)
class GcMemory:
    """The content of the file."""

    times: GcTimes
    quarantined: dict[int, str] = field(default_factory=dict)
    stored: bool = False
    """The file has all the times."""


class GcStateFile:
    """The state file of one ledger directory (its `current` folder)."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._path = posixpath.join(folder, NAME)

    def deleted_ledgers(self) -> DeletedLedgers:
        """Return the ledgers that were deleted here, which are kept beside this file."""
        return DeletedLedgers(self._files, self._folder)

    def read(self, now_ms: int) -> GcMemory:
        """Return the stored state, with `now_ms` for unknown times. Raises `ResourcesShort`."""
        fresh = GcMemory(GcTimes.beginning(now_ms))
        try:
            stored = json.loads(self._files.read_bytes(self._path))
            return GcMemory(
                _times(stored, now_ms),
                {int(key): str(text) for key, text in stored["quarantined"].items()},
                stored=stored.keys() >= _LATER_TIMES,
            )
        except FileNotFoundError:
            return fresh
        except (OSError, *UNREADABLE) as error:
            refuse_if_short(f"cannot read {self._path}", error)
            _log.warning(
                "state of garbage collection unknown, its timers begin now", path=self._path, reason=repr(error)
            )
            return fresh

    def write(self, memory: GcMemory) -> None:
        """Replace the file; durable on return. `StorageFault`."""
        times = memory.times
        content = json.dumps(
            {
                "lastMinorMs": times.last_minor_ms,
                "lastMajorMs": times.last_major_ms,
                "minorCount": times.minor_count,
                "majorCount": times.major_count,
                "lastOverReplicatedMs": times.last_over_replicated_ms,
                "lastIndexMs": times.last_index_ms,
                "quarantined": {str(log_id): detail for log_id, detail in memory.quarantined.items()},
            }
        )
        try:
            self._files.write_bytes_atomic(self._path, content.encode())
        except OSError as error:
            raise storage_fault(f"cannot write {self._path}", error) from error
        memory.stored = True


def _times(stored: Any, now_ms: int) -> GcTimes:
    # A clock that was set back must not keep compaction from running for years.
    return GcTimes(
        min(int(stored["lastMinorMs"]), now_ms),
        min(int(stored["lastMajorMs"]), now_ms),
        int(stored["minorCount"]),
        int(stored["majorCount"]),
        min(int(stored.get("lastOverReplicatedMs", now_ms)), now_ms),
        min(int(stored.get("lastIndexMs", now_ms)), now_ms),
    )
