"""The rooms of the admin API, without a node behind them: a test sets what they say and sees what they were told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

from bookie_pod.admin.autorecovery import AutoRecoveryView
from bookie_pod.admin.bookie import DiskFiles, ThisBookie
from bookie_pod.admin.cluster import ClusterView
from bookie_pod.admin.cookies import StoredCookies
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.admin.facts import FactsView
from bookie_pod.admin.gc import Collectors
from bookie_pod.admin.index import IndexCompactions
from bookie_pod.admin.ledger_search import LedgerFinder
from bookie_pod.admin.ledgers import ClusterLedgers
from bookie_pod.admin.settings import Settings
from bookie_pod.admin.streams import StreamsView
from bookie_pod.admin.watching import Watching
from bookie_pod.node.integrity.full_check import DataIntegrityState
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.roles import NOBODY, Caller
from bookie_pod.server.status import NodeState
from bookie_pod.storage.gc.reports import CompactionForecast, Forecast, GcState, LogReport, UsageBucket
from bookie_pod.storage.index_rebuild.state import RebuildRequest, RebuildState
from bookie_pod.storage.integrity.scrub import ScrubState
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.admin_api.autorecovery import AutoRecoveryProcessState, CheckName, CheckSummary
from bookie_protocol.admin_api.bodies import Query, Route
from bookie_protocol.admin_api.bookie import BookieSpace
from bookie_protocol.admin_api.cluster import ClusterInfo, FoundLedgers, KnownBookie, LedgerSearch
from bookie_protocol.admin_api.gc import LogEntry, StorageLogs
from bookie_protocol.admin_api.streams import FoundStreams, StreamsQuery, StreamState
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    InvalidConfiguration,
    MetadataDamaged,
    NoSuchLedger,
    NoSuchStream,
    NotThere,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.web_console.source import Watcher
from tests.support.fake_decommission import FakeDecommission
from tests.support.fake_facts import FakeFacts

T = TypeVar("T")


def gc_state(**changes: object) -> GcState:
    """A collector that waits, with these differences."""
    values: dict[str, object] = {
        "force_compacting": False,
        "major_compacting": False,
        "minor_compacting": False,
        "last_major_ms": 0,
        "last_minor_ms": 0,
        "major_count": 0,
        "minor_count": 0,
        "major_suspended": False,
        "minor_suspended": False,
        "phase": "waiting",
        "quarantined": {},
        "last_errors": (),
    }
    return GcState(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeNode:
    bookie_id: str = "127.0.0.1:32700"
    address: str = "127.0.0.1:32700"
    flags: NodeState = field(default_factory=lambda: NodeState(True, False, False, True))
    found_space: BookieSpace = field(default_factory=lambda: BookieSpace(40, 100, 0.0))
    found_marks: Sequence[LogMark] = (LogMark(16, 512),)
    found_files: DiskFiles = field(default_factory=lambda: DiskFiles(["10.txn"], ["0.log", "1.log"], []))
    sane: bool = True
    fault: Exception | None = None
    """Raised by whatever is called next."""
    expansions: int = 0
    drained: int = 0

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def state(self) -> NodeState:
        return self.flags

    def space(self) -> BookieSpace:
        self._check()
        return self.found_space

    def disk_space(self) -> BookieSpace:
        return self.space()

    def marks(self) -> Sequence[LogMark]:
        return self.found_marks

    def files(self) -> DiskFiles:
        self._check()
        return self.found_files

    async def set_read_only(self, read_only: bool, decommission: int | None = None) -> None:
        self._check()
        self.flags = self.flags._replace(read_only=read_only)

    async def drain_clients(self) -> None:
        self._check()
        self.flags = self.flags._replace(read_only=True)
        self.drained += 1

    async def check_sanity(self) -> bool:
        self._check()
        return self.sane

    async def expand_storage(self) -> None:
        self._check()
        self.expansions += 1


@dataclass
class FakeFinder:
    found: FoundLedgers = field(default_factory=lambda: FoundLedgers([], 0, None, []))
    asked: list[LedgerSearch] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)

    async def find(self, asked: LedgerSearch, caller: Caller = NOBODY) -> FoundLedgers:
        self.asked.append(asked)
        self.callers.append(caller)
        return self.found


@dataclass
class FakeStreams:
    states: dict[str, StreamState] = field(default_factory=dict)

    async def page(self, asked: StreamsQuery, caller: Caller = NOBODY) -> FoundStreams:
        return FoundStreams(list(self.states.values()), len(self.states), None)

    async def one(self, name: str, caller: Caller = NOBODY) -> StreamState:
        if name not in self.states:
            raise NoSuchStream(f"there is no stream {name}")
        return self.states[name]


@dataclass
class FakeIndexes:
    """`known`: by path whether it is being compacted."""

    known: dict[str, bool] = field(default_factory=dict)
    compacted: list[Sequence[str] | None] = field(default_factory=list)

    def running(self) -> Mapping[str, bool]:
        return self.known

    def start(self, paths: Sequence[str] | None) -> None:
        if paths is not None and not set(paths) <= set(self.known):
            raise BadRequest("no such index")
        self.compacted.append(paths)


@dataclass
class FakeGc:
    collectors: list[tuple[str, GcState]] = field(default_factory=lambda: [("/data/ledgers", gc_state())])
    log_reports: dict[int, LogReport] = field(default_factory=dict)
    forced: list[tuple[bool | None, bool | None]] = field(default_factory=list)
    allowed: list[tuple[int, bool]] = field(default_factory=list)
    force_pending: bool = False
    major_suspended: bool = False
    minor_suspended: bool = False

    def force(self, major: bool | None = None, minor: bool | None = None) -> None:
        self.forced.append((major, minor))
        self.force_pending = True

    def suspend(self, *, major: bool = False, minor: bool = False) -> None:
        self.major_suspended |= major
        self.minor_suspended |= minor

    def resume(self, *, major: bool = False, minor: bool = False) -> None:
        self.major_suspended &= not major
        self.minor_suspended &= not minor

    async def allow_deletions(self, ledgers: int, *, older_metadata: bool) -> None:
        self.allowed.append((ledgers, older_metadata))

    def states(self) -> Sequence[tuple[str, GcState]]:
        return self.collectors

    def reports(self, log_id: int) -> Sequence[tuple[str, LogReport]]:
        return [("/data/ledgers", self.log_reports[log_id])] if log_id in self.log_reports else []

    def logs(self, limit: int) -> Sequence[StorageLogs]:
        listed = [
            LogEntry(f"{log_id:x}.log", log_id, 1100, 300, None, "complete") for log_id in sorted(self.log_reports)
        ]
        return [StorageLogs("/data/ledgers", listed[:limit], max(0, len(listed) - limit))]

    def forecasts(self) -> Sequence[tuple[str, Forecast]]:
        buckets = [UsageBucket(at, at * 1000, (10 - at) * 10, at * 100_000) for at in range(10)]
        minor = CompactionForecast(0.2, 2, 300, 700, 60)
        return [("/data/ledgers", Forecast(buckets, minor, CompactionForecast(0.8, 5, 900, 4000, None), 1))]


@dataclass
class FakeIntegrity:
    scrub: ScrubState = field(default_factory=lambda: ScrubState(True, False, 1_000, (), (), 0))
    requests: int = 0
    checks_data: bool = False
    check: DataIntegrityState = field(default_factory=DataIntegrityState)
    rebuilds: list[RebuildState] = field(default_factory=list)
    rebuild_requests: list[RebuildRequest] = field(default_factory=list)
    rebuild_running: bool = False
    fault: Exception | None = None

    @property
    def scrubber(self) -> SimpleNamespace:
        return SimpleNamespace(state=lambda: self.scrub, request=self._request_scrub)

    @property
    def rebuilder(self) -> SimpleNamespace:
        return SimpleNamespace(states=lambda: self.rebuilds, request=self._request_rebuild, cancel=self._cancel_rebuild)

    @property
    def data_check(self) -> SimpleNamespace:
        return SimpleNamespace(state=self.check)

    def _request_rebuild(self, request: RebuildRequest) -> bool:
        if self.fault is not None:
            raise self.fault
        self.rebuild_requests.append(request)
        begun, self.rebuild_running = not self.rebuild_running, True
        return begun

    def _cancel_rebuild(self) -> bool:
        ran, self.rebuild_running = self.rebuild_running, False
        return ran

    def _request_scrub(self) -> bool:
        self.requests += 1
        return self.requests == 1


@dataclass
class FakeCluster:
    writable: dict[str, str] = field(default_factory=dict)
    read_only: dict[str, str] = field(default_factory=dict)
    spaces: dict[str, BookieSpace] = field(default_factory=dict)
    known_bookies: list[KnownBookie] = field(default_factory=list)
    numbers: ClusterInfo = field(default_factory=lambda: ClusterInfo(False, "", False, True, 1, 1, 0, 0))

    async def bookies(self, *, read_only: bool) -> Sequence[str]:
        return list(self.read_only if read_only else self.writable)

    async def hosts(self, bookie_ids: Sequence[str]) -> Mapping[str, str | None]:
        known = self.writable | self.read_only
        return {bookie: known.get(bookie) for bookie in bookie_ids}

    async def known(self, caller: Caller = NOBODY, *, for_console: bool = False) -> Sequence[KnownBookie]:
        return self.known_bookies

    async def space(self) -> Mapping[str, BookieSpace]:
        return self.spaces

    async def state(self) -> ClusterInfo:
        return self.numbers


@dataclass
class FakeLedger:
    ledgers: dict[int, LedgerMetadata] = field(default_factory=dict)
    payloads: dict[int, list[bytes]] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    fault_after: int | None = None
    """Entries, or ids, after which reading fails."""
    fault: Exception = field(default_factory=lambda: RuntimeError("not set"))

    async def ids(self) -> AsyncIterator[int]:
        for count, ledger_id in enumerate(sorted(self.ledgers)):
            if count == self.fault_after:
                raise self.fault
            yield ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return self.ledgers[ledger_id]

    @asynccontextmanager
    async def listing(self, caller: Caller) -> AsyncIterator[None]:
        yield

    async def metadata_of(self, ids: AsyncIterator[int]) -> AsyncIterator[tuple[int, LedgerMetadata | str]]:
        async for ledger_id in ids:
            try:
                yield ledger_id, await self.metadata(ledger_id)
            except NotThere:
                continue
            except MetadataDamaged as error:
                yield ledger_id, f"(damaged) {error}"

    async def made(self, metadata: LedgerMetadata, make: Callable[[LedgerMetadata], T], caller: Caller) -> T:
        return make(metadata)

    async def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)

    async def entries(self, ledger_id: int, first: int, last: int | None) -> AsyncIterator[tuple[int, bytes]]:
        if ledger_id not in self.payloads:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        for entry_id, payload in enumerate(self.payloads[ledger_id]):
            if entry_id == self.fault_after:
                raise self.fault
            if first <= entry_id and (last is None or entry_id <= last):
                yield entry_id, payload


@dataclass
class FakeSettings:
    values: dict[str, str] = field(default_factory=dict)

    def shown(self) -> Mapping[str, str]:
        return self.values

    async def change(self, values: Mapping[str, str]) -> None:
        if "unknown" in values:
            raise InvalidConfiguration("unknown configuration key unknown")
        self.values.update(values)


@dataclass
class FakeAutoRecovery:
    enabled: bool = True
    auditor_id: str | None = None
    marked: dict[int, tuple[str, ...]] = field(default_factory=dict)
    delay_s: int | None = None
    refusal: Exception | None = None
    triggered: int = 0
    summaries: list[CheckSummary] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    process: AutoRecoveryProcessState | None = None

    async def is_enabled(self) -> bool:
        return self.enabled

    async def set_enabled(self, enabled: bool) -> None:
        self.enabled = enabled

    async def auditor(self) -> str | None:
        return self.auditor_id

    async def marks(
        self, missing: str | None, excluding: str | None
    ) -> AsyncGenerator[tuple[int, Sequence[str]], None]:
        for ledger_id, replicas in self.marked.items():
            if (missing is None or missing in replicas) and (excluding is None or excluding not in replicas):
                yield ledger_id, replicas

    async def delay(self) -> int | None:
        return self.delay_s

    async def set_delay(self, seconds: int) -> None:
        self.delay_s = seconds

    async def trigger_audit(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.triggered += 1

    async def checks(self) -> Sequence[CheckSummary]:
        return self.summaries

    async def look_at_returned(self, bookies: Sequence[str]) -> None:
        self.returned += bookies

    async def force_checks(self, checks: Sequence[CheckName]) -> None:
        self.forced += checks

    def here(self) -> AutoRecoveryProcessState | None:
        return self.process


@dataclass
class FakeWatching:
    watcher: Watcher = field(default_factory=Watcher)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Bookie, path and token of each request to another bookie."""

    async def ask(self, bookie_id: str, route: Route[Any], query: Query | None, token: str | None) -> Any:
        self.asked.append((bookie_id, route.path, token))
        raise BookieUnavailable(f"bookie {bookie_id} does not answer")


