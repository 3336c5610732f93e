"""Where the scrubber of one directory is, across restarts: `scrub-state.json` beside the files that it checks.

    {"version": 1, "pass": 7, "phase": "entry logs", "log": 17, "location": 73014448128, "ledger": -1, "entry": -1,
     "skipped": false, "startedMs": 0, "completedMs": 0, "damages": [{"kind": "entry", ...}], "superseded": [5583457]}

Invariants
- The file is replaced whole and durably, so a crash leaves the old one or the new one; what was checked since then is
  checked again.
- A file that is missing or cannot be understood is an empty one: the next pass begins at the beginning and finds all
  damage again.

Threads: the scrubber's.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import structlog

from bookie_pod.storage.files import Files
from bookie_pod.storage.integrity.quarantine import Damage, from_json, to_json
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

NAME: Final = "scrub-state.json"
VERSION: Final = 1


class ScrubPhase(Enum):
    """What a pass over one directory is doing."""

    WAITING = "waiting"
    LOGS = "entry logs"
    INDEX = "index"
    JOURNALS = "journals"


@dataclass(slots=True)
class ScrubPosition:
    """The next thing to check is what follows this. -1: nothing of the kind yet."""

    number: int = 0
    """Of the pass; counts from 1."""
    phase: ScrubPhase = ScrubPhase.WAITING
    log_id: int = -1
    """The log that was begun last."""
    location: int = 0
    """The last entry that was checked in it; 0: none."""
    ledger_id: int = -1
    entry_id: int = -1
    skipped: bool = False
    """Something could not be checked by this pass."""
    started_ms: int = 0
    completed_ms: int = 0
    """When the last complete pass ended, ms since the epoch; 0: never."""


@dataclass(slots=True)
class ScrubMemory:
    """The content of the file."""

    position: ScrubPosition = field(default_factory=ScrubPosition)
    damages: list[Damage] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)


class ScrubStateFile:
    """The state file of one directory (its `current` folder)."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.path = posixpath.join(folder, NAME)

    def read(self) -> ScrubMemory:
        """What was stored; an empty memory if nothing was, or nothing that makes sense."""
        try:
            return _decode(json.loads(self._files.read_bytes(self.path)))
        except FileNotFoundError:
            return ScrubMemory()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("state of the scrubber unknown, it begins anew", path=self.path, reason=repr(error))
            return ScrubMemory()

    def write(self, memory: ScrubMemory) -> None:
        """Replace the file; durable on return. `StorageFault`."""
        try:
            self._files.write_bytes_atomic(self.path, json.dumps(_encode(memory)).encode())
        except OSError as error:
            raise StorageFault(f"cannot write {self.path}: {error}") from error


def _encode(memory: ScrubMemory) -> dict[str, Any]:
    at = memory.position
    return {
        "version": VERSION,
        "pass": at.number,
        "phase": at.phase.value,
        "log": at.log_id,
        "location": at.location,
        "ledger": at.ledger_id,
        "entry": at.entry_id,
        "skipped": at.skipped,
        "startedMs": at.started_ms,
        "completedMs": at.completed_ms,
        "damages": [to_json(damage) for damage in memory.damages],
        "superseded": memory.superseded,
    }


def _decode(stored: Any) -> ScrubMemory:
    if stored["version"] != VERSION:
        raise ValueError(f"version {stored['version']!r}, not {VERSION}")
    position = ScrubPosition(
        int(stored["pass"]),
        ScrubPhase(stored["phase"]),
        int(stored["log"]),
        int(stored["location"]),
        int(stored["ledger"]),
        int(stored["entry"]),
        bool(stored.get("skipped")),  # older releases do not say
        int(stored["startedMs"]),
        int(stored["completedMs"]),
    )
    return ScrubMemory(
        position, [from_json(each) for each in stored["damages"]], [int(each) for each in stored["superseded"]]
    )
