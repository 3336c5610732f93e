"""The output of `bookie cluster autorecovery status` and `list-under-replicated`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from bookie_pod.autorecovery.auditor.runs import AuditRecords, Recorded, recorded_checks
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.tables import facts, print_table
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from bookie_protocol.shown import time_text


async def show_status(cluster: Cluster, *, as_json: bool) -> int:
    """Print the whole; returns the exit code."""
    service = cluster.service
    marks = service.under_replication
    enabled = await marks.is_enabled()
    auditor = await service.auditor_election.current_auditor()
    delay = await marks.lost_bookie_recovery_delay()
    absences = await AuditRecords(service).absences()
    locks = await marks.locks()
    checks = await recorded_checks(service)
    count = 0
    async for _ in marks.list():
        count += 1
    if as_json:
        value = {
            "enabled": enabled,
            "auditor": auditor,
            "lost_bookie_recovery_delay_seconds": delay,
            "absent_bookies": absences,
            "under_replicated_ledgers": count,
            "locks": {str(ledger_id): holder for ledger_id, holder in locks.items()},
            "checks": {check.check.value: _as_json(check) for check in checks},
        }
        click.echo(json.dumps(value))
    else:
        table = facts()
        table.add_row("auto-recovery", "enabled" if enabled else "disabled: `bookie cluster autorecovery enable`")
        table.add_row("auditor", auditor or "none: run `bookie autorecovery` somewhere")
        table.add_row("delay", "not set" if delay is None else f"{delay} s")
        table.add_row("absent bookies", _absent(absences))
        table.add_row("marked ledgers", f"{count:,}")
        table.add_row("in work", f"{len(locks):,} by {', '.join(sorted(set(locks.values()))) or 'nobody'}")
        print_table(table)
        print_table(_checks(checks))
    return CommandExit.OK if enabled and auditor is not None else CommandExit.COULD_NOT_TELL


async def list_marks(
    cluster: Cluster, missing: str | None, excluding: str | None, *, count: bool, as_json: bool
) -> int:
    """Print them; returns the exit code."""
    marks = cluster.service.under_replication

    def has_both(replicas: Collection[str]) -> bool:
        return (missing is None or missing in replicas) and (excluding is None or excluding not in replicas)

    chosen = None if missing is None and excluding is None else has_both
    if count:
        number = 0
        async for _ in marks.list(chosen):
            number += 1
        click.echo(json.dumps({"count": number}) if as_json else str(number))
        return CommandExit.OK
    locks = await marks.locks()
    async for mark in marks.list(chosen):
        click.echo(_mark(mark, locks.get(mark.ledger_id), as_json=as_json))
    return CommandExit.OK


def _mark(mark: UnderreplicatedLedger, holder: str | None, *, as_json: bool) -> str:
    if as_json:
        value = {
            "ledger": mark.ledger_id,
            "missing_replicas": list(mark.replicas),
            "marked_ms": mark.ctime_ms,
            "findings": [
                {"bookie": each.bookie, "reason": each.reason.value, "entries": [list(run) for run in each.runs]}
                for each in mark.doubts
            ],
            "failures": [
                {"worker": each.worker, "trouble": each.trouble.value, "attempts": each.times, "reason": each.reason}
                for each in mark.failures
            ],
            "worker": holder,
            **({} if mark.damage is None else {"damage": mark.damage}),
        }
        return json.dumps(value)
    replicas = "unknown" if mark.damage is not None else _reasons(mark) or "placement"
    since = "" if mark.ctime_ms is None else f"  since {time_text(mark.ctime_ms)}"
    work = "" if holder is None else f"  in work by {holder}"
    failed = "" if not mark.failures else f"  tried {mark.failures[-1].times} times: {mark.failures[-1].reason}"
    damage = "" if mark.damage is None else f"  damaged: {mark.damage}"
    return f"{mark.ledger_id}  {replicas}{since}{work}{failed}{damage}"


def _reasons(mark: UnderreplicatedLedger) -> str:
    """The bookies, each with why it is named."""
    reasons: dict[str, list[str]] = {bookie: [] for bookie in mark.replicas}
    for each in mark.findings:
        reasons[each.bookie].append(each.reason.value)
    return ",".join(bookie + (f" ({'+'.join(why)})" if why else "") for bookie, why in reasons.items())


def _absent(absences: Mapping[str, int]) -> str:
    return ", ".join(f"{bookie} since {time_text(since)}" for bookie, since in sorted(absences.items())) or "none"


def _checks(checks: Collection[Recorded]) -> Table:
    table = Table("check", "last complete", "took", "found", "now", box=None)
    for each in checks:
        last, running, failure = each.runs.last, each.runs.running, each.runs.failure
        now = ""
        if running is not None:
            now = f"at ledger {running.next_ledger}: {_counts(running.counts)}"
        if failure is not None:
            now = f"{now}; broken off: {failure.reason}".removeprefix("; ")
        table.add_row(
            each.check.value,
            "never" if each.last_complete_ms is None else time_text(each.last_complete_ms),
            "" if last is None else f"{last.active_ms / 1000:.1f} s",
            "" if last is None else _counts(last.counts),
            now,
        )
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _as_json(check: Recorded) -> dict[str, Any]:
    value = asdict(check.runs)
    return {**value, "last_complete_ms": check.last_complete_ms, "requested_ms": check.requested_ms}
