"""One pass over one directory, which can be left and taken up again anywhere.

A pass over a ledger directory checks every entry log that is rotated and synced, then every row of the index. A pass
over a journal directory checks the files below the mark.

Invariants
- The position never runs ahead of what was checked; it is stored every `SAVE_S` seconds, at every new damage (at most
  once a second), between phases and when the scrubber stops.
- Damage is in the register, and the read path refuses it, before the position passes it.
- Only a pass that could look at everything forgets damage that it did not meet.

Threads: `run` on the scrubber's; everything else any.

Source: reference bookie behaviour, section 8.2.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from bookie_pod.storage.files import Files
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind, QuarantineRegister
from bookie_pod.storage.integrity.scrub_checks import EntryCheck, IndexCheck, LogCheck, ScrubCounts, check_journal
from bookie_pod.storage.integrity.scrub_pace import ScrubPace, ScrubStopped
from bookie_pod.storage.integrity.scrub_state import ScrubMemory, ScrubPhase, ScrubPosition, ScrubStateFile
from bookie_pod.storage.integrity.scrub_storage import DigestTypes, ScrubbedStorage
from bookie_pod.storage.journal.directory import list_journals
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import JournalDamaged, StorageFault

_log = structlog.get_logger(__name__)

SAVE_S: Final = 10.0
SAVE_DAMAGE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PartState:
    """What the scrubber does in one directory. Times are ms since the epoch; 0: never."""

    folder: str
    phase: ScrubPhase
    number: int
    """Of the pass that runs or ran last."""
    done: int
    """Entry logs, ledgers or journals of this phase that are checked; of `total`."""
    total: int
    started_ms: int
    completed_ms: int
    counts: ScrubCounts
    """Since this process took the pass up."""
    errors: tuple[str, ...]
    """Why parts of the last pass could not be checked."""


class ScrubMetrics(Protocol):
    """What passes tell their metrics. Any thread."""

    def found(self, damage: Damage) -> None:
        """New damage."""
        ...

    def not_checked(self) -> None:
        """A check could not be made."""
        ...

    def progressed(self, entries: int, nbytes: int, restored: int) -> None: ...
    def ran(self, milliseconds: float, success: bool) -> None:
        """A pass over everything has ended."""
        ...


class NoScrubMetrics:
    """Counts nothing."""

    def found(self, damage: Damage) -> None:
        pass

    def not_checked(self) -> None:
        pass

    def progressed(self, entries: int, nbytes: int, restored: int) -> None:
        pass

    def ran(self, milliseconds: float, success: bool) -> None:
        pass


class ScrubPart(ABC):
    """What the scrub of a ledger directory and of a journal directory share."""

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
        self._progress = (0, 0)
        self._save_lock = threading.Lock()
        self._forget_cached: Callable[[int], None] = _nothing

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
        if not self._errors:
            for damage in self._end_pass():
                _log.info("damage is gone", folder=self.folder, kind=damage.kind.value, detail=damage.detail)
        self.position = ScrubPosition(
            self.position.number, started_ms=self.position.started_ms, completed_ms=self._now_ms()
        )
        self._progress = (0, 0)
        self._save()
        return not self._errors

    @abstractmethod
    def _first_phase(self) -> ScrubPhase:
        """What a pass begins with."""

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

    def _found(self, damage: Damage) -> None:
        damage = replace(damage, found_ms=self._now_ms(), seen_in_pass=self.position.number)
        if self.register.add(damage):
            self._metrics.found(damage)
            self._save_wanted = True
            self._told += 1
            if self._told <= self._MAX_TOLD:
                _log.error(
                    "the scrubber found damage",
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
                self._file.write(
                    ScrubMemory(replace(self.position), self.register.damages(), self.register.superseded())
                )
        except StorageFault as error:
            # Not the scrub's business: a full or failed disk is told by others, and this pass goes on in memory.
            _log.warning("the scrubber's position is not stored", reason=str(error))


class LedgerScrub(ScrubPart):
    """One ledger directory, or the whole of an engine with one space of logs."""

    def __init__(
        self,
        storage: ScrubbedStorage,
        files: Files,
        folder: str,
        pace: ScrubPace,
        digests: DigestTypes,
        *,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or NoScrubMetrics(), now_ms)
        self._storage = storage
        self._digests = digests
        self._sound: set[int] = set()
        """Logs that this pass, in this process, saw whole."""
        storage.refuse(self.register.locations)
        self._forget_cached = storage.forget_cached

    def _first_phase(self) -> ScrubPhase:
        return ScrubPhase.LOGS

    def _check(self) -> None:
        failure = self._storage.failure
        if failure is not None:
            self._not_checked(f"directory {self.folder}", failure)
            return
        entries = EntryCheck(self._digests, self.counts)
        if self.position.phase is ScrubPhase.LOGS:
            self._sound.clear()
            self._check_logs(
                LogCheck(self._storage, self._files, entries, self._found, self._pay, self.counts),
            )
            self.position.phase, self.position.ledger_id, self.position.entry_id = ScrubPhase.INDEX, -1, -1
            self._save()
        self._check_index(IndexCheck(self._storage, entries, self._found, self._pay, self.counts))

    def _end_pass(self) -> list[Damage]:
        return self.register.end_pass(self.position.number, self._is_superseded, self._storage.logs.exists)

    def _is_superseded(self, damage: Damage) -> bool:
        try:
            return self._storage.location_of(damage.ledger_id, damage.entry_id) != damage.location
        except StorageFault:
            return True

    def _check_logs(self, check: LogCheck) -> None:
        logs, at = self._storage.logs, self.position
        try:
            found = [log_id for log_id in logs.log_ids() if logs.is_flushed(log_id)]
            # After the list: whatever lies in these logs has its row now, or has none.
            self._storage.flush()
        except StorageFault as error:
            self._not_checked(f"the entry logs of {self.folder}", error)
            return
        for done, log_id in enumerate(found):
            self._progress = (done, len(found))
            if log_id < at.log_id:
                continue
            after = at.location if log_id == at.log_id else 0
            at.log_id, at.location = log_id, after
            try:
                if check.check(log_id, after, self._log_checked):
                    self._sound.add(log_id)
            except StorageFault as error:
                if logs.exists(log_id):
                    self._found(Damage(DamageKind.LOG, str(error), file_id=log_id))

    def _log_checked(self, location: int) -> None:
        self.position.location = location
        self._save_now_and_then()

    def _check_index(self, check: IndexCheck) -> None:
        ledgers, at = sorted(self._storage.ledger_ids()), self.position
        for done, ledger_id in enumerate(ledgers):
            self._progress = (done, len(ledgers))
            if ledger_id < at.ledger_id:
                continue
            first = at.entry_id + 1 if ledger_id == at.ledger_id else 0
            at.ledger_id, at.entry_id = ledger_id, first - 1
            try:
                check.check(ledger_id, first, self._sound.__contains__, self._row_checked)
            except StorageFault as error:
                if self._storage.has_ledger(ledger_id):
                    self._not_checked(f"the index of ledger {ledger_id}", error)
                    self._found(Damage(DamageKind.INDEX, str(error), ledger_id=ledger_id))

    def _row_checked(self, entry_id: int) -> None:
        self.position.entry_id = entry_id
        self._save_now_and_then()


class JournalScrub(ScrubPart):
    """The journal files of one directory that a replay would not read any more (`journalMaxBackups`)."""

    def __init__(
        self,
        files: Files,
        folder: str,
        mark: Callable[[], LogMark],
        pace: ScrubPace,
        *,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or NoScrubMetrics(), now_ms)
        self._mark = mark

    def _first_phase(self) -> ScrubPhase:
        return ScrubPhase.JOURNALS

    def _check(self) -> None:
        try:
            mark = self._mark()
            found = [each for each in list_journals(self._files, self.folder) if each < mark.journal_id]
        except (StorageFault, JournalDamaged) as error:
            self._not_checked(f"the journals of {self.folder}", StorageFault(str(error)))
            return
        for done, journal_id in enumerate(found):
            self._progress = (done, len(found))
            if journal_id <= self.position.log_id:
                continue
            try:
                check_journal(self._files, self.folder, journal_id, self._found, self._pay)
            except StorageFault as error:
                self._found(Damage(DamageKind.JOURNAL, str(error), file_id=journal_id))
            self.counts.journals += 1
            self.position.log_id = journal_id
            self._save_now_and_then()


def _nothing(ledger_id: int) -> None:
    """Nothing is cached of it."""