@dataclass
class FakeAdmin(dict[type, Any]):
    """All rooms, by the types for which they stand."""

    node: FakeNode = field(default_factory=FakeNode)
    gc: FakeGc = field(default_factory=FakeGc)
    integrity: FakeIntegrity = field(default_factory=FakeIntegrity)
    indexes: FakeIndexes = field(default_factory=FakeIndexes)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    ledgers: FakeLedger = field(default_factory=FakeLedger)
    finder: FakeFinder = field(default_factory=FakeFinder)
    streams: FakeStreams = field(default_factory=FakeStreams)
    settings: FakeSettings = field(default_factory=FakeSettings)
    decommission: FakeDecommission = field(default_factory=FakeDecommission)
    auto_recovery: FakeAutoRecovery = field(default_factory=FakeAutoRecovery)
    facts: FakeFacts = field(default_factory=FakeFacts)
    watching: FakeWatching = field(default_factory=FakeWatching)

    def __post_init__(self) -> None:
        self.cookies = self.decommission.room_of_cookies
        self |= {
            ThisBookie: self.node,
            Collectors: self.gc,
            Integrity: self.integrity,
            IndexCompactions: self.indexes,
            ClusterView: self.cluster,
            ClusterLedgers: self.ledgers,
            LedgerFinder: self.finder,
            StreamsView: self.streams,
            Settings: self.settings,
            Decommissions: self.decommission,
            AutoRecoveryView: self.auto_recovery,
            FactsView: self.facts,
            Watching: self.watching,
            StoredCookies: self.cookies,
        }
