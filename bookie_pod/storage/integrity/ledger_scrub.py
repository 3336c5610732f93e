"""The scrub of a ledger directory: every entry log that is rotated and synced, then every row of the index.

Invariants
- Logs are listed before the storage is flushed: whatever lies in them has its row afterwards, or has none.

Threads: the scrubber's; `state` and `met` any.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.deleted_ledgers import MayBeEarlierLife
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.integrity.entry_check import DigestTypes, EntryCheck
from bookie_pod.storage.integrity.index_check import IndexCheck
from bookie_pod.storage.integrity.log_check import LogCheck
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.read_check import ReadCheck
from bookie_pod.storage.integrity.scrub_pace import ScrubPace
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_pod.storage.integrity.scrub_state import ScrubPhase
from bookie_protocol.errors import ResourcesShort, StorageFault


class LedgerScrub(ScrubPart):
    """One ledger directory, or the whole of an engine with one space of logs."""

    def __init__(
        self,
        storage: CollectedStorage,
        files: Files,
        folder: str,
        pace: ScrubPace,
        digests: DigestTypes,
        *,
        may_be_earlier_life: MayBeEarlierLife,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or ScrubMetrics(Registry()), now_ms)
        self._storage = storage
        self._digests = digests
        self._may_be_earlier_life = may_be_earlier_life
        self._sound: set[int] = set()
        """Logs that this pass, in this process, saw whole."""
        storage.refuse(self.register.locations)
        storage.logs.check_with(ReadCheck(self._digests, self.met))
        self._forget_cached = storage.forget_cached

    def met(self, damage: Damage) -> None:
        """A read found an entry damaged. Any thread."""
        # Compaction and deletions go on meanwhile.
        if self._storage.logs.exists(damage.file_id) and self._storage.has_ledger(damage.ledger_id):
            self._found(damage, "a read found damage")
            self.on_met()

    def _is_gone(self, damage: Damage) -> bool:
        if damage.kind is not DamageKind.ENTRY:
            return False
        return not self._storage.has_ledger(damage.ledger_id) or not self._storage.logs.exists(damage.file_id)

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
                LogCheck(
                    self._storage, self._files, entries, self._found, self._pay, self.counts, self._may_be_earlier_life
                ),
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
            except ResourcesShort as error:
                self._not_checked(f"entry log {log_id:x}.log", error)
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
                    if isinstance(error, ResourcesShort):
                        continue
                    self._found(Damage(DamageKind.INDEX, str(error), ledger_id=ledger_id))

    def _row_checked(self, entry_id: int) -> None:
        self.position.entry_id = entry_id
        self._save_now_and_then()
