"""From what auto-recovery and the client say to what the admin API shows. Pure; any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie_protocol.admin_api.decommission import (
    DecommissionOutlook,
    DecommissionState,
    HeldReplicas,
    LedgerHoldings,
    LedgerReason,
    RiskyLedger,
    Runs,
    Safety,
)

if TYPE_CHECKING:
    from bookie_client.replication.replica_listing import BookieReplicas, EntryRuns, LedgerReplicas
    from bookie_client.replication.safety import SafetyReport
    from bookie_pod.autorecovery.decommission.plan import DecommissionPlan
    from bookie_pod.autorecovery.decommission.state import DecommissionRecord


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
    """What each bookie holds."""
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
