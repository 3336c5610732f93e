"""Audits of bookies that are registered nowhere (`Registrations`) for longer than the recovery delay (`membership`).

| what happens | what follows |
|---|---|
| a bookie's registration goes | its delay begins; the time is recorded for the auditor of that time |
| it is back within the delay | nothing: the audit is cancelled |
| the delay has passed | audit |
| several are lost at once | one audit for all whose delay has passed |
| the delay is written with another value | the delays that run are measured by it |
| it is written with its present value ("trigger audit"), or with 0 | audit now of everybody who is absent |
| a bookie is back, maybe while there was no auditor | `on_return` hears of it, and when it had left |
| `auditorPeriodicBookieCheckInterval` has passed, or this auditor was elected | audit |

`Registrations` knows who is registered, writable or read-only: it follows watches, and lists again when it counts.

Invariants
- A change that a watch reports wakes it; before an audit begins the registrations are listed again, so that a bookie
  which changes from writable to read-only is not taken for lost.
- An audit that fails is repeated until it succeeds, unlike the reference's. A bookie for which a ledger was skipped,
  because its copies did not count as missing for a moment, is audited again.
- An audit that was asked for counts everybody who is absent, also whom nothing but a ledger names.
- A bookie that left for good is looked for twice, some time apart, so that a ledger which comes to name it late is
  noticed. What names one later than that is met by the next periodic audit or check.
- While auto-recovery is disabled nothing is marked; the delays run on.
- One group of registrations alone means nothing: nothing is reported before both are known.
- A snapshot replaces an older one of its group only; watches and lists may overtake each other.
- A watch that ends with an error is begun again; what was known stays.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 2, 3 and 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.autorecovery.auditor.bookie_audit import AuditResult, BookieAudit
from bookie_pod.autorecovery.auditor.membership import Change, Membership
from bookie_pod.autorecovery.auditor.periodic import CheckMetrics
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Failure, Finished, Runs
from bookie_pod.autorecovery.auditor.schedule import MS, Clock
from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.shown import one_line

_log = structlog.get_logger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
SETTING_PAUSE: Final = 30.0
SAVE_PAUSE: Final = 2.0
NOTE_SECONDS: Final = 60.0
"""Seconds between two notes of the absent bookies, while a delay runs: much less than what the next auditor takes for
old."""
FOLLOW_PAUSE: Final = 30.0
"""Seconds until a watch that ended is begun again."""
_LOOKS: Final = 5


class LostBookies:
    """`prepare`, then `run` until cancelled. Implements what checks ask about bookies."""

    def __init__(
        self,
        service: MetadataService,
        records: AuditRecords,
        clock: Clock,
        enabled: asyncio.Event,
        metrics: CheckMetrics,
        *,
        auditor_id: str,
        interval_s: int,
        initial_delay_s: int,
        on_return: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._service = service
        self._records = records
        self._clock = clock
        self._enabled = enabled
        self._metrics = metrics
        self._auditor_id = auditor_id
        self._interval_s = interval_s
        self._initial_delay_s = initial_delay_s
        self._on_return = on_return
        self._registrations = Registrations(service, self._observe)
        self._wake = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._next_periodic_ms: int | None = 0
        self._asked_for = False
        """True if a request waits for an audit of all absent bookies."""
        self.membership = Membership(initial_delay_s)
        self.runs = Runs()
        self.running: AuditResult | None = None
        """The audit that goes on."""
        self.audit: BookieAudit
        """Set before `run`."""

    # --- what checks ask ----------------------------------------------------------------------------------------

    def is_lost(self, bookie: str) -> bool:
        return self.membership.is_lost(bookie, self._clock.now_ms())

    def is_available(self, bookie: str) -> bool:
        return bookie in self.membership.available

    def expect(self, bookies: Iterable[str]) -> None:
        if self.membership.expect(bookies, self._clock.now_ms()):
            self._unsaved.set()
            self._wake.set()

    @property
    def next_ms(self) -> int | None:
        """Return when the next audit is due if nothing happens until then, in ms; None: no audit is planned."""
        times = [time for time in (self._next_periodic_ms, self.membership.next_deadline_ms()) if time is not None]
        return min(times, default=None)

    # --- running ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Learn what is so now. Raises `MetadataError`."""
        marks = self._service.under_replication
        await marks.initialize_lost_bookie_recovery_delay(self._initial_delay_s)
        with suppress(MetadataDamaged):  # the follower tells
            delay = await marks.lost_bookie_recovery_delay()
            self.membership.delay_s = self._initial_delay_s if delay is None else delay
            if self.membership.delay_s != self._initial_delay_s:
                _log.info(
                    "lostBookieRecoveryDelay has no effect: the stored delay counts, see `bookie cluster lost-delay`",
                    configured_s=self._initial_delay_s,
                    stored_s=delay,
                )
        self.runs = await self._records.read(Check.BOOKIES)
        absences = await self._records.absences_to_go_on_with(self._clock.now_ms())
        await self._look_around()
        self.membership.restore(absences)
        back = {bookie: since for bookie, since in absences.items() if self.is_available(bookie)}
        if back:
            self._on_return(back)
            self._unsaved.set()

    async def run(self) -> None:
        """Audit until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registrations.follow(BookieGroup.WRITABLE))
            tasks.create_task(self._registrations.follow(BookieGroup.READ_ONLY))
            tasks.create_task(self._follow_delay())
            tasks.create_task(self._audit_when_due())
            tasks.create_task(self._save_when_changed())

    async def _audit_when_due(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._wake.clear()
            try:
                if self._is_due():
                    await self._enabled.wait()
                    await self._audit()
                pause = FIRST_PAUSE
            except MetadataError as error:
                _log.warning("audit of lost bookies failed", reason=str(error), again_in_s=pause)
                self._fail(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._clock.seconds_until(self.next_ms)):
                    await self._wake.wait()

    def _is_due(self) -> bool:
        now = self._clock.now_ms()
        periodic = self._next_periodic_ms is not None and self._next_periodic_ms <= now
        deadline = self.membership.next_deadline_ms()
        return periodic or (deadline is not None and deadline <= now)

    # --- an audit -----------------------------------------------------------------------------------------------

    async def _audit(self) -> None:
        await self._look_around()
        began = self._clock.now_ms()
        if not self._is_due():
            return  # the bookies that were missed are back
        covered, met = self.membership.since_ms(self.membership.lost(began)), frozenset(self.membership.absences)
        if covered:
            _log.warning("bookies are lost; the ledgers that name them are marked", bookies=sorted(covered))
        result: AuditResult | None = None
        try:
            result = await self.audit.run(self._progress)
        finally:
            self.running = None
            self._metrics.audit_ran(self._clock.now_ms() - began, result)
        covered = {bookie: since for bookie, since in covered.items() if bookie not in result.skipped}
        self.membership.audited(covered)
        self.expect(result.named)
        if self._asked_for:
            self._asked_for = False
            self.membership.demand(result.skipped - met)
        await self._forget(covered, result, began)
        self._next_periodic_ms = began + self._interval_s * MS if self._interval_s > 0 else None
        await self._finish(began, result)

    def _progress(self, result: AuditResult) -> None:
        self.running = result

    async def _finish(self, began: int, result: AuditResult) -> None:
        now = self._clock.now_ms()
        self.runs = Runs(self._auditor_id, None, Finished(began, now, now - began, result.counts()), None)
        await self._records.write(Check.BOOKIES, self.runs)
        _log.info("audit of bookies is complete", ms=now - began, counts=result.counts())

    async def _forget(self, covered: Iterable[str], result: AuditResult, began: int) -> None:
        """Bookies that have neither a cookie nor a ledger left the cluster for good."""
        unnamed = [bookie for bookie in covered if bookie not in result.named]
        known = (await self._service.bookies.list(BookieGroup.ALL)).bookies if unnamed else frozenset()
        if self.membership.unneeded((bookie for bookie in unnamed if bookie not in known), began):
            self._unsaved.set()

    def _fail(self, error: MetadataError) -> None:
        failure = Failure(self._clock.now_ms(), one_line(error, 500))
        self.runs = Runs(self._auditor_id, None, self.runs.last, failure)

    async def _save_when_changed(self) -> None:
        """A task of its own: times of loss count while an audit runs, and while auto-recovery is disabled. While a
        delay runs they are noted again and again, so that the next auditor can tell that they are of now."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NOTE_SECONDS if self.membership.waiting(self._clock.now_ms()) else None):
                    await self._unsaved.wait()
            self._unsaved.clear()
            try:
                await self._records.write_absences(self.membership.since_ms(), self._clock.now_ms())
            except MetadataError as error:
                _log.warning("times of loss could not be stored", reason=str(error), again_in_s=SAVE_PAUSE)
                self._unsaved.set()
                await asyncio.sleep(SAVE_PAUSE)

    # --- who is there -------------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        await self._registrations.look()
        self.expect((await self._service.bookies.list(BookieGroup.ALL)).bookies)

    def _observe(self, available: frozenset[str]) -> None:
        change = self.membership.observe(available, self._clock.now_ms())
        if not change:
            return
        self._tell(change)
        self._unsaved.set()
        self._wake.set()

    def _tell(self, change: Change) -> None:
        delay = self.membership.delay_s
        if change.left:
            _log.warning("bookies left", bookies=sorted(change.left), counted_as_lost_in_s=delay)
            if delay:
                self._metrics.audit_delayed()
        if change.returned_in_time:
            _log.info("bookies came back", bookies=sorted(change.returned_in_time))
            if delay:
                self._metrics.audit_cancelled()
        if change.returned_audited:
            _log.info(
                "lost bookies came back; marks that no worker has locked are withdrawn once their copies are found",
                bookies=sorted(change.returned_audited),
            )
        if change.since_ms:
            self._on_return(change.since_ms)

    # --- the delay ----------------------------------------------------------------------------------------------

    async def _follow_delay(self) -> None:
        while True:
            try:
                async with self._service.under_replication.watch_lost_bookie_recovery_delay() as values:
                    first = True
                    async for value in values:
                        self._take_delay(self._initial_delay_s if value is None else value.value, first=first)
                        first = False
            except MetadataError:
                _log.error("the delay cannot be read; the last one is kept", delay_s=self.membership.delay_s)
            await asyncio.sleep(SETTING_PAUSE)

    def _take_delay(self, seconds: int, *, first: bool) -> None:
        changed, self.membership.delay_s = seconds != self.membership.delay_s, seconds
        if not first and (not changed or seconds == 0):
            _log.info("an audit was asked for", delay_s=seconds)
            self.membership.demand(self.membership.absences)
            self._asked_for = True
            self._next_periodic_ms = 0
        self._wake.set()


