"""Decommissions and recoveries that the admin API begins: background jobs of this bookie's node.

Invariants
- At most `MAX_JOBS` decommissions and one recovery are under way here. They end with the bookie; a decommission goes on
  when it is asked for again, here or elsewhere.
- What ended a job is kept for the last `MAX_KEPT` bookies.

Threads: event loop.

Source: docs/internals/auto-recovery.md, sections 8 and 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.turns import Turns
from bookie_pod.roles import NOBODY, Caller
from bookie_protocol.admin_api.decommission import (
    DecommissionOutlook,
    DecommissionState,
    HeldReplicas,
    LedgerHoldings,
    LedgerReason,
    RecoverState,
    RiskyLedger,
    Runs,
    Safety,
)
from bookie_protocol.errors import NotDecommissioned, PodkeeperError, Refused
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.shown import one_line

if TYPE_CHECKING:
    from bookie_client.replication.replica_listing import BookieReplicas, EntryRuns, LedgerReplicas
    from bookie_client.replication.safety import SafetyReport
    from bookie_pod.autorecovery.decommission.drain import DrainOptions
    from bookie_pod.autorecovery.decommission.moving import ClientMover
    from bookie_pod.autorecovery.decommission.plan import DecommissionPlan
    from bookie_pod.autorecovery.decommission.presence import BookieAdmin
    from bookie_pod.autorecovery.decommission.recover import Recover
    from bookie_pod.autorecovery.decommission.state import DecommissionRecord
    from bookie_pod.config.model import BookieConfig


_log = structlog.get_logger(__name__)

MAX_JOBS: Final = 4
MAX_KEPT: Final = 16
_SHOWN: Final = 20
MOST_BOOKIES: Final = 200
"""Bookies of a ledger whose replicas are listed."""
MOST_MEMBERS: Final = 8_000
"""Places in all ensembles of a ledger whose replicas are listed."""


class _Job(NamedTuple):
    """A decommission under way here. `begun`: its record is stored."""

    work: asyncio.Task[None]
    begun: asyncio.Event


class Decommissions:
    """Begun, followed and taken back. The code of auto-recovery is loaded by the first who needs it."""

    def __init__(self, client: ClusterClient, config: BookieConfig, admin: BookieAdmin | None = None) -> None:
        """`admin`: how bookies are made read-only; by default over their HTTP endpoints, with this bookie's token."""
        self._client = client
        self._service = client.metadata
        self._config = config
        self._admin = admin
        self._jobs: dict[str, _Job] = {}
        self._beginning = asyncio.Lock()
        """One begins at a time: what a second request accepts is added to what the first one has stored."""
        self._problems: dict[str, str] = {}
        self._recovery: asyncio.Task[None] | None = None
        self._recover: tuple[tuple[str, ...], Recover] | None = None
        self._recover_problem = ""
        self._passes = Turns()
        """Turns of passes over all ledgers."""
        self._listings = Turns()
        """Turns of lists of replicas."""

    async def stop(self) -> None:
        """End all jobs."""
        tasks = [*(job.work for job in self._jobs.values()), *([self._recovery] if self._recovery is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- decommission -----------------------------------------------------------------------------------------

    async def decommission(
        self, bookie_id: str, *, delete_cookie: bool, accepted_losses: frozenset[int] = frozenset()
    ) -> None:
        """Returns when its record is stored: from then on it can be followed and resumed."""
        from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts
        from bookie_pod.autorecovery.decommission.plan import make_plan
        from bookie_pod.autorecovery.decommission.store import (
            DecommissionRequest,
            DecommissionStore,
            coordinator_name,
        )

        async with self._beginning:
            self._check_room(bookie_id)
            if (job := self._jobs.get(bookie_id)) is not None:
                await _first(job.work, job.begun)  # the caller that began it may be gone
            active = await DecommissionStore(self._service).active(bookie_id)
            if (job := self._jobs.get(bookie_id)) is not None:
                if active is None or accepted_losses <= set(active.value.accepted_losses):
                    return
                job.work.cancel()  # it goes on with what is known now
                await asyncio.wait({job.work})
            if active is None:
                plan = await make_plan(await self._client.get(), self._service, bookie_id)
                if plan.refusals:
                    raise Refused("; ".join(plan.refusals))
            coordinator = Coordinator(
                Parts(self._service, await self._mover(), self._bookie_admin(), self._drain_options())
            )
            request = DecommissionRequest(bookie_id, coordinator_name(), delete_cookie, accepted_losses)
            self._problems.pop(bookie_id, None)
            work = asyncio.create_task(self._carry_out(coordinator.run(request), bookie_id))
            self._jobs[bookie_id] = _Job(work, coordinator.begun)
            await _first(work, coordinator.begun)
            if not coordinator.begun.is_set() and (problem := self._problems.get(bookie_id)):
                raise Refused(problem)

    def _check_room(self, bookie_id: str) -> None:
        if bookie_id not in self._jobs and len(self._jobs) >= MAX_JOBS:
            raise Refused(f"{MAX_JOBS} decommissions are under way here; ask another bookie, or wait")

    async def _carry_out(self, work: object, bookie_id: str) -> None:
        problem = ""
        try:
            await work  # type: ignore[misc]
        except PodkeeperError as error:
            problem = one_line(error)
        except Exception as error:
            problem = repr(error)
            _log.exception("decommission failed", bookie=bookie_id)
        finally:
            del self._jobs[bookie_id]
        if problem:
            _log.warning("decommission ended", bookie=bookie_id, reason=problem)
            while len(self._problems) >= MAX_KEPT:
                del self._problems[next(iter(self._problems))]
            self._problems[bookie_id] = problem

    async def decommission_state(self, bookie_id: str) -> DecommissionState:
        from bookie_pod.autorecovery.decommission.store import DecommissionStore

        store = DecommissionStore(self._service)
        active = await store.active(bookie_id)
        record = active.value if active is not None else await store.finished(bookie_id)
        problem = self._problems.get(bookie_id, "")
        if record is None:
            why = f": {problem}" if problem else ""
            raise NotDecommissioned(f"bookie {bookie_id} is not being decommissioned{why}", problem)
        return state_of(record, running=bookie_id in self._jobs, problem=problem)

    async def decommission_outlook(self, bookie_id: str, caller: Caller = NOBODY) -> DecommissionOutlook:
        from bookie_pod.autorecovery.decommission.plan import make_plan

        async with self._passes.turn(caller):
            return outlook_of(await make_plan(await self._client.get(), self._service, bookie_id))

    async def undo_decommission(self, bookie_id: str) -> bool:
        from bookie_pod.autorecovery.decommission.undo import undo

        return (await undo(self._service, self._bookie_admin(), bookie_id)).writable

    # --- recovery of lost bookies -----------------------------------------------------------------------------

    async def recover(self, bookie_ids: Sequence[str], *, delete_cookies: bool) -> None:
        from bookie_pod.autorecovery.decommission.recover import Recover, RecoverOptions

        mover = await self._mover()
        if self._recovery is not None and not self._recovery.done():
            raise Refused("a recovery of bookies is under way here; ask another bookie, or wait")
        options = RecoverOptions(skip_unrecoverable=True, delete_cookies=delete_cookies, drain=self._drain_options())
        recover = Recover(self._service, mover, bookie_ids, options)
        self._recover, self._recover_problem = (tuple(bookie_ids), recover), ""
        self._recovery = asyncio.create_task(self._restore(recover))

    async def _restore(self, recover: Recover) -> None:
        try:
            await recover.run()
        except PodkeeperError as error:
            self._recover_problem = one_line(error)
        except Exception as error:
            self._recover_problem = repr(error)
            _log.exception("recovery of bookies failed")
        if self._recover_problem:
            _log.warning("recovery of bookies ended", reason=self._recover_problem)

    def recover_state(self) -> RecoverState | None:
        if self._recover is None:
            return None
        bookies, recover = self._recover
        result, progress = recover.result, recover.meter.progress()
        return RecoverState(
            bookies=list(bookies),
            running=self._recovery is not None and not self._recovery.done(),
            problem=self._recover_problem,
            ledgers_restored=result.restored,
            ledgers_left=progress.ledgers_left,
            bytes_copied=progress.bytes_copied,
            failed=[LedgerReason(*item) for item in sorted(result.failed.items())[:_SHOWN]],
            cookies_deleted=list(result.cookies_deleted),
        )

    # --- facts ------------------------------------------------------------------------------------------------

    async def safety(self, bookie_ids: Sequence[str], caller: Caller = NOBODY) -> Safety:
        from bookie_client.replication.safety import safety_check

        async with self._passes.turn(caller):
            return safety_of(await safety_check(await self._client.get(), bookie_ids, max_listed=_SHOWN))

    async def holdings(self, ledger_id: int, caller: Caller = NOBODY) -> LedgerHoldings:
        from bookie_client.replication.replica_listing import replicas_of

        async with self._listings.turn(caller):
            return holdings_of(await replicas_of(await self._client.get(), ledger_id, check=_check_listed))

    # --- parts ------------------------------------------------------------------------------------------------

    async def _mover(self) -> ClientMover:
        client = await self._client.get()
        from bookie_pod.autorecovery.decommission.moving import ClientMover
        from bookie_pod.client_options import replication_options

        return ClientMover(client, replication_options(self._config.auto_recovery))

    def _drain_options(self) -> DrainOptions:
        from bookie_pod.autorecovery.decommission.drain import DrainOptions

        config = self._config.auto_recovery
        return DrainOptions(config.ledgers_at_once, config.open_ledger_grace_period_ms / 1000)

    def _bookie_admin(self) -> BookieAdmin:
        if self._admin is not None:
            return self._admin
        from bookie_pod.admin.peers import bookie_admin

        return bookie_admin(self._service, self._config.http)


async def _first(job: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for the event, or the end of the job."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((job, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _check_listed(metadata: LedgerMetadata) -> None:
    """Raise `Refused` for a ledger of which it would take too long to compare what bookies should hold."""
    bookies, fragments = len(metadata.all_bookies()), len(metadata.ensembles)
    members = fragments * metadata.ensemble_size
    if max(bookies, metadata.ensemble_size) <= MOST_BOOKIES and members <= MOST_MEMBERS:
        return
    raise Refused(
        f"ledger {metadata.ledger_id} has {fragments} fragments on {bookies} bookies, too many to list its replicas"
        f" here; use the command instead: bookie cluster replicas {metadata.ledger_id}"
    )


def state_of(record: DecommissionRecord, *, running: bool, problem: str) -> DecommissionState:
    """A stored record, and what this bookie has to do with it."""
    progress = record.progress
    return DecommissionState(
        bookie_id=record.bookie_id,
        phase=record.phase.value,
        form=record.form.value if record.form is not None else None,
        coordinator=record.coordinator,
        running_here=running,
        problem=problem,
        started_time=record.started_ms,
        updated_time=record.updated_ms,
        delete_cookie=record.delete_cookie,
        ledgers_total=progress.ledgers_total,
        ledgers_left=progress.ledgers_left,
        bytes_total=progress.bytes_total,
        bytes_left=progress.bytes_left,
        bytes_copied=progress.bytes_copied,
        seconds_left=progress.eta_s,
        blocked=progress.blocked,
        blockers=[LedgerReason(blocker.ledger_id, blocker.reason) for blocker in progress.blockers],
        proven_ledgers=record.proof.ledgers if record.proof is not None else None,
    )


def outlook_of(plan: DecommissionPlan) -> DecommissionOutlook:
    """A plan."""
    return DecommissionOutlook(
        bookie_id=plan.bookie_id,
        presence=plan.presence,
        form=plan.form.value,
        has_cookie=plan.has_cookie,
        ledgers=plan.ledgers,
        open_ledgers=plan.open_ledgers,
        bytes=plan.nbytes,
        targets=len(plan.targets),
        free_bytes=plan.free_bytes,
        largest_ensemble=plan.largest_ensemble,
        auto_recovery_enabled=plan.auto_recovery_enabled,
        auditor=plan.auditor,
        under_replicated=plan.under_replicated,
        under_replicated_here=plan.needing_count,
        refusals=list(plan.refusals),
        warnings=list(plan.warnings),
    )


def safety_of(report: SafetyReport) -> Safety:
    """A safety report."""
    ledgers = [
        RiskyLedger(each.ledger_id, each.risk.value, each.first_entry, each.copies_left, each.ack_quorum, each.detail)
        for each in report.listed
    ]
    return Safety(
        safe=report.is_safe,
        going=sorted(report.going),
        ledgers_seen=report.ledgers_seen,
        ledgers_concerned=report.ledgers_concerned,
        no_copy=report.no_copy,
        below_ack_quorum=report.below_ack_quorum,
        no_slack=report.no_slack,
        unknown=report.unknown,
        ledgers=ledgers,
    )


def holdings_of(found: LedgerReplicas) -> LedgerHoldings:
    """Return the entries that each bookie holds."""
    bookies = [_held(each) for each in found.bookies]
    return LedgerHoldings(found.ledger_id, found.metadata.state.value, found.last_entry, bookies)


def _held(each: BookieReplicas) -> HeldReplicas:
    return HeldReplicas(
        bookie_id=each.bookie,
        registration=each.registration.value,
        expected=Runs(each.expected.count, [list(run) for run in each.expected.runs]),
        held=_runs(each.held),
        missing=_runs(each.missing),
        surplus=_runs(each.surplus),
        problem=each.error,
    )


def _runs(entries: EntryRuns | None) -> Runs | None:
    return Runs(entries.count, [list(run) for run in entries.runs]) if entries is not None else None
