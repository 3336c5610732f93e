"""Restoring one ledger: lock it, see what is lost now, copy, exchange, verify, settle its mark.

Invariants
- All work on a ledger is done under its lock of the under-replication tree: replication workers, the garbage collection
  of bookies and other runs keep off it meanwhile. The lock is given back whatever happens, or ends with the session.
- What a report says is inspected again under the lock; only what is lost now is copied.
- Data first, metadata last (`FragmentReplicator`). A ledger counts as recovered only when the new copies were inspected
  afterwards.
- A ledger that is not closed is closed, which fences its writer, only if that was asked for and its last segment needs
  new copies.
- A mark goes only if it tells of nothing but what was restored here, and if everything could be seen of the bookies
  that it names: so not as long as one of them is in the last segment of an open ledger. What became of the ledger is
  told whether its mark could be looked at or not.

Idempotent: whatever was done is found done by the next run. Event loop only.

Source: reference auto-recovery, sections 6 to 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_client.client import Client
from bookie_client.replication.check import LedgerChecker, close_checked
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.replicator import FragmentReplicator, ReplicationResult
from bookie_client.replication.source_reads import Patience
from bookie_protocol.errors import (
    EntriesUnreadable,
    LedgerDeleted,
    LedgerNotClosed,
    MetadataError,
    MetadataExists,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.under_replication import LedgerLock
from bookie_protocol.shown import one_line
from pyspark_bookie.jobs.replicas.findings import LONGEST_DETAIL, Finding, Verdict, clusters
from pyspark_bookie.jobs.replicas.inspection import Inspector

if TYPE_CHECKING:
    import pyarrow as pa


class State(Enum):
    """The value stands in reports."""

    RECOVERED = "RECOVERED"
    """New copies were made and verified, and the metadata name them."""
    NOTHING_TO_DO = "NOTHING_TO_DO"
    """Somebody else did it before, or a bookie came back with its copies."""
    DELETED = "DELETED"
    PLANNED = "PLANNED"
    """It would be worked on (dry run)."""
    NOT_BEGUN = "NOT_BEGUN"
    """The time was up; the next run goes on here."""
    LOCKED = "LOCKED"
    """A replication worker works on it."""
    OPEN = "OPEN"
    """What is left of it is in the segment that its writer may still change; `--include-open` closes it."""
    NO_SPARE = "NO_SPARE"
    """There is no bookie for the new copies."""
    UNRECOVERABLE = "UNRECOVERABLE"
    """Entries that no bookie can give; nothing of their segment was changed."""
    FAILED = "FAILED"
    """For another reason; another run tries again."""

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
    """The state of a ledger whose segments came to these."""
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


LOCK_POLL_SECONDS: Final = 0.5
RELEASE_TRIES: Final = 5
RELEASE_SECONDS: Final = 0.5
IN_PLACE: Final = frozenset({Verdict.MISSING, Verdict.DAMAGED, Verdict.DIVERGENT})
"""Faults after which the bookie itself may be filled again, if it is writable and there is no other."""
_UNTOLD: Final = frozenset({Verdict.UNREACHABLE, Verdict.UNKNOWN})


@dataclass(frozen=True, slots=True)
class LedgerWork:
    """What to do of a ledger. `bookies`: replace these wherever it names them. `findings`: restore what these say."""

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
    """How to recover; times in seconds."""

    include_open: bool = False
    lock_wait: float = 60.0
    password: bytes | None = None
    """For closing ledgers; None: what each recorded."""


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
        self._checker = LedgerChecker(client)
        self._inspector = inspector
        self._verifier = verifier
        self._options = options
        self._marks = client.metadata_service.under_replication

    async def recover(self, work: LedgerWork) -> LedgerOutcome:
        """Whatever goes wrong is the outcome of this ledger; only cancellation leaves otherwise."""
        try:
            lock = await self._lock(work.ledger_id)
        except PodkeeperError as error:
            return LedgerOutcome(work.ledger_id, State.FAILED, detail=one_line(error, LONGEST_DETAIL))
        if isinstance(lock, str):
            return LedgerOutcome(work.ledger_id, State.LOCKED, detail=lock)
        settled = False
        try:
            outcome = await self._under_lock(work, lock)
            settled = not outcome.state.is_left_over and await self._mark_is_settled(lock, work)
            return outcome
        except LedgerDeleted:
            settled = True
            return LedgerOutcome(work.ledger_id, State.DELETED)
        except PodkeeperError as error:
            return LedgerOutcome(work.ledger_id, State.FAILED, detail=one_line(error, LONGEST_DETAIL))
        finally:
            await asyncio.shield(self._give_back(lock, settled))

    # --- the lock ---------------------------------------------------------------------------------------------

    async def _lock(self, ledger_id: int) -> LedgerLock | str:
        """The lock, or who has it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.lock_wait
        while True:
            try:
                return await self._marks.lock(ledger_id)
            except MetadataExists:
                if loop.time() >= until:
                    holder = await self._marks.locked_by(ledger_id)
                    return f"a replication worker on {holder or 'another machine'} has its lock"
                await asyncio.sleep(min(LOCK_POLL_SECONDS, max(0.0, until - loop.time())))

    async def _mark_is_settled(self, lock: LedgerLock, work: LedgerWork) -> bool:
        try:
            return lock.mark_version is not None and await self._is_nothing_left(work)
        except LedgerDeleted:
            raise
        except PodkeeperError:
            return False  # nobody can tell: the mark stays, for whoever repairs the ledger next

    async def _is_nothing_left(self, work: LedgerWork) -> bool:
        mark = await self._marks.read(work.ledger_id)
        if mark is None or not mark.replicas:
            return False
        # What was inspected is what the findings name; the mark may be about other segments and entries of a bookie, so
        # all copies of those that are still named are inspected.
        metadata = await self._client.metadata(work.ledger_id)
        named = metadata.all_bookies().intersection(mark.replicas)
        if not named:
            return True
        if not named <= work.named:
            return False
        if not metadata.is_closed and not named.isdisjoint(metadata.last_ensemble):
            return False  # entries behind the last add confirmed may be acknowledged, and are not inspected
        inspection = await self._inspector.inspect(work.ledger_id, bookies=named)
        return not any(found.verdict.is_copy_lost or found.verdict in _UNTOLD for found in inspection.findings)

    async def _give_back(self, lock: LedgerLock, settled: bool) -> None:
        patience = Patience(RELEASE_TRIES, RELEASE_SECONDS)
        while True:
            try:
                if settled and lock.mark_version is not None:
                    await self._marks.mark_replicated(lock)
                else:
                    await self._marks.release(lock)
                return
            except MetadataError:
                if not await patience.again():
                    return  # it ends with the session at the latest

    # --- under the lock ---------------------------------------------------------------------------------------

    async def _under_lock(self, work: LedgerWork, lock: LedgerLock) -> LedgerOutcome:
        tally = _Tally()
        metadata = await self._client.metadata(work.ledger_id)
        bad = await self._lost_now(work, metadata)
        last = metadata.first_entry_ids[-1]
        if not metadata.is_closed and last in bad:
            if self._options.include_open:
                report = await self._checker.check(work.ledger_id)
                metadata = await close_checked(self._client, report, self._options.password)
                bad = await self._lost_now(work, metadata)
            else:
                del bad[last]
                tally.add(State.OPEN, f"it is {metadata.state.value}, and its last segment needs new copies")
        for fragment in fragments(work.ledger_id, metadata, -1):
            lost = bad.get(fragment.first_entry)
            if lost and (receivers := await self._restore(fragment, lost, _Turn(lock, work, tally))):
                await self._verify(fragment, receivers, tally)
        return tally.outcome(work.ledger_id)

    async def _lost_now(self, work: LedgerWork, metadata: LedgerMetadata) -> dict[int, dict[int, Verdict]]:
        """Positions that need a new copy, and why, by first entry of their segment."""
        if work.bookies:
            return {
                part.first_entry: dict.fromkeys(positions, Verdict.LOST)
                for part in fragments(work.ledger_id, metadata, -1)
                if (positions := [at for bookie in sorted(work.bookies) for at in part.positions(bookie)])
            }
        bad: dict[int, dict[int, Verdict]] = {}
        divergent = {(each.fragment, each.bookie) for each in work.findings if each.verdict is Verdict.DIVERGENT}
        for first, last in clusters(work.findings):
            inspection = await self._inspector.inspect(work.ledger_id, bookies=work.named, first=first, last=last)
            for found in inspection.findings:
                if found.verdict.is_copy_lost:
                    bad.setdefault(found.fragment, {})[found.position] = found.verdict
        for part in fragments(work.ledger_id, metadata, -1):
            for first, bookie in divergent:
                # Which replica is the wrong one only a comparison tells: the report made it.
                if part.first_entry == first:
                    bad.setdefault(first, {}).update(dict.fromkeys(part.positions(bookie), Verdict.DIVERGENT))
        return {first: positions for first, positions in bad.items() if positions}

    async def _restore(self, fragment: Fragment, lost: Mapping[int, Verdict], turn: _Turn) -> frozenset[str]:
        """The bookies that got new copies."""
        tally = turn.tally
        try:
            receivers, left = await self._replicate(fragment, lost, turn)
        except EntriesUnreadable as error:
            tally.add(State.UNRECOVERABLE, error)
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

    async def _replicate(
        self, fragment: Fragment, lost: Mapping[int, Verdict], turn: _Turn
    ) -> tuple[frozenset[str], Mapping[int, str]]:
        """Who got new copies; positions for which there is no spare, and why."""
        leaving, tally, session_id = turn.work.bookies, turn.tally, turn.lock.session_id
        writable = await self._client.writable_bookies()
        bad = {position: fragment.ensemble[position] for position in lost}
        here = {at for at, why in lost.items() if not leaving and why in IN_PLACE and bad[at] in writable}
        empty = {at for at in here if lost[at] is Verdict.MISSING}
        excluded = dict.fromkeys(leaving, "it is being replaced")
        receivers = {bad[at] for at in empty}
        try:
            done = await self._replicator.replicate(
                fragment, bad, in_place=empty, excluded=excluded, session_id=session_id
            )
        except NotEnoughBookies as error:
            if not here:
                raise
            left: Mapping[int, str] = dict.fromkeys(bad, one_line(error, LONGEST_DETAIL))
        else:
            tally.copied(done)
            receivers |= set(done.ensemble) - set(fragment.ensemble)
            fragment, left = replace(fragment, ensemble=done.ensemble), done.unfilled
        again = {at: bad[at] for at in left if at in here}
        if again:
            tally.copied(await self._replicator.replicate(fragment, again, in_place=again, session_id=session_id))
            receivers |= set(again.values())
        return frozenset(receivers), {at: why for at, why in left.items() if at not in again}

    async def _verify(self, fragment: Fragment, receivers: Collection[str], tally: _Tally) -> None:
        """Inspect the copies that were made; what is wrong with one is told."""
        if not fragment.count:
            return
        ledger_id, first = fragment.ledger_id, fragment.first_entry
        inspection = await self._verifier.inspect(ledger_id, bookies=receivers, first=first, last=fragment.last_entry)
        wrong = [each for each in inspection.findings if each.fragment == first and each.verdict is not Verdict.EXTRA]
        for found in wrong[:1]:
            where = f"entries {found.first_entry} to {found.last_entry} of the new copy on {found.bookie}"
            tally.add(State.FAILED, f"{where} are {found.verdict.value}: {found.detail}")
