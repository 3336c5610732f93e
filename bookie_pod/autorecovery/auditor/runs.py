"""What auditors leave for each other and for people: the records of kind `auditor`; and what people ask of them.

| name | JSON |
|---|---|
| `absences` | bookie id: since when it is absent, ms |
| `bookies`, `ledgers`, `placement`, `replicas` | run under way with its cursor, last complete run, last failure |
| the same with `-requested` | when somebody last asked for a run, ms |

Invariants
- Only the auditor writes the first two rows; of two that overlap for a moment the last word stands, and either is true.
- A record that cannot be read counts as none: it is rewritten, and a check begins anew.
- Java's auditors neither read nor write any of this; what they share with ours are the times of complete runs in the
  under-replication tree.

What operators ask of the auditor, wherever it runs, goes through these records and the under-replication tree too.

Event loop only. Raises `MetadataError`, and `Refused` where a request would be in vain.

Sources: reference auto-recovery, sections 3.3, 4 and 14.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from bookie_pod.autorecovery.auditor.schedule import wall_clock_ms
from bookie_protocol.errors import UNREADABLE, MetadataExists, MetadataNotFound, Refused
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.records import RecordStore
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from bookie_protocol.metadata_service.versioned import ANY_VERSION, Versioned

AUDITOR: Final = "auditor"
"""The kind of these records."""
ABSENCES: Final = "absences"
_REQUESTED: Final = "-requested"
_ATTEMPTS: Final = 10


class Check(Enum):
    """The periodic tasks of an auditor; the value is the name of its record."""

    BOOKIES = "bookies"
    LEDGERS = "ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"

    @property
    def node(self) -> AuditorCheck | None:
        """Where its last complete run is noted for Java's auditors too; the audit of bookies has no such node."""
        return _NODES.get(self)


_NODES: Final = {
    Check.LEDGERS: AuditorCheck.ALL_LEDGERS,
    Check.PLACEMENT: AuditorCheck.PLACEMENT_POLICY,
    Check.REPLICAS: AuditorCheck.REPLICAS,
}


@dataclass(frozen=True, slots=True)
class Running:
    """A run that is under way, or was when its auditor ended. `next_ledger`: all below are done and in `counts`."""

    started_ms: int
    next_ledger: int
    active_ms: int
    """Time spent on it, by all auditors that worked on it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    request_ms: int | None = None
    """The newest request when it began."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last complete run."""

    started_ms: int
    finished_ms: int
    active_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    request_ms: int | None = None
    """The newest request when it began: that one is answered, and no clock is compared."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last attempt was broken off."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Runs:
    """One check's record. `auditor`: who wrote it last."""

    auditor: str = ""
    running: Running | None = None
    last: Finished | None = None
    failure: Failure | None = None


def encode_runs(runs: Runs) -> bytes:
    """The record."""
    return json.dumps(asdict(runs), separators=(",", ":"), sort_keys=True).encode()


def decode_runs(data: bytes) -> Runs:
    """The record's meaning; what cannot be read is as if nothing had been written."""
    try:
        found = json.loads(data)
        return Runs(
            str(found["auditor"]),
            _decoded(Running, found["running"]),
            _decoded(Finished, found["last"]),
            _decoded(Failure, found["failure"]),
        )
    except UNREADABLE:
        return Runs()


def _decoded(kind: Any, found: Any) -> Any:
    if found is None:
        return None
    if "counts" in found:
        found = found | {"counts": {str(name): int(count) for name, count in found["counts"].items()}}
    return kind(**found)