class Registrations:
    """`on_look` gets all registered bookies whenever something may have changed."""

    def __init__(self, service: MetadataService, on_look: Callable[[frozenset[str]], None]) -> None:
        self._bookies = service.bookies
        self._on_look = on_look
        self._groups: dict[BookieGroup, BookieSet] = {}

    async def look(self) -> None:
        """Ask who is registered now. Raises `MetadataError`.

        A bookie registers on its new side before it leaves the old one, so a bookie that is on neither side in
        writable, read-only, writable is gone; one that was seen only at first is looked at again.
        """
        for _ in range(_LOOKS):
            first = await self._bookies.list(BookieGroup.WRITABLE)
            read_only = await self._bookies.list(BookieGroup.READ_ONLY)
            writable = await self._bookies.list(BookieGroup.WRITABLE)
            if first.bookies <= writable.bookies | read_only.bookies:
                break
        self._take(BookieGroup.READ_ONLY, read_only)
        self._take(BookieGroup.WRITABLE, writable)
        self._tell()

    async def follow(self, group: BookieGroup) -> None:
        """Follow the registrations of a group until cancelled."""
        while True:
            try:
                async with self._bookies.watch(group) as snapshots:
                    async for snapshot in snapshots:
                        self._take(group, snapshot)
                        self._tell()
            except MetadataError as error:
                _log.warning("registrations cannot be followed", group=group.value, reason=str(error))
            await asyncio.sleep(FOLLOW_PAUSE)

    def _take(self, group: BookieGroup, found: BookieSet) -> None:
        known = self._groups.get(group)
        if known is None or found.version > known.version:
            self._groups[group] = found

    def _tell(self) -> None:
        if len(self._groups) == 2:
            self._on_look(frozenset[str]().union(*(group.bookies for group in self._groups.values())))
