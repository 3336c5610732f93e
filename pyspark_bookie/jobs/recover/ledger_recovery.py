"""Restoring one ledger: lock it, see what is lost now, copy, exchange, verify, settle its mark.

Invariants
- All work on a ledger is done under its lock of the under-replication tree: replication workers, the garbage collection
  of bookies and other runs keep off it meanwhile. The lock is given back whatever happens, or ends with the session.
- What a report says is inspected again under the lock; only what is lost now is copied.
- Data first, metadata last (`FragmentReplicator`). A ledger counts as recovered only when the new copies were inspected
  afterwards.
- A ledger that is not closed is closed, which fences its writer, only if that was asked for and its last segment needs
  new copies.
- A bookie of the last segment of an open ledger that lost entries of earlier ones, or does not tell, is named by the
  ledger's mark before these are restored: a worker looks at all that it has.
- A mark goes by the one rule of healing (`bookie_client.healing`): all that it asks for was answered by a look. The
  outcome of the ledger is reported whether its mark could be checked or not.

Idempotent: the next run finds what was done. Event loop only.

Source: docs/internals/auto-recovery.md, sections 6 to 9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_client.client import Client
from bookie_client.healing.fragment_repair import FragmentRepair
from bookie_client.healing.settling import settle
from bookie_client.replication.check import FAULTS, CheckOptions, LedgerChecker, ReplicaVerdict
from bookie_client.replication.closing import close_checked, mark_losses
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.replicator import FragmentReplicator, ReplicationResult
from bookie_client.replication.targets import unregistered
from bookie_protocol.errors import (
    EntriesUnreadable,
    LedgerDeleted,
    LedgerNotClosed,
    MetadataError,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service import findings as reasons
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.under_replication import LedgerLock
from bookie_protocol.shown import one_line
from bookie_protocol.versioned import LedgerLife
from pyspark_bookie.jobs.replicas.findings import LONGEST_DETAIL, Finding, Verdict, clusters
from pyspark_bookie.jobs.replicas.inspection import Inspector

if TYPE_CHECKING:
    import pyarrow as pa


class State(Enum):
    """The state of a ledger after a run. Reports contain the value."""

    RECOVERED = "RECOVERED"
    """New copies were made and verified, and the metadata name them."""
    NOTHING_TO_DO = "NOTHING_TO_DO"
    """Another client did it before, or a bookie came back with its copies."""
    DELETED = "DELETED"
    PLANNED = "PLANNED"
    """It would be worked on (dry run)."""
    NOT_BEGUN = "NOT_BEGUN"
    """The time was up; the next run goes on here."""
    LOCKED = "LOCKED"
    """A replication worker works on it."""
    OPEN = "OPEN"
    """Its remaining losses are in the segment that its writer may still change; `--include-open` closes it."""
    NO_SPARE = "NO_SPARE"
    """There is no bookie for the new copies."""
    UNRECOVERABLE = "UNRECOVERABLE"
    """Entries that no registered bookie has; nothing of their segment was changed."""
    FAILED = "FAILED"
    """It failed for another reason; another run tries again."""

    @property
    def is_left_over(self) -> bool:
        """A person, or another run, has to see to it."""
        return self not in (State.RECOVERED, State.NOTHING_TO_DO, State.DELETED)


_WORST_FIRST: Final = (
    State.UNRECOVERABLE,
    State.FAILED,
    State.NO_SPARE,
    State.OPEN,
    State.LOCKED,
    State.RECOVERED,
    State.NOTHING_TO_DO,
)


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """One row. `segments` were restored, with `entries` different entries and `nbytes` of all copies."""

    ledger_id: int
    state: State
    segments: int = 0
    entries: int = 0
    nbytes: int = 0
    detail: str = ""


def worst(states: Iterable[State]) -> State:
    """Return the state of a ledger whose segments came to these."""
    found = set(states)
    return next((state for state in _WORST_FIRST if state in found), State.NOTHING_TO_DO)


def table_of(outcomes: Iterable[LedgerOutcome]) -> pa.Table:
    """The detail report."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("ledger_id", pa.int64()),
            ("state", pa.string()),
            ("segments", pa.int32()),
            ("entries", pa.int64()),
            ("bytes", pa.int64()),
            ("detail", pa.string()),
        ]
    )
    return pa.Table.from_pylist([_row(outcome) for outcome in outcomes], schema=schema)


def _row(outcome: LedgerOutcome) -> dict[str, Any]:
    row = asdict(outcome)
    row["state"] = outcome.state.value
    row["bytes"] = row.pop("nbytes")
    return row


