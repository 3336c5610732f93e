"""Checking a ledger: which of its replicas are there; the outcome, a verdict on each replica of each fragment; and
closing a ledger whose writer is gone by what a check found (`close_checked`), on behalf of healing: fence it, find its
end, and write that down.

    report = await LedgerChecker(client, CheckOptions(verification_percentage=10)).check(ledger_id)
    for fragment in report.bad_fragments:
        print(fragment.fragment.first_entry, fragment.bad)

Of each position the first and the last entry that striping puts there are read from exactly that bookie, and of those
between them as many percent as asked for, one at random of each equal part. Of bookies in doubt (`complete`) nothing is
left out: their lists of entries are compared with striping, and where they give none every entry is read.

A reader who recovers a ledger believes a bookie that says "no such entry". Who heals has to be more careful: it is
called because bookies were lost, and one that came back under its id with empty disks denies entries which were
acknowledged. With its word, and that of bookies which never got them, a ledger could be closed below them. So the
ledger is checked first, and whoever denies entries that were confirmed, or gives them damaged, is not believed about
any other: then the recovery fails rather than cuts off, and the ledger stays IN_RECOVERY until somebody who knows is
back.

Replication workers, decommissions, `recover`, the data integrity check and the Spark jobs close ledgers in this way and
in no other.

Invariants
- A bookie that does not answer, or cannot tell, is unreachable and never bad. Only its own word, its absence from the
  registry (see `bookies.Registrations`) or bytes that are not the entry make a replica bad.
- Digests are verified with the password that the ledger recorded. Where none is recorded, ids alone are compared.
- Entries behind the last add confirmed of an open ledger are not looked at: they are their writer's.
- Total loss is told: every position that should hold an entry and denies it is MISSING, also where the segment has but
  this one entry.
- At most `max_reads` reads are under way, and all pass the throttle.

Event loop only.

Source: reference auto-recovery, sections 5 and 6.3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from random import Random
from typing import Final

from bookie_client.access import LedgerAccess, access_to, replica_access
from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.reading.lac import least_lac, read_last_confirmed
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.replication.fragments import Fragment, StripedEntries, fragments
from bookie_client.replication.source_reads import Outcome, Patience, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_client.writing.window import Window
from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    DigestMismatch,
    MetadataError,
    NotThere,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.wire.availability import Availability


class ReplicaVerdict(Enum):
    """What a bookie's copies at one position of a fragment are worth."""

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
    UNREACHABLE = "unreachable"
    """Registered, and does not answer, or answers that it cannot tell: never counted as missing."""

    @property
    def is_bad(self) -> bool:
        """A new copy is wanted."""
        return self in (ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED, ReplicaVerdict.LOST)


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
        """Positions about which nobody can tell, and their bookies."""
        unreachable = ReplicaVerdict.UNREACHABLE
        return {found.position: found.bookie for found in self.findings if found.verdict is unreachable}


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
        """Some replica, or the end of an open ledger, could not be looked at: the ledger may be worse than it seems."""
        return self.lac_error is not None or any(report.unknown for report in self.fragments)

    @property
    def is_healthy(self) -> bool:
        """Everything that was looked at is good, and everything could be looked at."""
        return not self.cannot_tell and not self.bad_fragments


