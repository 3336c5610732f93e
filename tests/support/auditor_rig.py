"""A cluster for tests of the auditor: real metadata, bookies that are only registrations, and a checker that says what
the test tells it to. Time runs `FASTER` times as fast for delays and intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView, Placement, ReplacementRequest
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.replication.check import FragmentReport, LedgerChecker, LedgerReport, ReplicaFinding, ReplicaVerdict
from bookie_client.replication.fragments import fragments
from bookie_client.replication.tail import Tail
from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.auditor.runs import Check, Finished
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.term import AuditorStatus, CheckStatus, Sources
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerDeleted, MetadataNotFound, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.paths import ledger_path
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.wire.availability import Availability, decode_availability, encode_availability
from tests.support.metadata_drivers import EmbeddedUnderTest

FASTER = 20
W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY
DAY = 86_400
BOOKIES = tuple(f"b{i}:1" for i in range(5))
QUIET = AutoRecoveryConfig(
    lost_bookie_recovery_delay_s=0,
    auditor_check_interval_s=0,
    auditor_metadata_ops_per_second=0,
    auditor_reads_per_second=0,
    auditor_second_look_s=1,
)
"""No check runs by itself."""


class FastClock(Clock):
    """The epoch moves `FASTER` times as fast as the loop's clock; all clocks of a test show the same."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000 * FASTER)

    def seconds_until(self, time_ms: int | None) -> float | None:
        seconds = super().seconds_until(time_ms)
        return None if seconds is None else seconds / FASTER


def ledger(ledger_id: int, *ensembles: tuple[int, str], last: int | None = 9, write: int = 3) -> LedgerMetadata:
    """`ensembles`: first entry and the digits of its bookies; `last` None: open."""
    segments = {first: tuple(f"b{digit}:1" for digit in digits) for first, digits in ensembles}
    size = len(ensembles[0][1])
    made = LedgerMetadata(ledger_id, size, write, 2, segments, digest_type=DigestType.CRC32C, password=b"")
    return made if last is None else made.closed(last, 100 * (last + 1))


class SaidChecker(LedgerChecker):
    """Answers with what the test says: verdicts by ledger and bookie, GOOD for all others."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self.verdicts: dict[tuple[int, str], ReplicaVerdict] = {}
        self.errors: dict[int, Exception] = {}
        self.checked: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.under_way = 0
        self.findings: dict[int, Collection[Finding]] = {}
        """What each check was to answer, by ledger."""

    async def make_durable(self, report: LedgerReport, bookies: Collection[str]) -> str | None:
        return None

    async def tail(self, report: LedgerReport, doubts: Collection[Finding]) -> Tail:
        return Tail()

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
        self.checked.append(ledger_id)
        self.findings[ledger_id] = findings
        self.under_way += 1
        try:
            await self.hold.wait()
            return await self._report(ledger_id)
        finally:
            self.under_way -= 1

    async def _report(self, ledger_id: int) -> LedgerReport:
        if ledger_id in self.errors:
            raise self.errors[ledger_id]
        try:
            metadata = await self._service.ledgers.read(ledger_id)
        except MetadataNotFound as error:
            raise LedgerDeleted(f"ledger {ledger_id}") from error
        there = (await self._service.bookies.list(W)).bookies | (await self._service.bookies.list(R)).bookies
        found = fragments(ledger_id, metadata.value, metadata.value.last_entry_id)

        def verdict(bookie: str) -> ReplicaVerdict:
            if bookie not in there:
                return ReplicaVerdict.LOST
            return self.verdicts.get((ledger_id, bookie), ReplicaVerdict.GOOD)

        reports = tuple(
            FragmentReport(each, tuple(ReplicaFinding(p, b, verdict(b)) for p, b in enumerate(each.ensemble)))
            for each in found
        )
        return LedgerReport(ledger_id, metadata, metadata.value.last_entry_id, reports)


class SaidLists:
    """What bookies say they store; everything unless the test says otherwise."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], Collection[int] | Exception] = {}
        self.then: dict[tuple[str, int], Collection[int]] = {}
        """What they say from the second time on."""
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, bookie: str, ledger_id: int) -> Availability:
        self.asked.append((bookie, ledger_id))
        said = self.stored.get((bookie, ledger_id), range(1000))
        if (bookie, ledger_id) in self.then:
            self.stored[bookie, ledger_id] = self.then.pop((bookie, ledger_id))
        if isinstance(said, Exception):
            raise said
        return decode_availability(encode_availability(sorted(said)))


class PickyPlacement(RandomPlacement):
    """Fails ensembles that hold all of `never`; mends where there is a spare."""

    def __init__(self) -> None:
        super().__init__()
        self.never: set[str] = set()
        self.soft = False

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        if self.never and self.never <= set(ensemble):
            return AdherenceReport(Adherence.FAIL, ("together",))
        return AdherenceReport(Adherence.MEETS_SOFT if self.soft else Adherence.MEETS_STRICT)

    def mend(self, request: ReplacementRequest) -> Placement:
        spare = sorted(request.cluster.writable - set(request.ensemble))
        changed = (spare[0] if spare else request.ensemble[0], *request.ensemble[1:])
        return Placement(changed, self.check(changed, request.quorums, request.cluster))


