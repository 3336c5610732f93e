"""Restoring the replicas of one fragment: new copies on other bookies, or again on the bookie that lost them.

    checker = LedgerChecker(client)
    replicator = FragmentReplicator(client)
    for report in (await checker.check(ledger_id)).bad_fragments:
        await replicator.replicate(report.fragment, report.bad)

Invariants
- Data first, metadata last: the ensemble is exchanged, by compare-and-set, only after every entry that striping puts on
  a target was acknowledged by it as durable, and its last one was read back.
- Surplus copies are collected where no metadata name their bookie and no client holds the ledger's lock. So the
  exchange is made in the session that holds the lock (`session_id`), and the new copies are listed once more when they
  are named; if some have gone, the exchange is taken back.
- A bookie that the exchange names is registered afterwards, or the ledger is marked: an audit of the lost bookie may
  have passed this ledger before.
- Copies are the bytes of a replica whose digest was verified: header, LAC and length are those of the writer.
- A fragment that its writer may still change keeps its bookies (`LedgerNotClosed`). Its confirmed entries may be filled
  in again on the bookies that it names: no writer and no recovery changes what was acknowledged.
- An entry counts as unreadable only when every bookie of its write set was asked, those to be replaced among them. Then
  nothing of the fragment is exchanged, and the ledger stays as it was.
- What is under way is bounded in bytes, over all fragments that one replicator copies at the same time.

Surplus copies of an attempt that failed are removed by the garbage collection of the bookies that hold them. Event loop
only.

Source: docs/internals/auto-recovery.md, section 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bookie_client.access import LedgerAccess, replica_access
from bookie_client.client import Client
from bookie_client.metadata_update import read_same
from bookie_client.replication.copying import CopyLimits, FragmentCopy, TargetFailed, unreadable_error
from bookie_client.replication.exchange import NewCopies, exchange_bookies, stored_fragment
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.lists import Lists, first_missing
from bookie_client.replication.source_reads import Outcome, SourceReads
from bookie_client.replication.targets import (
    Leaving,
    Targets,
    check_in_place,
    check_still_targets,
    choose_mending,
    choose_targets,
    unregistered,
)
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BadRequest,
    CopyLost,
    LedgerDeleted,
    MetadataNotFound,
    MetadataVersionConflict,
    NoSuchLedger,
    NotEnoughBookies,
    PodkeeperError,
    fresh,
)
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.findings import absences
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned

_log = get_logger(__name__)

MIB: Final = 1024 * 1024
TARGET_TRIES: Final = 3
"""Choices of targets for one fragment: another bookie in the place of one that fails while it is copied to."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of one fragment. `entries_total`: different entries that some target needs; `nbytes` as stored."""

    ledger_id: int
    first_entry: int
    entries: int
    entries_total: int
    nbytes: int