CHUNK_ENTRIES: Final = 1_000
"""Entries that are asked for at a time, by batch."""
CHUNK_SINGLES: Final = 64
"""Entries that are asked for at a time, by a request each."""
CHUNK_BYTES: Final = 1024 * 1024
GUESSED_BYTES: Final = 1024
"""Of an entry, where the metadata do not tell."""
LISTS_TO_GIVE_UP: Final = 3
"""A bookie that was silent so often in a row when asked for a list is not asked again: Java's with DbLedgerStorage
never answer."""
YIELD_EVERY: Final = 20_000
"""Entries compared before other tasks get their turn."""
BUSY_TRIES: Final = 4
BUSY_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How thorough a check is."""

    verification_percentage: int = 0
    """Of the entries between the first and the last (`auditorLedgerVerificationPercentage`); 100: all."""
    max_reads: int = 100
    """Reads under way (`inFlightReadEntryNumInLedgerChecker`, where -1 stands for no limit)."""
    throttle: ReplicationThrottle = field(default_factory=ReplicationThrottle)
    digest: DigestType | None = None
    """For ledgers that recorded none; None: of these only ids are verified."""
    password: bytes = b""
    """For ledgers that recorded none."""

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
        # Its unit is the read: a chunk of entries takes as much as it has reads.
        self._window = Window(self.options.max_reads, self.options.max_reads, 0)
        self._silences: Counter[str] = Counter()  # no more than there are bookies

    async def check(self, ledger_id: int, *, complete: Collection[str] = ()) -> LedgerReport:
        """Look at every fragment of a ledger. `complete`: bookies of which every copy is looked for.

        Raises `LedgerDeleted` (it was deleted), `MetadataUnavailable`, `MetadataDamaged`. What single bookies answer is
        in the report.
        """
        options = self.options
        stored = await self._client.stored_metadata(ledger_id)
        metadata = stored.value
        access = replica_access(metadata, options.digest, options.password)
        lac, lac_error = await self._end_of(metadata, access.digest)
        reports = []
        for fragment in fragments(ledger_id, metadata, lac):
            findings = await self._check_fragment(metadata, fragment, access, range(len(fragment.ensemble)), complete)
            reports.append(FragmentReport(fragment, findings))
        return LedgerReport(ledger_id, stored, lac, tuple(reports), lac_error)

    async def check_again(
        self,
        metadata: LedgerMetadata,
        found: FragmentReport,
        positions: Collection[int],
        *,
        complete: Collection[str] = (),
    ) -> FragmentReport:
        """Look at some positions of a fragment again; of the others what was found stays. Raises
        `MetadataUnavailable`."""
        access = replica_access(metadata, self.options.digest, self.options.password)
        anew = await self._check_fragment(metadata, found.fragment, access, sorted(positions), complete)
        by_position = {each.position: each for each in (*found.findings, *anew)}
        return FragmentReport(found.fragment, tuple(by_position[each.position] for each in found.findings))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _end_of(self, metadata: LedgerMetadata, digest: DigestManager) -> tuple[int, PodkeeperError | None]:
        if metadata.is_closed:
            return metadata.last_entry_id, None
        try:
            return await read_last_confirmed(self._client.context, metadata, digest), None
        except MetadataError:
            raise
        except PodkeeperError as error:
            return least_lac(metadata), fresh(error)

    async def _check_fragment(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        access: LedgerAccess,
        positions: Sequence[int],
        complete: Collection[str],
    ) -> tuple[ReplicaFinding, ...]:
        """The findings on these positions, in their order."""
        average = GUESSED_BYTES
        if metadata.is_closed and metadata.last_entry_id >= 0:
            average = metadata.length // (metadata.last_entry_id + 1) + access.digest.overhead
        reads = SourceReads(self._client.context, fragment, access, (), batch_reads=True)
        findings = await asyncio.gather(
            *(
                self._check_position(fragment, position, reads, average, fragment.ensemble[position] in complete)
                for position in positions
            )
        )
        return tuple(findings)

    async def _check_position(
        self, fragment: Fragment, position: int, reads: SourceReads, average: int, complete: bool
    ) -> ReplicaFinding:
        bookie = fragment.ensemble[position]
        entries = fragment.entries_of(position)
        # Where nothing is read nobody else finds out that the bookie has gone.
        if await self._registrations.of(bookie, asked_now=not len(entries)) is Registration.NOWHERE:
            return ReplicaFinding(position, bookie, ReplicaVerdict.LOST, None, "registered nowhere")
        if not len(entries):
            return ReplicaFinding(position, bookie, ReplicaVerdict.EMPTY)
        percentage, doubtful = self.options.verification_percentage, None
        if complete and percentage < 100:
            listed = await self._list(bookie, fragment.ledger_id)
            if listed is None:
                percentage = 100
            else:
                doubtful = await first_missing(entries, listed)
        ids = sampled(entries, percentage, self._client.context.random)
        # It says so itself, or has it by now. It is read alone: what is asked for together has to ascend.
        first = [] if doubtful is None else [doubtful]
        in_batches = max(1, min(CHUNK_ENTRIES, CHUNK_BYTES // average))
        doubt: ReplicaFinding | None = None
        while True:
            # Until the bookie has shown that it knows batches no more than may be asked for one by one.
            knows = percentage == 100 and reads.may_batch(bookie, proven=True)
            chunk = first or list(islice(ids, in_batches if knows else min(CHUNK_SINGLES, self._most)))
            first = []
            if not chunk:
                break
            for entry_id, error in (await self._read(reads, bookie, chunk, average)).items():
                finding = ReplicaFinding(position, bookie, verdict_of(error), entry_id, str(error))
                if finding.verdict.is_bad:
                    return finding
                doubt = doubt or finding
            if doubt is not None:
                return doubt
        return ReplicaFinding(position, bookie, ReplicaVerdict.GOOD)

    async def _list(self, bookie: str, ledger_id: int) -> Availability | None:
        """What the bookie says that it stores of the ledger; None: it does not tell, or has nothing."""
        if self._silences[bookie] >= LISTS_TO_GIVE_UP:
            return None
        await self.options.throttle.read(0)
        try:
            listed = await self._client.operations.entries_of_ledger(bookie, ledger_id)
        except BookieTimeout:
            self._silences[bookie] += 1
            return None
        except PodkeeperError:
            return None
        self._silences.pop(bookie, None)
        return listed

    @property
    def _most(self) -> int:
        return self.options.max_reads

    async def _read(self, reads: SourceReads, bookie: str, ids: list[int], average: int) -> dict[int, PodkeeperError]:
        """What went wrong, by entry, in order; empty if all of these are good."""
        throttle, patience = self.options.throttle, Patience(BUSY_TRIES, BUSY_SECONDS)
        while True:
            requests = reads.requests(ids, bookie)
            at_once = min(requests, self._most)
            await self._window.acquire(at_once)
            try:
                await throttle.read(average * len(ids), requests)
                outcome = Outcome()
                await reads.read_from(bookie, ids, CHUNK_BYTES, outcome, at_once=at_once)
            finally:
                self._window.release(1, at_once)
            throttle.correct_read(outcome.nbytes - average * len(ids), outcome.requests - requests)
            errors = outcome.errors
            said = {entry_id: errors[entry_id][bookie] for entry_id in ids if entry_id in errors}
            busy = any(isinstance(error, TooManyRequests) for error in said.values())
            if any(verdict_of(error).is_bad for error in said.values()) or not (busy and await patience.again()):
                return said


def verdict_of(error: PodkeeperError) -> ReplicaVerdict:
    """What a bookie's answer to a read makes of its copy."""
    if isinstance(error, NotThere):
        return ReplicaVerdict.MISSING
    if isinstance(error, (DigestMismatch, StorageFault)):
        return ReplicaVerdict.DAMAGED
    return ReplicaVerdict.UNREACHABLE


async def first_missing(entries: StripedEntries, listed: Availability) -> int | None:
    """The first entry that the list lacks; None: it has all. The event loop has its turns meanwhile."""
    for looked_at, entry_id in enumerate(entries, 1):
        if entry_id not in listed:
            return entry_id
        if not looked_at % YIELD_EVERY:
            await asyncio.sleep(0)
    return None


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


async def close_checked(client: Client, report: LedgerReport, password: bytes | None = None) -> LedgerMetadata:
    """The metadata of the closed ledger. `report`: of a check a moment ago; `password`: None: what the ledger recorded.

    Raises as `recover_ledger`; after `RecoveryFailed` it can be tried again.
    """
    stored = await client.stored_metadata(report.ledger_id)
    access = access_to(stored.value, password, DigestType.CRC32C)
    return (await recover_ledger(client.context, stored, access, denying(report))).value


def denying(report: LedgerReport) -> frozenset[str]:
    """Bookies that deny, or cannot read, entries which they must have."""
    verdicts = (ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED)
    return frozenset(
        found.bookie for fragment in report.fragments for found in fragment.findings if found.verdict in verdicts
    )