class AuditorRig:
    """A cluster with as many auditors as the test starts."""

    def __init__(self, folder: Path) -> None:
        self._driver = EmbeddedUnderTest(str(folder))
        self._bookies: dict[str, MetadataService] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._services: dict[str, MetadataService] = {}
        self._auditors: dict[str, Auditor] = {}
        self.registries: dict[str, Registry] = {}
        self.lists = SaidLists()
        self.ends: dict[int, int] = {}
        """Last adds confirmed of open ledgers; -1 unless the test says otherwise."""
        self.placement = PickyPlacement()

    async def __aenter__(self) -> AuditorRig:
        self.service = await self._driver.open()
        await self.service.cluster.initialize()
        self.marks = self.service.under_replication
        self.checker = SaidChecker(self.service)
        for bookie in BOOKIES:
            await self.come(bookie)
            await self.service.cookies.create(bookie, b"cookie")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
        await self._driver.close()
        for task in self._running.values():
            if not task.cancelled() and (defect := task.exception()) is not None:
                raise defect

    # --- bookies ------------------------------------------------------------------------------------------------

    async def come(self, bookie: str, group: BookieGroup = W) -> None:
        if bookie not in self._bookies:
            self._bookies[bookie] = await self._driver.open()
        info = BookieServiceInfo((Endpoint("bookie", bookie.partition(":")[0], 1, BOOKIE_RPC),))
        await self._bookies[bookie].bookies.register(bookie, group, info)

    async def leave(self, *bookies: str) -> None:
        for bookie in bookies:
            for group in (W, R):
                await self._bookies[bookie].bookies.unregister(bookie, group)

    async def until_absent(self, bookie: str, auditor: str = "a1") -> None:
        """Return once the auditor has seen it leave."""
        status = self._auditors[auditor].status
        await self.until(lambda: any(each.bookie_id == bookie for each in status().absent))

    async def turn_read_only(self, bookie: str) -> None:
        await self.come(bookie, R)
        await self._bookies[bookie].bookies.unregister(bookie, W)

    # --- ledgers and marks --------------------------------------------------------------------------------------

    async def store(self, *ledgers: LedgerMetadata) -> None:
        for metadata in ledgers:
            await self.service.ledgers.create(metadata)

    async def damage(self, ledger_id: int) -> None:
        """Its metadata cannot be read any more."""
        layout = await self.service.cluster.layout()
        assert layout is not None
        await self.service.tree.overwrite(self.service.root + ledger_path(layout, ledger_id), b"not metadata")

    async def marked(self) -> dict[int, tuple[str, ...]]:
        return {mark.ledger_id: tuple(sorted(mark.replicas)) async for mark in self.marks.list()}

    async def until_marked(self, expected: Mapping[int, tuple[str, ...]], seconds: float = 10.0) -> None:
        """Return once exactly this is marked."""
        found: dict[int, tuple[str, ...]] = {}
        try:
            async with asyncio.timeout(seconds):
                while (found := await self.marked()) != expected:  # noqa: ASYNC110 - marks have no event
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"marked are {found}, not {expected}") from None

    # --- auditors -----------------------------------------------------------------------------------------------

    async def auditor(
        self, name: str = "a1", config: AutoRecoveryConfig = QUIET, *, elected: bool = True, **changes: object
    ) -> Auditor:
        """A running auditor or candidate, in a session of its own."""
        service = await self._driver.open()
        registry = self.registries[name] = Registry()
        auditor = Auditor(
            service,
            None,  # type: ignore[arg-type]  # the sources stand in for it
            replace(config, **changes),  # type: ignore[arg-type]
            AuditorInstruments(registry, embedded=False),
            bookie_id=name,
            random=Random(1),
            clock=FastClock,
            sources=Sources(self.checker, self.checker, self.lists, self._end, self.placement, self._view),
        )
        self._services[name], self._auditors[name] = service, auditor
        self._running[name] = asyncio.create_task(auditor.run())
        if elected:
            await self.until(lambda: audits(auditor.status()) > 0)
        return auditor

    async def stop(self, name: str) -> None:
        """End an auditor orderly: its vote is taken back."""
        task = self._running.pop(name)
        task.cancel()
        await asyncio.wait([task])

    async def expire(self, name: str) -> None:
        """Its session ends, as when its process dies."""
        await self._driver.expire(self._services[name])

    async def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Return once it holds; the defect of an auditor if one ends."""
        async with asyncio.timeout(seconds):
            while not condition():
                for task in self._running.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)

    def metric(self, name: str, auditor: str = "a1") -> float:
        """A line of the auditor's metrics."""
        for line in self.registries[auditor].render().splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"there is no metric {name}")

    async def _end(self, metadata: LedgerMetadata) -> tuple[int, PodkeeperError | None]:
        return self.ends.get(metadata.ledger_id, -1), None

    async def _view(self) -> ClusterView:
        return ClusterView(writable=(await self.service.bookies.list(W)).bookies)


def audits(status: AuditorStatus) -> int:
    """When the last audit was complete; 0: none."""
    for check in status.checks:
        if check.check.value == "bookies" and check.runs.last is not None:
            return check.runs.last.finished_ms
    return 0


def of(auditor: Auditor, check: Check = Check.LEDGERS) -> CheckStatus:
    """The state of one check, as the auditor reports it."""
    return next(each for each in auditor.status().checks if each.check is check)


async def complete(rig: AuditorRig, auditor: Auditor, check: Check = Check.LEDGERS) -> Finished:
    """Wait until the auditor has finished this check once; return that run."""
    await rig.until(lambda: auditor.is_auditor and of(auditor, check).runs.last is not None)
    last = of(auditor, check).runs.last
    assert last is not None
    return last
