"""The check of a ledger: a verdict on each replica of each fragment.

    report = await LedgerChecker(client, CheckOptions(verification_percentage=10)).check(ledger_id)
    for fragment in report.bad_fragments:
        print(fragment.fragment.first_entry, fragment.bad)

Of each position the first and the last entry that striping puts there are read from exactly that bookie, and of those
between them as many percent as asked for, one at random of each equal part. A repair passes the reasons of the mark
(`findings`), and gets an answer to exactly those: the entries that a finding names are read, those that are said to
diverge are compared with the other copies, and where no reason is known every entry is read. The list of entries of
such a bookie is compared with striping, too; where it gives none, every entry is read.

Invariants
- A bookie that does not answer, or cannot tell, is unreachable and never bad. Only its own word, its absence from the
  registry (see `bookies.Registrations`) or bytes that are not the entry make a replica bad.
- Digests are verified with the password that the ledger recorded. Where none is recorded, ids alone are compared.
- A check does not look at entries behind the last add confirmed of an open ledger: they are their writer's. `tail`
  does, for bookies that may have lost some (`replication.tail`).
- Total loss is reported: every position that should hold an entry and denies it is MISSING, also where the segment has
  but this one entry.
- At most `max_reads` reads are under way, and all pass the throttle (`replication.replica_reads`).

Event loop only.

Source: docs/internals/auto-recovery.md, sections 5 and 6.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import merge
from itertools import islice
from random import Random
from typing import Final

from bookie_client.access import LedgerAccess, replica_access
from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.patience import Patience
from bookie_client.reading.lac import least_lac, read_last_confirmed
from bookie_client.replication.fragments import Fragment, StripedEntries, fragments
from bookie_client.replication.lists import YIELD_EVERY, Lists, first_missing
from bookie_client.replication.replica_reads import (
    BUSY_SECONDS,
    BUSY_TRIES,
    CHUNK_BYTES,
    CHUNK_SINGLES,
    GUESSED_BYTES,
    Look,
    ReplicaReads,
)
from bookie_client.replication.tail import Tail, find_tail
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    DigestMismatch,
    LedgerStateUnknown,
    MetadataError,
    NotThere,
    PodkeeperError,
    StorageFault,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, Runs, entries_to_read, joined_runs
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.together import bounded
from bookie_protocol.wire.availability import Availability

CHUNK_ENTRIES: Final = 1_000
"""Entries that are asked for at a time, by batch."""
MAX_HOLES: Final = 20
"""Entries that `holes` names."""
_EVERYTHING: Final = (0, 2**63 - 1)


class ReplicaVerdict(Enum):
    """The verdict on a bookie's copies at one position of a fragment."""

    GOOD = "good"
    """Every entry that was looked at is there, and undamaged."""
    EMPTY = "empty"
    """Striping puts no entry of the fragment there, and the bookie is registered."""
    MISSING = "missing"
    """The bookie itself says that it does not have an entry."""
    DAMAGED = "damaged"
    """An entry fails its digest, or the bookie cannot read it from its disk."""
    LOST = "lost"
    """The bookie is registered nowhere. Also where it stores nothing, so that the metadata drop dead bookies."""
    DIVERGENT = "divergent"
    """An entry that was found to be the wrong one still differs from the other copies."""
    UNREACHABLE = "unreachable"
    """Registered, and does not answer, or refuses to: never counted as missing."""
    UNTOLD = "untold"
    """The bookie answers that it cannot tell what it holds of this ledger. Said once, this counts as unreachable."""

    @property
    def is_bad(self) -> bool:
        """A new copy is wanted."""
        return self is ReplicaVerdict.LOST or self in FAULTS

    @property
    def is_unknown(self) -> bool:
        """The copies may be there or not."""
        return self in (ReplicaVerdict.UNREACHABLE, ReplicaVerdict.UNTOLD)