class AuditRecords:
    """Reads and writes them."""

    def __init__(self, service: MetadataService) -> None:
        self._store: RecordStore = service.records(AUDITOR)

    async def read(self, check: Check) -> Runs:
        """What is recorded of a check."""
        data = await self._read(check.value)
        return Runs() if data is None else decode_runs(data)

    async def write(self, check: Check, runs: Runs) -> None:
        await self._put(check.value, encode_runs(runs))

    async def requested_ms(self, check: Check) -> int | None:
        """When somebody last asked for a run of this check; None: never."""
        data = await self._read(check.value + _REQUESTED)
        return decode_time(data)

    async def request(self, check: Check, now_ms: int) -> None:
        """Ask the auditor for a run now, whatever the interval."""
        await self._put(check.value + _REQUESTED, str(now_ms).encode())

    def watch_request(self, check: Check) -> Subscription[Versioned[bytes] | None]:
        """The record of requests, now and after each change."""
        return self._store.watch(check.value + _REQUESTED)

    async def absences(self) -> dict[str, int]:
        """Who is absent and since when, as the last auditor noted."""
        data = await self._read(ABSENCES)
        with suppress(*UNREADABLE):
            if data is not None:
                return {str(bookie): int(since) for bookie, since in json.loads(data).items()}
        return {}

    async def write_absences(self, since_ms: Mapping[str, int]) -> None:
        await self._put(ABSENCES, json.dumps(dict(since_ms), sort_keys=True).encode())

    async def _read(self, name: str) -> bytes | None:
        try:
            return (await self._store.read(name)).value
        except MetadataNotFound:
            return None

    async def _put(self, name: str, data: bytes) -> None:
        """Create or replace, whoever wrote it before."""
        for _ in range(_ATTEMPTS):
            try:
                await self._store.update(name, data, ANY_VERSION)
                return
            except MetadataNotFound:
                with suppress(MetadataExists):
                    await self._store.create(name, data)
                    return
        raise MetadataExists(f"record {name} of the auditor comes and goes; who else writes it?")


def decode_time(data: bytes | None) -> int | None:
    """Ms since the epoch as decimal text; None for anything else."""
    if data is None or not data.isdigit() or len(data) > 18:
        return None
    return int(data)


LONG_AGO_MS: Final = 21 * 86_400_000
"""How far back Apache's shell puts the time of the last run, so that Java's next auditor runs the check at once."""
FORCIBLE: Final = (Check.LEDGERS, Check.PLACEMENT, Check.REPLICAS)


async def set_enabled(service: MetadataService, enabled: bool) -> None:
    """Enable or disable auto-recovery in the whole cluster; what is so already stays so."""
    marks = service.under_replication
    try:
        await (marks.enable() if enabled else marks.disable())
    except (MetadataExists, MetadataNotFound):
        if await marks.is_enabled() is not enabled:
            raise


async def trigger_audit(service: MetadataService) -> str:
    """Have the auditor mark, now, what names anybody who is absent, whatever the delay. Returns the auditor's id."""
    marks = service.under_replication
    if not await marks.is_enabled():
        raise Refused("auto-recovery is disabled: nothing is audited until it is enabled")
    auditor = await service.auditor_election.current_auditor()
    if auditor is None:
        raise Refused("there is no auditor: run auto-recovery somewhere (`bookie autorecovery`)")
    if not await marks.ask_for_audit():
        raise Refused(f"the auditor, {auditor}, has only just been elected: ask again in a moment")
    return auditor


async def force_checks(service: MetadataService, checks: Iterable[Check]) -> None:
    """Have these checks run now: ours at once, Java's when an auditor is elected next."""
    now = wall_clock_ms()
    records = AuditRecords(service)
    for check in checks:
        if check.node is not None:
            await service.under_replication.set_check_time(check.node, now - LONG_AGO_MS)
        await records.request(check, now)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a check, wherever the auditor runs. Times in ms since the epoch; None: never."""

    check: Check
    runs: Runs
    last_complete_ms: int | None
    """As Java's auditors note it too."""
    requested_ms: int | None


async def recorded_checks(service: MetadataService) -> tuple[Recorded, ...]:
    """All checks, as the last auditors left them."""
    records = AuditRecords(service)
    found = []
    for check in Check:
        runs = await records.read(check)
        if check.node is None:
            last = runs.last.finished_ms if runs.last is not None else None
        else:
            last = await service.under_replication.check_time(check.node)
        found.append(Recorded(check, runs, last, await records.requested_ms(check)))
    return tuple(found)