@dataclass(frozen=True, slots=True)
class LedgerWork:
    """The work on a ledger. `bookies`: replace these wherever it names them. `findings`: restore what these say."""

    ledger_id: int
    nbytes: int
    bookies: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """Whose copies it is about."""
        return self.bookies or frozenset(finding.bookie for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Options of a recovery; times in seconds."""

    include_open: bool = False
    lock_wait: float = 60.0
    password: bytes | None = None
    """Password for closing ledgers; None: what each recorded."""


@dataclass(slots=True)
class _Tally:
    states: list[State] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    segments: int = 0
    entries: int = 0
    nbytes: int = 0

    def add(self, state: State, reason: object) -> None:
        self.states.append(state)
        self.reasons.append(one_line(reason, LONGEST_DETAIL))

    def copied(self, done: ReplicationResult) -> None:
        self.entries += done.entries
        self.nbytes += done.nbytes

    def outcome(self, ledger_id: int) -> LedgerOutcome:
        detail = "; ".join(self.reasons[:3])
        return LedgerOutcome(ledger_id, worst(self.states), self.segments, self.entries, self.nbytes, detail)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The work on one ledger under its lock."""

    lock: LedgerLock
    work: LedgerWork
    tally: _Tally


class LedgerRecovery:
    """Recovers ledgers, any number at a time but each once. `inspector` inspects what is there now,
    `verifier` what was copied."""

    def __init__(
        self,
        client: Client,
        replicator: FragmentReplicator,
        inspector: Inspector,
        verifier: Inspector,
        options: RecoveryOptions,
    ) -> None:
        self._client = client
        self._replicator = replicator
        self._checker = LedgerChecker(client, CheckOptions(password=options.password or b""))
        self._inspector = inspector
        self._verifier = verifier
        self._options = options
        self._marks = client.metadata_service.under_replication
        self._guard = LedgerGuard(client.metadata_service)

    async def recover(self, work: LedgerWork) -> LedgerOutcome:
        """Recover a ledger. A failure is the outcome of this ledger; only cancellation is raised."""
        try:
            lock = await self._guard.lock(work.ledger_id, wait=self._options.lock_wait)
            if lock is None:
                detail = f"a replication worker on {await self._guard.holder(work.ledger_id)} has its lock"
                return LedgerOutcome(work.ledger_id, State.LOCKED, detail=detail)
            async with self._guard.holding(lock):
                return await self._recover(work, lock)
        except PodkeeperError as error:
            return LedgerOutcome(work.ledger_id, State.FAILED, detail=one_line(error, LONGEST_DETAIL))

    async def _recover(self, work: LedgerWork, lock: LedgerLock) -> LedgerOutcome:
        try:
            outcome = await self._guard.work(lock, self._under_lock(work, lock))
            if not outcome.state.is_left_over:
                await self._settle(lock)
            return outcome
        except LedgerDeleted:
            with suppress(MetadataError):  # the next worker that takes the mark finds that out
                await self._guard.remove_mark(lock)
            return LedgerOutcome(work.ledger_id, State.DELETED)

    async def _settle(self, lock: LedgerLock) -> None:
        """Remove the mark, if all that it asks for is answered. If that is unknown it stays for the next repair;
        the outcome of the ledger is reported in any case."""
        try:
            await settle(self._client.metadata_service, lock, self._checker)
        except LedgerDeleted:
            raise
        except PodkeeperError:
            return

    # --- under the lock ---------------------------------------------------------------------------------------

    async def _under_lock(self, work: LedgerWork, lock: LedgerLock) -> LedgerOutcome:
        tally = _Tally()
        stored = await self._client.stored_metadata(work.ledger_id)
        metadata = stored.value
        bad, untold = await self._lost_now(work, metadata)
        last = metadata.first_entry_ids[-1]
        if not metadata.is_closed and last in bad:
            if self._options.include_open:
                password = self._options.password
                metadata = await close_checked(self._client, self._checker, LedgerLife.of(stored), password)
                bad, untold = await self._lost_now(work, metadata)
            else:
                del bad[last]
                tally.add(State.OPEN, f"it is {metadata.state.value}, and its last segment needs new copies")
        for reason in untold:
            tally.add(State.FAILED, reason)
        if not metadata.is_closed and bad:
            await self._mark_members_that_lost(metadata, bad, work.bookies)
        for fragment in fragments(work.ledger_id, metadata, -1):
            lost = bad.get(fragment.first_entry)
            if lost and (receivers := await self._restore(fragment, lost, _Turn(lock, work, tally))):
                await self._verify(fragment, receivers, tally)
        return tally.outcome(work.ledger_id)

    async def _mark_members_that_lost(
        self, metadata: LedgerMetadata, bad: Mapping[int, Mapping[int, ReplicaVerdict]], leaving: Collection[str]
    ) -> None:
        """Name bookies of the last segment that lost entries of earlier ones in the ledger's mark. Once these are
        restored nothing else tells, and they would be believed about the end of the ledger."""
        if members := frozenset(leaving).intersection(metadata.last_ensemble):
            await mark_losses(self._client, self._checker, metadata.ledger_id, members)
            return
        findings = [
            reasons.Finding(bookie, reasons.Reason.MISSING, ((first, first),))
            if verdict in FAULTS
            else reasons.Finding(bookie, reasons.Reason.ABSENT)
            for first, positions in bad.items()
            for at, verdict in positions.items()
            if (bookie := metadata.ensemble_for(first)[at]) in metadata.last_ensemble
        ]
        if findings:
            await self._marks.mark(metadata.ledger_id, ctime_ms=None, findings=findings)

    async def _lost_now(
        self, work: LedgerWork, metadata: LedgerMetadata
    ) -> tuple[dict[int, dict[int, ReplicaVerdict]], list[str]]:
        """Return the positions that need a new copy, and why, by the first entry of their segment, and a line for each
        reported copy that cannot be checked now, and is not made again as a whole."""
        if work.bookies:
            leaving = {
                part.first_entry: dict.fromkeys(positions, ReplicaVerdict.LOST)
                for part in fragments(work.ledger_id, metadata, -1)
                if (positions := [at for bookie in sorted(work.bookies) for at in part.positions(bookie)])
            }
            return leaving, []
        bad: dict[int, dict[int, ReplicaVerdict]] = {}
        untold: list[Finding] = []
        reported = {(each.fragment, each.bookie) for each in work.findings}
        divergent = {(each.fragment, each.bookie) for each in work.findings if each.verdict is Verdict.DIVERGENT}
        for first, last in clusters(work.findings):
            inspection = await self._inspector.inspect(work.ledger_id, bookies=work.named, first=first, last=last)
            for found in inspection.findings:
                if found.verdict.is_copy_lost:
                    of_segment = bad.setdefault(found.fragment, {})
                    # What is only missing is copied by lists, which would leave what is damaged as well.
                    if of_segment.get(found.position, ReplicaVerdict.MISSING) is ReplicaVerdict.MISSING:
                        of_segment[found.position] = ReplicaVerdict[found.verdict.name]
                elif found.verdict is Verdict.UNKNOWN:
                    untold.append(found)
                elif found.verdict is Verdict.UNREACHABLE and (found.fragment, found.bookie) in reported:
                    untold.append(replace(found, detail=f"bookie {found.bookie} cannot tell now: {found.detail}"))
        for part in fragments(work.ledger_id, metadata, -1):
            for first, bookie in divergent:
                # Which replica is the wrong one only a comparison tells: the report made it.
                if part.first_entry == first:
                    bad.setdefault(first, {}).update(dict.fromkeys(part.positions(bookie), ReplicaVerdict.DIVERGENT))
        # A copy with missing entries is only filled in place, which would leave what its bookie cannot tell.
        remade = {
            (first, at) for first, of in bad.items() for at, why in of.items() if why is not ReplicaVerdict.MISSING
        }
        reasons_left = [each.detail for each in untold if (each.fragment, each.position) not in remade]
        return {first: positions for first, positions in bad.items() if positions}, reasons_left

    async def _restore(self, fragment: Fragment, lost: Mapping[int, ReplicaVerdict], turn: _Turn) -> frozenset[str]:
        """Return the bookies that got new copies."""
        tally = turn.tally
        repair = FragmentRepair(
            replicator=self._replicator,
            session_id=turn.lock.session_id,
            written=tally.copied,
            leaving=dict.fromkeys(turn.work.bookies, "it is being replaced"),
        )
        try:
            receivers, left = await repair.restore(fragment, lost, await self._client.writable_bookies())
        except EntriesUnreadable as error:
            may_have = error.silent | error.untold
            may_have -= await unregistered(self._client, may_have)
            tally.add(State.FAILED if may_have else State.UNRECOVERABLE, error)
        except LedgerNotClosed as error:
            tally.add(State.OPEN, error)
        except LedgerDeleted:
            raise
        except PodkeeperError as error:
            tally.add(State.NO_SPARE if isinstance(error, NotEnoughBookies) else State.FAILED, error)
        else:
            if left:
                tally.add(State.NO_SPARE, "; ".join(dict.fromkeys(left.values())))
            if receivers:
                tally.segments += 1
                tally.states.append(State.RECOVERED)
            return receivers
        return frozenset()

    async def _verify(self, fragment: Fragment, receivers: Collection[str], tally: _Tally) -> None:
        """Inspect the new copies; report the first fault."""
        if not fragment.count:
            return
        ledger_id, first = fragment.ledger_id, fragment.first_entry
        inspection = await self._verifier.inspect(ledger_id, bookies=receivers, first=first, last=fragment.last_entry)
        wrong = [each for each in inspection.findings if each.fragment == first and each.verdict is not Verdict.EXTRA]
        for found in wrong[:1]:
            where = f"entries {found.first_entry} to {found.last_entry} of the new copy on {found.bookie}"
            tally.add(State.FAILED, f"{where} are {found.verdict.value}: {found.detail}")
