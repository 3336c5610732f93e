"""The common part of the scrubs of a ledger directory and of a journal directory.

It is a pass that can be left and resumed anywhere. Its position is kept across restarts in `scrub-state.json`, beside
the files that it checks:

    {"version": 1, "pass": 7, "phase": "entry logs", "log": 17, "location": 73014448128, "ledger": -1, "entry": -1,
     "skipped": false, "startedMs": 0, "completedMs": 0, "damages": [{"kind": "entry", ...}], "superseded": [5583457]}

Invariants
- The position never runs ahead of what was checked; it is stored every `SAVE_S` seconds, at every new damage (at most
  once a second), between phases and when the scrubber stops.
- The file is replaced whole and durably, so a crash leaves the old one or the new one; what was checked since then is
  checked again. A file that is missing or cannot be understood is an empty one: the next pass begins at the beginning
  and finds all damage again.
- Damage is in the register, and the read path refuses it, before the position passes it. What a read finds between two
  passes, or ahead of the position, counts as found by the pass of that time.
- Only a pass that could look at everything, before it was left and after it was taken up again, forgets damage that it
  did not meet.

Threads: `run` and the file on the scrubber's; everything else any.

Source: docs/internals/bookie-behaviour.md, section 8.2.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import structlog

from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.files import Files, refuse_if_short, storage_fault
from bookie_pod.storage.gc.throttle import ScrubPace, ScrubStopped
from bookie_pod.storage.integrity.entry_check import ScrubCounts
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind, QuarantineRegister, from_json, to_json
from bookie_protocol.errors import UNREADABLE, StorageFault

STATE_FILE: Final = "scrub-state.json"
STATE_VERSION: Final = 1
_log = structlog.get_logger(__name__)
SAVE_S: Final = 10.0
SAVE_DAMAGE_S: Final = 1.0
LOOKS: Final = 100
"""The number of damages that are checked again at a time: each takes seconds on a disk that fails and delays the pass.
"""


class ScrubPhase(Enum):
    """The current step of a pass over one directory."""

    WAITING = "waiting"
    LOGS = "entry logs"
    INDEX = "index"
    JOURNALS = "journals"


@dataclass(slots=True)
class ScrubPosition:
    """The next thing to check is what follows this. -1: nothing of the kind yet."""

    number: int = 0
    """The number of the pass; counts from 1."""
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
    """The time at which the last complete pass ended, ms since the epoch; 0: never."""


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
        self.path = posixpath.join(folder, STATE_FILE)

    def read(self) -> ScrubMemory:
        """Return the stored state; an empty memory if there is none, or none that makes sense. `ResourcesShort`."""
        try:
            return _decode(json.loads(self._files.read_bytes(self.path)))
        except FileNotFoundError:
            return ScrubMemory()
        except (OSError, *UNREADABLE) as error:
            refuse_if_short(f"cannot read {self.path}", error)
            _log.warning(
                "state of the scrubber unknown, it starts from the beginning", path=self.path, reason=repr(error)
            )
            return ScrubMemory()

    def write(self, memory: ScrubMemory) -> None:
        """Replace the file; durable on return. `StorageFault`."""
        try:
            self._files.write_bytes_atomic(self.path, json.dumps(_encode(memory)).encode())
        except OSError as error:
            raise storage_fault(f"cannot write {self.path}", error) from error


def _encode(memory: ScrubMemory) -> dict[str, Any]:
    at = memory.position
    return {
        "version": STATE_VERSION,
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
    if stored["version"] != STATE_VERSION:
        raise ValueError(f"version {stored['version']!r}, not {STATE_VERSION}")
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


@dataclass(frozen=True, slots=True)
class PartState:
    """The scrubber's state in one directory. Times are ms since the epoch; 0: never."""

    folder: str
    phase: ScrubPhase
    number: int
    """The number of the pass that runs or ran last."""
    done: int
    """Entry logs, ledgers or journals of this phase that are checked; of `total`."""
    total: int
    started_ms: int
    completed_ms: int
    counts: ScrubCounts
    """The counts since this process took the pass up."""
    errors: tuple[str, ...]
    """The reasons why parts of the last pass could not be checked."""


