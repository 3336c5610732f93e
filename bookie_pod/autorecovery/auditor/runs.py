"""The records of kind `auditor`: what auditors leave for each other and for people, and what people ask of them.

| name | JSON |
|---|---|
| `absences` | `since_ms`: bookie id to when it left; `noted_ms`: when the auditor noted that, by the same clock |
| `bookies`, `ledgers`, `placement`, `replicas` | run under way with its cursor, last complete run, last failure |
| the same with `-requested` | time of the last request for a run, ms |
| `returned` | `auditor`: who looks at copies of bookies that are back; `term`; `waiting`: bookie id to when asked, ms |

Invariants
- `returned` is changed by compare-and-set. A time in it tells apart two requests for one bookie, and only grows.
- Only the auditor writes the first two rows; of two that overlap for a moment the last one wins, and either is true.
- A record that cannot be read counts as none: it is rewritten, and a check starts again.
- Java's auditors neither read nor write any of this; what they share with ours are the times of complete runs in the
  under-replication tree.

What operators ask of the auditor, wherever it runs, goes through these records and the under-replication tree too.

Event loop only. Raises `MetadataError`, and `Refused` where a request would be in vain.

Sources: docs/internals/auto-recovery.md, sections 3.3, 4 and 14.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from bookie_pod.autorecovery.auditor.schedule import SKEW_MS, wall_clock_ms
from bookie_pod.autorecovery.well_typed import is_well_typed
from bookie_protocol.errors import (
    UNREADABLE,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
    Refused,
)
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.documents import RecordStore
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from bookie_protocol.versioned import Versioned

AUDITOR: Final = "auditor"
"""The kind of these records."""
ABSENCES: Final = "absences"
RETURNED: Final = "returned"
MAX_RETURNED: Final = 5_000
"""Bookies that others may ask for in `returned`: the record is one value of the metadata service, which has a bound.
The auditor itself asks for no others than those that were registered."""
_REQUESTED: Final = "-requested"
_ATTEMPTS: Final = 10
LONG_AGO_MS: Final = 21 * 86_400_000
"""Distance into the past to which Apache's shell puts the time of the last run, so that Java's next auditor runs the
check at once."""


class Check(Enum):
    """The periodic tasks of an auditor; the value is the name of its record."""

    BOOKIES = "bookies"
    LEDGERS = "ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"

    @property
    def node(self) -> AuditorCheck | None:
        """The node that also tells Java's auditors of the last complete run; the audit of bookies has no such node."""
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
    """The reason why the last attempt was broken off."""

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
        runs = Runs(
            str(found["auditor"]),
            _decoded(Running, found["running"]),
            _decoded(Finished, found["last"]),
            _decoded(Failure, found["failure"]),
        )
        return runs if is_well_typed(runs) else Runs()
    except UNREADABLE:
        return Runs()


def _decoded(kind: Any, found: Any) -> Any:
    if found is None:
        return None
    if "counts" in found:
        found = found | {"counts": {str(name): int(count) for name, count in found["counts"].items()}}
    return kind(**found)


@dataclass(frozen=True, slots=True)
class Returned:
    """The bookies that were away, and whose copies are still to be looked at. `auditor`: who looks; `term`: in which of
    its terms, empty if its release does not tell."""

    auditor: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict)
    term: str = ""

    def asked(self, bookies: Iterable[str], now_ms: int) -> Returned:
        """Return the same with a new request for these bookies."""
        new = {bookie: max(now_ms, self.waiting.get(bookie, 0) + 1) for bookie in bookies}
        return replace(self, waiting={**self.waiting, **new})

    def answered(self, requests: Mapping[str, int]) -> Returned:
        """Return the same without these requests; one that was made again meanwhile stays."""
        left = {bookie: ms for bookie, ms in self.waiting.items() if requests.get(bookie) != ms}
        return replace(self, waiting=left)

    def is_claimed(self, auditor: str, term: str) -> bool:
        """Return whether this auditor said, in this term, that it looks: then `waiting` names all that it knows of."""
        return self.auditor == auditor and self.term in ("", term)


def decode_returned(data: bytes) -> Returned:
    """Decode the record; an unreadable one counts as empty."""
    try:
        found = json.loads(data)
        waiting = {str(bookie): int(ms) for bookie, ms in found["waiting"].items()}
        return Returned(str(found["auditor"]), waiting, str(found.get("term", "")))
    except UNREADABLE:
        return Returned()


