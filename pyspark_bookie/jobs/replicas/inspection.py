"""The inspection of a ledger: the entries that each bookie should hold, against those that it lists or serves.

The light form asks for lists of entries and reads no data. Of a bookie that gives none the first and the last entry of
each fragment are read. The deep form also reads what is listed and verifies every digest.

Invariants
- No bookie is accused by one inspection: see `inspect_again`.
- Entries behind the end that the first inspection of the ledger knew are not inspected: they may be under way.
- A ledger that is deleted meanwhile has no findings.
- "It has nothing" is a bookie's own word; silence, and any other error, is "unknown".
- Of bookies that give no lists (`bookie_client.replication.lists`) all pieces of work that share a client know.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 4, 5 and 17; docs/internals/wire-protocol.md, section 8.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary
from zlib import crc32

from bookie_client.access import LedgerAccess, replica_access
from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.replication.check import known_end
from bookie_client.replication.check import verdict_of as replica_verdict
from bookie_client.replication.fragments import Fragment, StripedEntries, fragments
from bookie_client.replication.lists import Lists, Silences
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    MetadataDamaged,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    ProtocolViolation,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.wire.availability import Availability
from pyspark_bookie.jobs.replicas.coverage import (
    NOTHING,
    Run,
    expected_runs,
    missing_runs,
    present_runs,
    runs_of_entries,
    surplus_count,
)
from pyspark_bookie.jobs.replicas.deep import BLOCK, ReplicaScan, ReplicaScanner, ScanLimits
from pyspark_bookie.jobs.replicas.findings import Finding, Verdict, clusters, confirmed, of_ledger

ALL: Final = 100
"""Percent."""
Tell = Callable[[Iterable[Run], Verdict, str], None]
MAX_HELD: Final = 1 << 40
"""Entries that one bookie can hold of one ledger, at most; who claims more is not believed."""
_SILENCES: Final[WeakKeyDictionary[Client, Silences]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionOptions:
    """Options of an inspection. `sample`: percent of the blocks of entries that are read, chosen by `seed`, alike
    at all replicas."""

    digests: bool = False
    checksums: bool = False
    sample: int = ALL
    seed: int = 0
    extra: bool = False
    """If True, report copies of closed ledgers that no metadata ask for."""
    digest: DigestType | None = None
    """Digest type of ledgers that recorded none; None: only their ids are verified."""
    password: bytes = b""
    """Password of ledgers that recorded none."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """A checksum of `entries` entries of one replica; equal blocks of two replicas have equal ones."""

    ledger_id: int
    fragment: int
    block: int
    place: int
    bookie: str
    position: int
    entries: int
    checksum: int


@dataclass(slots=True)
class Inspection:
    """`last_entry`: the end that was inspected up to; `replicas`: of fragments, at bookies. `metadata` None: it was
    deleted, or cannot be read."""

    ledger_id: int
    metadata: LedgerMetadata | None = None
    last_entry: int = -1
    findings: list[Finding] = field(default_factory=list)
    replicas: int = 0
    entries: int = 0
    nbytes: int = 0
    blocks: list[BlockSum] = field(default_factory=list)

    @property
    def is_deleted(self) -> bool:
        return self.metadata is None and not self.findings


class Inspector:
    """Inspects ledgers, any number at a time, within the bounds of `limits`."""

    def __init__(self, client: Client, options: InspectionOptions, limits: ScanLimits) -> None:
        self._client = client
        self._options = options
        self._limits = limits
        self._listings = Listings(client, limits.throttle)

    async def inspect(
        self,
        ledger_id: int,
        *,
        bookies: Collection[str] | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> Inspection:
        """Inspect the entries from `first` to `last` (None: the end), at these bookies (None: all of its ensembles).

        Raises `MetadataUnavailable`."""
        inspection = Inspection(ledger_id)
        try:
            metadata = (await self._client.stored_metadata(ledger_id)).value
        except NoSuchLedger:
            return inspection
        except MetadataDamaged as error:
            inspection.findings.append(of_ledger(ledger_id, Verdict.UNKNOWN, str(error)))
            return inspection
        inspection.metadata = metadata
        access = replica_access(metadata, self._options.digest, self._options.password)
        end, unknown = await known_end(self._client, metadata, access.digest)
        if unknown is not None:
            inspection.findings.append(of_ledger(ledger_id, Verdict.UNKNOWN, f"its end is not known: {unknown}"))
        inspection.last_entry = end if last is None else min(end, last)
        parts = [part for part in fragments(ledger_id, metadata, end) if part.count]
        named = sorted({bookie for part in parts for bookie in part.ensemble})
        asked = [bookie for bookie in named if bookies is None or bookie in bookies]
        found = await asyncio.gather(*(self._listings.of(bookie, ledger_id) for bookie in asked))
        lists = dict(zip(asked, found, strict=True))
        average = _average(metadata, access)
        await asyncio.gather(*(self._fragment(inspection, part, lists, access, average, first) for part in parts))
        if self._options.extra and metadata.is_closed and first == 0:
            inspection.findings.extend(_extra(parts, lists))
        inspection.findings.sort(key=lambda each: (each.fragment, each.bookie, each.first_entry))
        return inspection

    # --- inside -----------------------------------------------------------------------------------------------

    async def _fragment(
        self,
        inspection: Inspection,
        fragment: Fragment,
        lists: dict[str, Listed],
        access: LedgerAccess,
        average: int | None,
        first: int,
    ) -> None:
        begin, end = max(first, fragment.first_entry), min(inspection.last_entry, fragment.last_entry)
        if begin > end:
            return
        scanner = ReplicaScanner(
            self._client, fragment, access, self._limits, average=average, checksums=self._options.checksums
        )
        await asyncio.gather(
            *(
                self._replica(inspection, fragment, position, lists[bookie], scanner, begin, end)
                for position, bookie in enumerate(fragment.ensemble)
                if bookie in lists
            )
        )

    async def _replica(
        self,
        inspection: Inspection,
        fragment: Fragment,
        position: int,
        listed: Listed,
        scanner: ReplicaScanner,
        begin: int,
        end: int,
    ) -> None:
        whole = _whole(fragment, position, begin, end)
        if whole is None:
            return
        inspection.replicas += 1

        def tell(runs: Iterable[Run], verdict: Verdict, detail: str) -> None:
            bookie = fragment.ensemble[position]
            inspection.findings.extend(
                Finding(
                    fragment.ledger_id,
                    fragment.first_entry,
                    run.first,
                    run.last,
                    run.count,
                    bookie,
                    position,
                    verdict,
                    detail,
                )
                for run in runs
            )

        if listed.is_lost:
            tell([whole], Verdict.LOST, listed.reason)
            return
        if listed.stored is None and not listed.is_silent:
            tell([whole], Verdict.UNREACHABLE, listed.reason)
            return
        runs: Iterable[range]
        if listed.stored is not None:
            missing = missing_runs(fragment, position, listed.stored, begin, end)
            tell(missing, Verdict.MISSING, "the bookie does not list them")
            if not self._options.digests:
                return
            runs = present_runs(fragment, position, listed.stored, begin, end)
        elif self._options.digests:
            runs = expected_runs(fragment, position, begin, end)
        else:
            runs = [range(entry, entry + 1) for entry in sorted({whole.first, whole.last})]
        scan = await scanner.scan(fragment.ensemble[position], self._sampled(fragment.ledger_id, runs))
        self._took(inspection, fragment, position, scan, whole, tell)

    def _took(
        self,
        inspection: Inspection,
        fragment: Fragment,
        position: int,
        scan: ReplicaScan,
        whole: Run,
        tell: Tell,
    ) -> None:
        inspection.entries += scan.entries
        inspection.nbytes += scan.nbytes
        for verdict, entries in _by_verdict(scan).items():
            details = dict.fromkeys(str(scan.faults[entry]) for entry in islice(entries, 2))
            detail = "; ".join([*details, *([scan.stopped] if scan.stopped and not scan.unreachable else [])])
            tell(runs_of_entries(fragment, position, entries), verdict, detail)
        if scan.stopped is not None and scan.unreachable:
            begin = whole.first if scan.unread_from is None else scan.unread_from
            rest = _whole(fragment, position, begin, whole.last)
            tell([] if rest is None else [rest], Verdict.UNREACHABLE, scan.stopped)
        inspection.blocks.extend(
            BlockSum(
                fragment.ledger_id,
                fragment.first_entry,
                block,
                place,
                fragment.ensemble[position],
                position,
                entries,
                value,
            )
            for (block, place), (entries, value) in scan.checksums.items()
        )

    def _sampled(self, ledger_id: int, runs: Iterable[range]) -> Iterator[range]:
        """Yield the parts of the runs that lie in chosen blocks."""
        if self._options.sample >= ALL:
            yield from runs
            return
        for run in runs:
            start = run.start
            while start < run.stop:
                stop = min(run.stop, (start // BLOCK + 1) * BLOCK)
                if is_chosen(ledger_id, start // BLOCK, self._options.sample, self._options.seed):
                    yield range(start, stop)
                start = stop


def is_chosen(ledger_id: int, block: int, percent: int, seed: int) -> bool:
    """Return True if a sample takes this block: the same answer for every replica, another one with another seed."""
    return crc32(b"%d/%d/%d" % (seed, ledger_id, block)) % ALL < percent


# --- inside -------------------------------------------------------------------------------------------------------


def _average(metadata: LedgerMetadata, access: LedgerAccess) -> int | None:
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return None
    return metadata.length // (metadata.last_entry_id + 1) + access.digest.overhead


def _whole(fragment: Fragment, position: int, begin: int, end: int) -> Run | None:
    """Return everything that striping puts at the position between the two entries; None if nothing."""
    quorums = fragment.quorums
    entries = StripedEntries(begin, end, position, quorums.ensemble, quorums.write)
    return Run(entries[0], entries[-1], len(entries)) if len(entries) else None


def _by_verdict(scan: ReplicaScan) -> dict[Verdict, list[int]]:
    found: dict[Verdict, list[int]] = {}
    for entry_id in sorted(scan.faults):
        found.setdefault(verdict_of(scan.faults[entry_id]), []).append(entry_id)
    return found


def verdict_of(error: PodkeeperError) -> Verdict:
    """Return the verdict on a copy whose read failed with this error."""
    verdict = replica_verdict(error)
    return Verdict.UNREACHABLE if verdict.is_unknown else Verdict[verdict.name]


def _extra(parts: Sequence[Fragment], lists: dict[str, Listed]) -> Iterator[Finding]:
    for bookie, listed in lists.items():
        if listed.stored is None:
            continue
        places = [(part, position) for part in parts for position in part.positions(bookie)]
        surplus = surplus_count(places, listed.stored)
        if surplus > 0:
            text = f"{surplus} entries that its metadata do not place there"
            yield Finding(parts[0].ledger_id, -1, 0, -1, surplus, bookie, -1, Verdict.EXTRA, text)


async def inspect_again(inspector: Inspector, inspections: Sequence[Inspection], pause: float) -> list[Inspection]:
    """Inspect each ledger with findings again, at the bookies in question, by metadata read again; return what
    stays.

    `pause`: seconds before it, in which writes that are under way arrive.
    """
    doubtful = [inspection for inspection in inspections if inspection.findings]
    if doubtful:
        await asyncio.sleep(pause)
    for inspection in doubtful:
        bookies = {finding.bookie for finding in inspection.findings if finding.bookie}
        seen: list[Finding] = []
        for first, last in clusters(inspection.findings) or [(0, -1)]:
            again = await inspector.inspect(inspection.ledger_id, bookies=bookies, first=first, last=last)
            seen += again.findings
            inspection.metadata = again.metadata
        inspection.findings = confirmed(inspection.findings, list(dict.fromkeys(seen)))
    return list(inspections)


@dataclass(frozen=True, slots=True)
class Listed:
    """The entries that a bookie lists. `stored` None: unknown, and `reason` says why.

    `is_lost`: the bookie is registered nowhere. `is_silent`: it answers, but returns no lists.
    """

    stored: Availability | None
    reason: str = ""
    is_lost: bool = False
    is_silent: bool = False


class Listings:
    """Asks the bookies of one client."""

    def __init__(self, client: Client, throttle: ReplicationThrottle) -> None:
        self._registrations = Registrations(client.bookies, client.metadata_service.bookies)
        self._lists = Lists(client.operations.entries_of_ledger, throttle, _SILENCES.setdefault(client, Silences()))

    async def of(self, bookie: str, ledger_id: int) -> Listed:
        """Raises `MetadataUnavailable`."""
        if await self._registrations.of(bookie) is Registration.NOWHERE:
            return Listed(None, "registered nowhere", is_lost=True)
        try:
            stored = await self._lists.of(bookie, ledger_id)
        except NotThere:
            stored = NOTHING
        except (BadRequest, BadVersion, ProtocolViolation) as error:
            return Listed(None, f"it gives no lists of entries: {error}", is_silent=True)
        except PodkeeperError as error:
            return await self._not_told(bookie, str(error))
        if stored is None:
            return Listed(None, "it gives no lists of entries", is_silent=True)
        if stored.count > MAX_HELD:
            return Listed(None, f"it claims to have {stored.count} entries")
        return Listed(stored)

    async def _not_told(self, bookie: str, reason: str) -> Listed:
        # Asked again: what was known may name a bookie that has just gone.
        if await self._registrations.of(bookie, asked_now=True) is Registration.NOWHERE:
            return Listed(None, "registered nowhere", is_lost=True)
        return Listed(None, reason)