class ScrubPart(ABC):
    """See the module."""

    _MAX_ERRORS: Final = 100
    _MAX_TOLD: Final = 100
    """Damages of one pass that have a log line of their own; all of them are in the register and the metrics."""

    def __init__(
        self,
        files: Files,
        folder: str,
        pace: ScrubPace,
        metrics: ScrubMetrics,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._files = files
        self._file = ScrubStateFile(files, folder)
        memory = self._file.read()
        self.position = memory.position
        self.register = QuarantineRegister(memory.damages, memory.superseded)
        self._pace = pace
        self._metrics = metrics
        self._now_ms = now_ms
        self._clock = clock
        self._saved_at = clock()
        self._save_wanted = False
        self.counts = ScrubCounts()
        self._restored = self._told = 0
        self._errors: list[str] = []
        self._looked_at = 0
        """The next look at damages, which are sorted by age, begins with this one."""
        self._progress = (0, 0)
        self._save_lock = threading.Lock()
        self._forget_cached: Callable[[int], None] = _nothing
        self._secure: Callable[[], None] = _no_matter
        """Makes durable what is known of all that the position has passed. May raise `StorageFault`."""
        self.on_met: Callable[[], None] = _no_matter
        """Called on a reader's thread after a read found damage; must not block."""

    @property
    def is_interrupted(self) -> bool:
        """A pass was begun and has not ended."""
        return self.position.phase is not ScrubPhase.WAITING

    def state(self) -> PartState:
        at = self.position
        return PartState(
            self.folder,
            at.phase,
            at.number,
            *self._progress,
            at.started_ms,
            at.completed_ms,
            replace(self.counts),
            tuple(self._errors),
        )

    def run(self) -> bool:
        """Make, or finish, one pass; whether everything could be checked. Raises `ScrubStopped`."""
        if not self.is_interrupted:
            number = self.position.number + 1
            self.position = ScrubPosition(
                number,
                self._first_phase(),
                started_ms=self._now_ms(),
                completed_ms=self.position.completed_ms,
            )
        self.counts, self._errors, self._restored, self._told = ScrubCounts(), [], 0, 0
        try:
            self._check()
        except ScrubStopped:
            self._save()
            raise
        complete = not self.position.skipped
        if complete:
            for damage in self._end_pass():
                _log.info("damage is gone", folder=self.folder, kind=damage.kind.value, detail=damage.detail)
        self.position = ScrubPosition(
            self.position.number, started_ms=self.position.started_ms, completed_ms=self._now_ms()
        )
        self._progress = (0, 0)
        self._save()
        return complete

    @abstractmethod
    def _first_phase(self) -> ScrubPhase:
        """Return the phase with which a pass begins."""

    @abstractmethod
    def _check(self) -> None:
        """Go on from the position to the end. Raises `ScrubStopped`."""

    def _end_pass(self) -> list[Damage]:
        return self.register.end_pass(self.position.number)

    def repaired(self, damages: Sequence[Damage]) -> None:
        """Other copies of these entries are stored and durable here. Any thread."""
        self.register.discard(damages)
        self._save()

    # --- inside ---------------------------------------------------------------------------------------------

    def _pay(self, entries: int, nbytes: int) -> None:
        self._metrics.progressed(entries, nbytes, self.counts.restored - self._restored)
        self._restored = self.counts.restored
        self._pace.pay(entries, nbytes)

    def tidy(self) -> None:
        """Store what reads found, and forget what was deleted with its ledger. Reads nothing. On the scrubber's
        thread."""
        self._forget([damage for damage in self.register.damages() if self._is_deleted(damage)])

    def look_again(self) -> None:
        """Forget what has another copy, or can be read again: of the next `LOOKS` damages. On the scrubber's thread.
        Raises `ScrubStopped`."""
        damages = self.register.damages()
        begin = self._looked_at if self._looked_at < len(damages) else 0
        self._looked_at = begin + LOOKS
        self._forget([damage for damage in damages[begin : begin + LOOKS] if self._is_gone(damage)])

    def _forget(self, gone: Sequence[Damage]) -> None:
        if gone:
            self.register.discard(gone)
        if gone or self._save_wanted:
            self._save()

    def _is_deleted(self, damage: Damage) -> bool:
        return False

    def _is_gone(self, damage: Damage) -> bool:
        return False

    def _found(self, damage: Damage, event: str = "the scrubber found damage") -> None:
        damage = replace(damage, found_ms=self._now_ms(), seen_in_pass=self.position.number)
        if self.register.add(damage):
            self._metrics.found(damage)
            self._save_wanted = True
            self._told += 1
            if self._told <= self._MAX_TOLD:
                _log.error(
                    event,
                    kind=damage.kind.value,
                    ledger=damage.ledger_id,
                    entry=damage.entry_id,
                    detail=damage.detail,
                )
            if damage.kind is DamageKind.ENTRY:
                self._forget_cached(damage.ledger_id)

    def _not_checked(self, what: str, error: StorageFault) -> None:
        self._metrics.not_checked()
        self.counts.faults += 1
        self.position.skipped = True
        if len(self._errors) < self._MAX_ERRORS:
            self._errors.append(f"{what}: {error}")
        _log.error("the scrubber cannot check", what=what, reason=str(error))

    def _save_now_and_then(self) -> None:
        since = self._clock() - self._saved_at
        if since >= SAVE_S or (self._save_wanted and since >= SAVE_DAMAGE_S):
            self._save()

    def _save(self) -> None:
        try:
            with self._save_lock:
                self._saved_at, self._save_wanted = self._clock(), False
                position = replace(self.position)
                self._secure()
                self._file.write(ScrubMemory(position, self.register.damages(), self.register.superseded()))
        except StorageFault as error:
            # Other parts report a full or failed disk; this pass continues in memory.
            _log.warning("the scrubber's position is not stored", reason=str(error))


def _nothing(ledger_id: int) -> None:
    """Do nothing: no entry of it is cached."""


def _no_matter() -> None:
    """Do nothing: no caller waits for it."""