ProgressListener = Callable[[CopyProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Options of a replicator."""

    entry_batch_size: int = 2_000
    """Maximum entries of one read (`rereplicationEntryBatchSize`, whose default is 10). Several reads are under way."""
    max_bytes_in_flight: int = 32 * MIB
    """Bytes read and not yet stored everywhere, over all fragments of this replicator."""
    throttle: ReplicationThrottle = field(default_factory=ReplicationThrottle)
    batch_reads: bool = True
    """Read many entries by one request, where ensemble size = write quorum (`recoveryBatchReadEnabled`)."""
    progress: ProgressListener | None = None
    """Callback after each piece."""
    digest: DigestType | None = None
    """Digest type of ledgers that recorded none; None: only their ids are verified."""
    password: bytes = b""
    """Password of ledgers that recorded none."""

    def __post_init__(self) -> None:
        for name in ("entry_batch_size", "max_bytes_in_flight"):
            if getattr(self, name) < 1:
                raise BadRequest(f"replication option {name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """The outcome of a replication.

    `ensemble`: the segment's, as stored now; `entries`: different ones that were copied; `nbytes`: of all copies.
    `unfilled`: bad positions that keep their bookie for want of a spare, and why.
    """

    ensemble: Ensemble
    entries: int
    nbytes: int
    unfilled: Mapping[int, str] = field(default_factory=dict)


class FragmentReplicator:
    """Copies fragments, any number at the same time, within one budget of bytes."""

    def __init__(self, client: Client, options: ReplicationOptions | None = None) -> None:
        self._client = client
        self.options = options = options or ReplicationOptions()
        self._leaving = Leaving(client)
        self._lists = Lists(client.operations.entries_of_ledger, options.throttle)
        self._copies = NewCopies(client, self._lists, options.throttle)
        self._limits = CopyLimits.of(
            options.max_bytes_in_flight, options.throttle, options.entry_batch_size, options.batch_reads
        )

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        in_place: Collection[int] = (),
        by_lists: bool = False,
        excluded: Mapping[str, str] | None = None,
        session_id: int | None = None,
        progress: ProgressListener | None = None,
    ) -> ReplicationResult:
        """Make new copies of the entries that striping puts on the bad positions (position -> bookie), and
        exchange them.

        `in_place`: positions of `bad` whose bookie is registered, writable and lost its copies: it is filled again, and
        the metadata stay as they are. `by_lists`: if no bookie is exchanged, these only get the entries from the first
        one on that they lack by their own lists. `excluded`: bookies that are no targets, and why, beside those being
        decommissioned. A bad bookie is asked for entries too, when no other has them. `session_id`: the one that holds
        the ledger's lock; None: no other client repairs or collects this ledger.

        If there are spares for some bad positions only, these are filled, and the result names the others. Bookies are
        filled in place whether or not there is a spare for the other positions.

        Raises `LedgerNotClosed` (the fragment may still grow), `NotEnoughBookies` (no spare at all),
        `EntriesUnreadable` (it names them; nothing was exchanged), `BookieUnavailable` and other errors of a target
        (when others failed too, or there are no others), `MetadataVersionConflict` (the segment is not what it was:
        check again), `LedgerDeleted`, `SessionEnded` (the lock is gone), `MetadataUnavailable`, `BadRequest`.
        """
        stored, fragment = await self._now(fragment, may_grow=set(in_place) >= bad.keys())
        _check_named(fragment, bad)
        if not bad.keys() >= set(in_place):
            raise BadRequest(f"positions {sorted(in_place)} are to be filled in place, and {sorted(bad)} are bad")
        refilled = {position: bad[position] for position in in_place}
        exchanged = {position: bookie for position, bookie in bad.items() if position not in refilled}
        await check_in_place(self._client, refilled)

        async def choose(left_out: Mapping[str, str]) -> Targets:
            if not exchanged:
                return Targets({}, {})
            try:
                return await choose_targets(self._client, self._leaving, fragment, exchanged, left_out)
            except NotEnoughBookies as error:
                if not refilled:
                    raise
                return Targets({}, dict.fromkeys(exchanged, str(error)))

        job = _Job(stored, fragment, refilled, frozenset(bad), session_id, progress, by_lists)
        return await self._carry_out(job, choose, excluded or {})

    async def mend(
        self,
        fragment: Fragment,
        bad: Mapping[int, str] | None = None,
        *,
        session_id: int | None = None,
        progress: ProgressListener | None = None,
    ) -> ReplicationResult:
        """Exchange as few bookies as it takes for the ensemble to obey the placement policy, and the bad ones.

        Does nothing if it obeys already. Raises as `replicate`; `NotEnoughBookies` also when no exchange helps.
        """
        stored, fragment = await self._now(fragment, may_grow=False)
        _check_named(fragment, bad or {})

        async def choose(left_out: Mapping[str, str]) -> Targets:
            return await choose_mending(self._client, self._leaving, fragment, bad or {}, left_out)

        job = _Job(stored, fragment, {}, frozenset(bad or {}), session_id, progress)
        return await self._carry_out(job, choose, {})

    async def ask_for(self, fragment: Fragment, entry_ids: Collection[int]) -> None:
        """Ask for these entries before a fragment is tried as a whole.

        Raises `EntriesUnreadable` if no replica gives some of them at present, and as `replicate` does for a fragment
        that is not what it was.
        """
        stored, fragment = await self._now(fragment, may_grow=True)
        sources = self._sources(fragment, self._access(stored.value), frozenset())
        inside = sorted(entry for entry in set(entry_ids) if fragment.first_entry <= entry <= fragment.last_entry)
        requests = sources.requests(inside)
        await self.options.throttle.read(0, requests)
        outcome = await sources.read(inside, 0, self._client.context.options.batch_read_bytes)
        self.options.throttle.correct_read(outcome.nbytes, outcome.requests - requests)
        lost = {entry: outcome.errors.get(entry, {}) for entry in inside if entry not in outcome.found}
        if lost:
            raise unreadable_error(fragment.ledger_id, lost)

    # --- inside ---------------------------------------------------------------------------------------------

    async def _now(self, fragment: Fragment, *, may_grow: bool) -> tuple[Versioned[LedgerMetadata], Fragment]:
        stored = await self._client.stored_metadata(fragment.ledger_id)
        return stored, stored_fragment(stored.value, fragment, may_grow=may_grow)

    def _access(self, metadata: LedgerMetadata) -> LedgerAccess:
        return replica_access(metadata, self.options.digest, self.options.password)

    def _sources(self, fragment: Fragment, access: LedgerAccess, replaced: Collection[int]) -> SourceReads:
        return SourceReads(self._client.context, fragment, access, replaced, batch_reads=self.options.batch_reads)

    async def _carry_out(
        self, job: _Job, choose: Callable[[Mapping[str, str]], Awaitable[Targets]], excluded: Mapping[str, str]
    ) -> ReplicationResult:
        """Copy and exchange; other targets are chosen in the place of those that fail, a few times."""
        left_out = dict(excluded)
        failure: PodkeeperError | None = None
        for _ in range(TARGET_TRIES):
            try:
                targets = await choose(left_out)
                return await self._restore(job, targets)
            except NotEnoughBookies as error:
                raise fresh(failure or error) from None
            except TargetFailed as failed:
                failure = failed.error
                if isinstance(failure, NoSuchLedger):
                    await self._check_life(job)
                if failed.bookie in job.refilled.values():
                    break
                left_out[failed.bookie] = f"it failed just now: {failure}"
                _log.warning("target failed", ledger=job.fragment.ledger_id, bookie=failed.bookie, error=str(failure))
        assert failure is not None
        raise fresh(failure)

    async def _check_life(self, job: _Job) -> None:
        """A target says that the ledger was deleted. Raises `LedgerDeleted` or `MetadataReplaced` if it was."""
        ledger_id = job.fragment.ledger_id
        try:
            await read_same(self._client.metadata_service.ledgers, LedgerLife.of(job.stored))
        except MetadataNotFound as error:
            raise LedgerDeleted(f"ledger {ledger_id} was deleted while it was copied") from error

    async def _restore(self, job: _Job, targets: Targets) -> ReplicationResult:
        stored, fragment, refilled = job.stored, job.fragment, job.refilled
        entries = nbytes = 0
        receivers = {
            position: bookie
            for position, bookie in {**targets.chosen, **refilled}.items()
            if len(fragment.entries_of(position))
        }
        access = self._access(stored.value)
        sources = self._sources(fragment, access, job.bad)
        if receivers:
            part = await self._lacking(fragment, receivers) if job.by_lists and not targets.chosen else fragment
            copy = self._copy(stored, part, access, sources, receivers, job.progress)
            await copy.run()
            await self._read_back(fragment, sources, receivers)
            entries, nbytes = copy.entries, copy.nbytes
        ensemble = fragment.ensemble
        if targets.chosen:
            await check_still_targets(self._client, self._leaving, set(targets.chosen.values()))
            ensemble = await exchange_bookies(self._client, stored, fragment, targets.chosen, job.session_id)
            await self._after_the_exchange(job, targets.chosen, receivers)
        _log.debug(
            "fragment restored",
            ledger=fragment.ledger_id,
            first_entry=fragment.first_entry,
            exchanged={fragment.ensemble[position]: bookie for position, bookie in targets.chosen.items()},
            refilled=sorted(refilled.values()),
            entries=entries,
            nbytes=nbytes,
        )
        return ReplicationResult(ensemble, entries, nbytes, targets.unfilled)

    async def _lacking(self, fragment: Fragment, refilled: Mapping[int, str]) -> Fragment:
        """Return the fragment from the first entry on that one of these bookies lacks; whole if one does not tell.

        A bookie that was away while its ledger was written lacks a few entries of what may be a very long segment.
        """
        firsts = []
        for position, bookie in refilled.items():
            try:
                listed = await self._lists.of(bookie, fragment.ledger_id)
            except PodkeeperError:
                return fragment
            first = None if listed is None else await first_missing(fragment.entries_of(position), listed)
            if first is None:
                return fragment  # it tells nothing, or a read said that one is missing
            firsts.append(first)
        return replace(fragment, first_entry=min(firsts))

    def _copy(
        self,
        stored: Versioned[LedgerMetadata],
        fragment: Fragment,
        access: LedgerAccess,
        sources: SourceReads,
        receivers: Mapping[int, str],
        progress: ProgressListener | None,
    ) -> FragmentCopy:
        average, metadata = None, stored.value
        if metadata.is_closed and metadata.last_entry_id >= 0:
            average = metadata.length // (metadata.last_entry_id + 1) + access.digest.overhead
        listeners = [told for told in (self.options.progress, progress) if told is not None]
        total = _different_entries(fragment, receivers)

        def told(entries: int, nbytes: int) -> None:
            state = CopyProgress(fragment.ledger_id, fragment.first_entry, entries, total, nbytes)
            for listener in listeners:
                listener(state)

        context, life = self._client.context, LedgerLife.of(stored)
        return FragmentCopy(context, life, fragment, access, sources, receivers, self._limits, average, told)

    async def _after_the_exchange(self, job: _Job, chosen: Mapping[int, str], receivers: Mapping[int, str]) -> None:
        """Raises `TargetFailed` when the exchange was taken back, because copies had been collected before it."""
        ledger_id = job.fragment.ledger_id
        gone = await unregistered(self._client, set(chosen.values()))
        if gone:
            _log.warning("bookies that got new copies are gone", ledger=ledger_id, bookies=sorted(gone))
            marks = self._client.metadata_service.under_replication
            await marks.mark(ledger_id, ctime_ms=None, findings=absences(sorted(gone)))
        try:
            for position, bookie in receivers.items():
                if bookie not in gone:
                    await self._copies.check(job.fragment, position, bookie)
        except TargetFailed:
            now = replace(job.fragment, ensemble=_exchanged(job.fragment.ensemble, chosen))
            back = {position: job.fragment.ensemble[position] for position in chosen}
            stored = await read_same(self._client.metadata_service.ledgers, LedgerLife.of(job.stored))
            await exchange_bookies(self._client, stored, now, back, job.session_id)
            raise

    async def _read_back(self, fragment: Fragment, sources: SourceReads, receivers: Mapping[int, str]) -> None:
        """Read the last entry back from each target. Raises `TargetFailed`."""
        for position, bookie in receivers.items():
            last = fragment.entries_of(position)[-1]
            await self.options.throttle.read(0)
            outcome = Outcome()
            await sources.read_from(bookie, [last], self._client.context.options.batch_read_bytes, outcome)
            if last not in outcome.found:
                error = outcome.errors[last][bookie]
                said = f"the new copy of entry {last} on {bookie} cannot be read back: {error}"
                raise TargetFailed(bookie, CopyLost(said)) from error


@dataclass(frozen=True, slots=True)
class _Job:
    """One fragment to be restored. `refilled`: positions whose bookie is filled again; `bad`: all bad positions."""

    stored: Versioned[LedgerMetadata]
    fragment: Fragment
    refilled: Mapping[int, str]
    bad: Collection[int]
    session_id: int | None
    progress: ProgressListener | None
    by_lists: bool = False


def _exchanged(ensemble: Ensemble, chosen: Mapping[int, str]) -> Ensemble:
    return tuple(chosen.get(position, bookie) for position, bookie in enumerate(ensemble))


def _check_named(fragment: Fragment, bad: Mapping[int, str]) -> None:
    for position, bookie in bad.items():
        if not 0 <= position < len(fragment.ensemble) or fragment.ensemble[position] != bookie:
            raise MetadataVersionConflict(
                f"ledger {fragment.ledger_id}: position {position} of the segment from entry {fragment.first_entry} "
                f"does not name {bookie}; check the ledger again"
            )


def _different_entries(fragment: Fragment, positions: Collection[int]) -> int:
    """Entries that at least one of the positions holds."""
    quorums = fragment.quorums
    periods, rest = divmod(fragment.count, quorums.ensemble)
    held = [
        any(quorums.holds(position, fragment.first_entry + place) for position in positions)
        for place in range(quorums.ensemble)
    ]
    return periods * sum(held) + sum(held[:rest])