FAULTS: Final = frozenset({ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED, ReplicaVerdict.DIVERGENT})
"""Verdicts that a registered bookie gives, or shows, about its own copies."""


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """The verdict on one position. `entry_id`: the entry that showed it; None where none was asked for."""

    position: int
    bookie: str
    verdict: ReplicaVerdict
    entry_id: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FragmentReport:
    """The findings on a fragment, one for each position, in order."""

    fragment: Fragment
    findings: tuple[ReplicaFinding, ...]

    @property
    def bad(self) -> Mapping[int, str]:
        """Positions that need a new copy, and their bookies: what `FragmentReplicator.replicate` takes."""
        return {found.position: found.bookie for found in self.findings if found.verdict.is_bad}

    @property
    def unknown(self) -> Mapping[int, str]:
        """Return the positions whose verdict is unknown, and their bookies."""
        return {found.position: found.bookie for found in self.findings if found.verdict.is_unknown}


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """A ledger's fragments and what they are worth.

    `lac`: the last entry that was looked at (of a closed ledger its last). `lac_error`: why the last add confirmed of
    an open ledger is not known; then its last segment counts as empty.
    """

    ledger_id: int
    metadata: Versioned[LedgerMetadata]
    lac: int
    fragments: tuple[FragmentReport, ...]
    lac_error: PodkeeperError | None = None

    @property
    def bad_fragments(self) -> tuple[FragmentReport, ...]:
        """Fragments with at least one position that needs a new copy."""
        return tuple(report for report in self.fragments if report.bad)

    @property
    def cannot_tell(self) -> bool:
        """Return True if some replica, or the end of an open ledger, could not be checked: the ledger may be worse
        than it seems."""
        return self.lac_error is not None or any(report.unknown for report in self.fragments)

    @property
    def is_healthy(self) -> bool:
        """Return True if everything was checked and is good."""
        return not self.cannot_tell and not self.bad_fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of a check."""

    verification_percentage: int = 0
    """Percentage of the entries between the first and the last that is read
    (`auditorLedgerVerificationPercentage`); 100: all."""
    max_reads: int = 100
    """Reads under way (`inFlightReadEntryNumInLedgerChecker`, where -1 stands for no limit)."""
    throttle: ReplicationThrottle = field(default_factory=ReplicationThrottle)
    digest: DigestType | None = None
    """Digest type of ledgers that recorded none; None: only their ids are verified."""
    password: bytes = b""
    """Password of ledgers that recorded none."""

    def __post_init__(self) -> None:
        if not 0 <= self.verification_percentage <= 100:
            raise BadRequest(f"verification_percentage must be from 0 to 100, not {self.verification_percentage}")
        if self.max_reads < 1:
            raise BadRequest(f"max_reads must be at least 1, not {self.max_reads}")


class LedgerChecker:
    """Checks ledgers, any number at the same time, within one bound of reads."""

    def __init__(self, client: Client, options: CheckOptions | None = None) -> None:
        self._client = client
        self.options = options or CheckOptions()
        self._registrations = Registrations(client.bookies, client.metadata_service.bookies)
        self._lists = Lists(client.operations.entries_of_ledger, self.options.throttle)
        self._reads = ReplicaReads(client.context, self._lists, self.options.throttle, self.options.max_reads)

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
        """Look at every fragment of a ledger, and at what these findings are about.

        Raises `LedgerDeleted` (it was deleted), `MetadataUnavailable`, `MetadataDamaged`. What single bookies answer is
        in the report.
        """
        options = self.options
        stored = await self._client.stored_metadata(ledger_id)
        metadata = stored.value
        access = replica_access(metadata, options.digest, options.password)
        lac, lac_error = await known_end(self._client, metadata, access.digest)
        reports = []
        for fragment in fragments(ledger_id, metadata, lac):
            positions = range(len(fragment.ensemble))
            found = await self._check_fragment(metadata, fragment, access, positions, findings)
            reports.append(FragmentReport(fragment, found))
        return LedgerReport(ledger_id, stored, lac, tuple(reports), lac_error)

    async def make_durable(self, report: LedgerReport, bookies: Collection[str]) -> str | None:
        """Make durable what the report found on these bookies. Return why one failed; None if none did.

        A bookie that has restarted since the report may have lost copies that were not durable. So it is asked once
        more for its list of entries or, if it gives none, for its last entry.
        """
        for bookie in sorted(bookies):
            try:
                await self._force(bookie, report.ledger_id)
                lacks = await self.lacks(report, bookie)
            except PodkeeperError as error:
                return f"{bookie} does not say that its copies are durable: {error}"
            if lacks is not None:
                return f"{bookie} has entry {lacks} no more: it restarted before its copies were durable"
        return None

    async def lacks(self, report: LedgerReport, bookie: str) -> int | None:
        """Return the first entry that the bookie should have by the report, and says that it has not. Raises what it
        answers if it gives no list."""
        held = [each.fragment.entries_of(at) for each in report.fragments for at in each.fragment.positions(bookie)]
        held = [entries for entries in held if len(entries)]
        if not held:
            return None
        listed = await self._reads.listed(bookie, report.ledger_id)
        if listed is not None:
            for entries in held:
                if (missing := await first_missing(entries, listed)) is not None:
                    return missing
            return None
        access = replica_access(report.metadata.value, self.options.digest, self.options.password)
        highest = max(entries[-1] for entries in held)
        return highest if await self._reads.last_entry(bookie, report.ledger_id, access) < highest else None

    async def tail(self, report: LedgerReport, doubts: Collection[Finding]) -> Tail:
        """Look behind the end of an open ledger for what the bookies that these findings name may have lost there.

        Raises `LedgerDeleted`, `MetadataUnavailable`, `MetadataDamaged`.
        """
        if report.lac_error is not None:
            return Tail(unknown=f"the end of the ledger is not known: {report.lac_error}")
        metadata = report.metadata.value
        access = replica_access(metadata, self.options.digest, self.options.password)
        tail = await find_tail(self._reads, report.fragments[-1].fragment, report.lac, doubts, access)
        if metadata.is_closed or not doubts:
            return tail
        # Entries behind the end are in the segment that the writer has now: it may have exchanged a bookie since.
        now = await self._client.metadata(report.ledger_id)
        if (now.state, now.first_entry_ids[-1], now.last_ensemble) != (
            metadata.state,
            metadata.first_entry_ids[-1],
            metadata.last_ensemble,
        ):
            return Tail(unknown="the state or the last segment of the ledger changed while it was looked at")
        return tail

    async def _force(self, bookie: str, ledger_id: int) -> None:
        """A bookie before 4.8 refuses this request each time, and is taken at its word. Java's bookies also refuse it
        when they fail, as while they stop. So one that refuses is asked again, until it would have stopped."""
        patience = Patience(BUSY_TRIES, BUSY_SECONDS)
        while True:
            try:
                return await self._client.context.operations.force_ledger(bookie, ledger_id)
            except BadVersion:  # ours: requests of version 2 have no force
                return None
            except BadRequest:
                if not await patience.again():
                    return None

    async def check_again(
        self,
        metadata: LedgerMetadata,
        found: FragmentReport,
        positions: Collection[int],
        *,
        findings: Collection[Finding] = (),
    ) -> FragmentReport:
        """Look at some positions of a fragment again; of the others what was found stays. Raises
        `MetadataUnavailable`."""
        access = replica_access(metadata, self.options.digest, self.options.password)
        anew = await self._check_fragment(metadata, found.fragment, access, sorted(positions), findings)
        by_position = {each.position: each for each in (*found.findings, *anew)}
        return FragmentReport(found.fragment, tuple(by_position[each.position] for each in found.findings))

    async def holes(self, fragment: Fragment, positions: Collection[int]) -> tuple[int, ...]:
        """Entries of these positions that every bookie which should have them lacks by its own list, the first few.

        This costs a request for each bookie and reads nothing. A bookie that gives no list may have everything.
        """
        ensemble = fragment.ensemble
        lists = await bounded(ensemble, lambda bookie: self._held(bookie, fragment.ledger_id))
        found: set[int] = set()
        for position in positions:
            for looked_at, entry_id in enumerate(fragment.entries_of(position), 1):
                if not looked_at % YIELD_EVERY:
                    await asyncio.sleep(0)
                if not any(_may_have(lists[at], entry_id) for at in fragment.write_set(entry_id)):
                    found.add(entry_id)
                    if len(found) >= MAX_HOLES:
                        return tuple(sorted(found))
        return tuple(sorted(found))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _held(self, bookie: str, ledger_id: int) -> Availability | None:
        """Return the entries that the bookie has of the ledger; None if it does not answer."""
        if await self._registrations.of(bookie) is Registration.NOWHERE:
            return Availability([])
        return await self._reads.listed(bookie, ledger_id)

    async def _check_fragment(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        access: LedgerAccess,
        positions: Sequence[int],
        doubts: Collection[Finding],
    ) -> tuple[ReplicaFinding, ...]:
        """Return the findings on these positions, in their order."""
        average = GUESSED_BYTES
        if metadata.is_closed and metadata.last_entry_id >= 0:
            average = metadata.length // (metadata.last_entry_id + 1) + access.digest.overhead
        look = Look.at(self._client.context, fragment, access, average)

        async def at(position: int) -> ReplicaFinding:
            own = [each for each in doubts if each.bookie == fragment.ensemble[position]]
            return await self._check_position(look, position, own)

        # The first error ends them all: no look reads on when its lock is gone.
        return tuple(await bounded(positions, at))

    async def _check_position(
        self, look: Look, position: int, doubts: Collection[Finding], *, whole: bool = False
    ) -> ReplicaFinding:
        """`doubts`: the findings on this bookie; `whole`: read every entry."""
        fragment, reads = look.fragment, look.reads
        bookie, entries = fragment.ensemble[position], fragment.entries_of(position)
        # If nothing is read, only this look-up finds out that the bookie has gone.
        if await self._registrations.of(bookie, asked_now=not len(entries)) is Registration.NOWHERE:
            return ReplicaFinding(position, bookie, ReplicaVerdict.LOST, None, "registered nowhere")
        if not len(entries):
            return ReplicaFinding(position, bookie, ReplicaVerdict.EMPTY)
        named, percentage, doubtful = entries_to_read(doubts), self.options.verification_percentage, None
        if named is None or whole:
            percentage = 100
        elif doubts and percentage < 100:
            listed = await self._reads.listed(bookie, fragment.ledger_id)
            if listed is None:
                percentage = 100
            else:
                doubtful = await first_missing(entries, listed)
        sample = sampled(entries, percentage, self._client.context.random)
        ids = _once(merge(sample, _named_entries(fragment, position, named or ())))
        # It says so itself, or has it by now. It is read alone: what is asked for together has to ascend.
        first = [] if doubtful is None else [doubtful]
        in_batches = max(1, min(CHUNK_ENTRIES, CHUNK_BYTES // look.average))
        doubt: ReplicaFinding | None = None
        while True:
            # Until the bookie has shown that it knows batches no more than may be asked for one by one.
            knows = (percentage == 100 or bool(named)) and reads.may_batch(bookie, proven=True)
            chunk = first or list(islice(ids, in_batches if knows else min(CHUNK_SINGLES, self.options.max_reads)))
            first = []
            if not chunk:
                break
            for entry_id, error in (await self._reads.read(look, bookie, chunk))[1].items():
                finding = ReplicaFinding(position, bookie, verdict_of(error), entry_id, str(error))
                if finding.verdict.is_bad:
                    return finding
                doubt = doubt or finding
            if doubt is not None:
                return doubt
        if doubtful is not None:  # it came meanwhile, and what else the list lacked may not have come yet
            listed = await self._reads.listed(bookie, fragment.ledger_id)
            if listed is None or await first_missing(entries, listed) is not None:
                return await self._check_position(look, position, doubts, whole=True)
        differing = await self._differing(look, position, doubts)
        return differing or ReplicaFinding(position, bookie, ReplicaVerdict.GOOD)

    async def _differing(self, look: Look, position: int, doubts: Collection[Finding]) -> ReplicaFinding | None:
        """The first entry, of those that are said to diverge, that differs from another copy, or that has none to be
        compared with; None: there is none."""
        fragment, bookie = look.fragment, look.fragment.ensemble[position]
        runs = [run for each in doubts if each.reason is Reason.DIVERGENT for run in each.runs or (_EVERYTHING,)]
        ids = _named_entries(fragment, position, joined_runs(runs, len(runs) or 1))
        while chunk := list(islice(ids, CHUNK_SINGLES)):
            mine = (await self._reads.read(look, bookie, chunk))[0]
            compared: set[int] = set()
            for other, member in enumerate(fragment.ensemble):
                wanted = [entry_id for entry_id in chunk if entry_id in mine and entry_id in fragment.entries_of(other)]
                if other == position or not wanted:
                    continue
                for entry_id, theirs in (await self._reads.read(look, member, wanted))[0].items():
                    compared.add(entry_id)
                    if look.appended(mine[entry_id]) != look.appended(theirs):
                        said = f"it differs from the copy on {member}"
                        return ReplicaFinding(position, bookie, ReplicaVerdict.DIVERGENT, entry_id, said)
            alone = next((entry_id for entry_id in chunk if entry_id not in compared), None)
            if alone is not None:
                said = "no other copy to compare with can be read"
                return ReplicaFinding(position, bookie, ReplicaVerdict.UNREACHABLE, alone, said)
        return None


def _named_entries(fragment: Fragment, position: int, runs: Runs) -> Iterator[int]:
    """The entries of these runs that striping puts at the position, ascending."""
    sizes = fragment.quorums.ensemble, fragment.quorums.write
    for first, last in runs:
        inside = max(first, fragment.first_entry), min(last, fragment.last_entry)
        yield from StripedEntries(*inside, position, *sizes)


def _once(ids: Iterable[int]) -> Iterator[int]:
    """Yield each of ascending ids once."""
    last: int | None = None
    for each in ids:
        if each != last:
            yield each
        last = each


def _may_have(listed: Availability | None, entry_id: int) -> bool:
    return listed is None or entry_id in listed


def verdict_of(error: PodkeeperError) -> ReplicaVerdict:
    """Return the verdict on a copy whose read failed with this error."""
    if isinstance(error, NotThere):
        return ReplicaVerdict.MISSING
    if isinstance(error, (DigestMismatch, StorageFault)):
        return ReplicaVerdict.DAMAGED
    if isinstance(error, LedgerStateUnknown):
        return ReplicaVerdict.UNTOLD
    return ReplicaVerdict.UNREACHABLE


def sampled(entries: StripedEntries, percentage: int, random: Random) -> Iterator[int]:
    """The first, the last, and of the others one at random of each of as many equal parts as the percentage makes;
    ascending."""
    count = len(entries)
    if percentage >= 100:
        yield from entries
        return
    if count:
        yield entries[0]
    parts = count * percentage // 100
    for part in range(parts):
        index = random.randrange(part * count // parts, (part + 1) * count // parts)
        if 0 < index < count - 1:
            yield entries[index]
    if count > 1:
        yield entries[-1]


async def known_end(
    client: Client, metadata: LedgerMetadata, digest: DigestManager
) -> tuple[int, PodkeeperError | None]:
    """Return the last known entry of a ledger: of an open one its last add confirmed, or if no bookies tell that, the
    last entry that the metadata confirm, with the error. Raises `MetadataError`.

    Every bookie is heard: one that came back with an empty disk knows of no entry, and may be the first to answer.
    """
    if metadata.is_closed:
        return metadata.last_entry_id, None
    try:
        return await read_last_confirmed(client.context, metadata, digest, hears_all=True), None
    except MetadataError:
        raise
    except PodkeeperError as error:
        return least_lac(metadata), fresh(error)