class AuditRecords:
    """Reads and writes them."""

    def __init__(self, service: MetadataService) -> None:
        self._store: RecordStore = service.records(AUDITOR)

    async def read(self, check: Check) -> Runs:
        """Return the record of a check."""
        data = await self._read(check.value)
        return Runs() if data is None else decode_runs(data)

    async def write(self, check: Check, runs: Runs) -> None:
        await self._put(check.value, encode_runs(runs))

    async def requested_ms(self, check: Check) -> int | None:
        """Return the time of the last request for a run of this check; None: never."""
        data = await self._read(check.value + _REQUESTED)
        return decode_time(data)

    async def request(self, check: Check, now_ms: int) -> None:
        """Ask the auditor for a run now, whatever the interval."""
        await self._put(check.value + _REQUESTED, str(now_ms).encode())

    def watch_request(self, check: Check) -> Subscription[Versioned[bytes] | None]:
        """Return the record of requests, now and after each change."""
        return self._store.watch(check.value + _REQUESTED)

    async def returned(self) -> Returned:
        """Return which bookies wait for a look at their copies."""
        data = await self._read(RETURNED)
        return Returned() if data is None else decode_returned(data)

    async def change_returned(self, change: Callable[[Returned], Returned]) -> Returned:
        """Change that record, and try again when another process changed it meanwhile; return it as it is then."""
        for _ in range(_ATTEMPTS):
            with suppress(MetadataExists, MetadataNotFound, MetadataVersionConflict):
                try:
                    found = await self._store.read(RETURNED)
                except MetadataNotFound:
                    after = change(Returned())
                    await self._store.create(RETURNED, json.dumps(asdict(after)).encode())
                    return after
                before = decode_returned(found.value)
                after = change(before)
                if after != before:
                    await self._store.update(RETURNED, json.dumps(asdict(after)).encode(), found.identity)
                return after
        raise MetadataExists(f"record {RETURNED} of the auditor was changed by others {_ATTEMPTS} times in a row")

    def watch_returned(self) -> Subscription[Versioned[bytes] | None]:
        """Follow that record: its state now, and after each change."""
        return self._store.watch(RETURNED)

    async def absences(self) -> dict[str, int]:
        """Return the absent bookies and since when, as the last auditor noted, by its clock."""
        return (await self._absences())[0]

    async def absences_to_go_on_with(self, now_ms: int) -> dict[str, int]:
        """Return the absences for the next auditor, whose clock says `now_ms`.

        A note that is too old or in the future by this clock was written by another clock, or was followed by a time
        without auditors in which every bookie may have been back: then its bookies are absent from now on.
        """
        since_ms, noted_ms = await self._absences()
        counts = abs(now_ms - noted_ms) <= SKEW_MS
        return {bookie: min(since, now_ms) if counts else now_ms for bookie, since in since_ms.items()}

    async def _absences(self) -> tuple[dict[str, int], int]:
        data = await self._read(ABSENCES)
        with suppress(*UNREADABLE):
            if data is not None:
                found = json.loads(data)
                return {str(bookie): int(since) for bookie, since in found["since_ms"].items()}, int(found["noted_ms"])
        return {}, 0

    async def write_absences(self, since_ms: Mapping[str, int], now_ms: int) -> None:
        """Note who is absent, in time for `absences_to_go_on_with` of the next auditor."""
        data = {"noted_ms": now_ms, "since_ms": dict(since_ms)}
        await self._put(ABSENCES, json.dumps(data, sort_keys=True).encode())

    async def _read(self, name: str) -> bytes | None:
        try:
            return (await self._store.read(name)).value
        except MetadataNotFound:
            return None

    async def _put(self, name: str, data: bytes) -> None:
        """Create or replace the record, whichever process wrote it before."""
        for _ in range(_ATTEMPTS):
            try:
                await self._store.overwrite(name, data)
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


async def look_at_returned(service: MetadataService, bookies: Iterable[str]) -> None:
    """Have the auditor look whether these bookies store what ledgers name them for: they were away."""
    asked = frozenset(bookies)

    def change(before: Returned) -> Returned:
        after = before.asked(asked, wall_clock_ms())
        if len(after.waiting) > MAX_RETURNED:
            raise Refused(f"{len(after.waiting)} bookies wait for a look at their copies, more than {MAX_RETURNED}")
        return after

    await AuditRecords(service).change_returned(change)


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
    """The record of a check, the same wherever the auditor runs. Times in ms since the epoch; None: never."""

    check: Check
    runs: Runs
    last_complete_ms: int | None
    """The time of the last complete run, which Java's auditors note too."""
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
