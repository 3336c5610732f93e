"""The output of `kubectl bookie status`: the cluster, its conditions and bookies, what the operator waits for and why.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bookie_operator.api.kinds import KubernetesObject
from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import BackupStatus, BookieClusterStatus, Condition, Operation
from bookie_operator.plugin.clusters import status_of
from bookie_operator.plugin.tables import age, facts_table, plain_table

_GOOD_WHEN_FALSE = frozenset(
    {"Reconciling", "Stalled", "Upgrading", "ScalingDown", "VolumesExpanding", "Repairing", "Paused", "DeletionBlocked"}
)


def overview(clusters: Sequence[KubernetesObject]) -> Table:
    """One line for each cluster."""
    table = plain_table("NAMESPACE", "NAME", "READY", "BOOKIES", "UNDERREPL", "VERSION", "STATUS", "OPERATION", "AGE")
    for cluster in clusters:
        metadata, status = cluster["metadata"], status_of(cluster)
        ready = condition(status, "Ready")
        operation = status.operation
        table.add_row(
            metadata["namespace"],
            metadata["name"],
            ready.status,
            f"{status.ready_replicas}/{cluster['spec'].get('replicas', '?')}",
            _number(status.ledgers.under_replicated),
            status.version.current or "-",
            ready.reason,
            f"{operation.type} {operation.bookie}".strip() if operation else "-",
            age(metadata.get("creationTimestamp", "")),
        )
    return table


def details(
    cluster: KubernetesObject,
    tasks: Sequence[KubernetesObject],
    jobs: Sequence[KubernetesObject] = (),
    now: datetime | None = None,
) -> RenderableType:
    """Return all details of one cluster."""
    now = now or datetime.now(UTC)
    status = status_of(cluster)
    parts: list[RenderableType] = [_heading(cluster, status), ""]
    parts += _titled("Operation", _operation(status, now))
    parts += _titled("Conditions", _conditions(status, now))
    if status.bookies:
        parts += _titled("Bookies", _bookies(status))
    if tasks:
        parts += _titled("Tasks", _tasks(tasks, now))
    if jobs:
        parts += _titled("Jobs", _jobs(jobs, now))
    if status.history:
        parts += _titled("History", _history(status, now))
    return Group(*parts[:-1])


def condition(status: BookieClusterStatus, kind: str) -> Condition:
    """An Unknown one if it is not there."""
    unknown = Condition(type=kind, status="Unknown", reason="NotReported", message="the operator has not looked yet")
    return next((each for each in status.conditions if each.type == kind), unknown)


def _titled(title: str, part: RenderableType) -> Iterator[RenderableType]:
    yield Text(title, style="bold underline")
    yield part
    yield ""


def _heading(cluster: KubernetesObject, status: BookieClusterStatus) -> Table:
    metadata, spec = cluster["metadata"], cluster["spec"]
    ready, ledgers, version = condition(status, "Ready"), status.ledgers, status.version
    facts = facts_table()
    facts.add_row("Cluster", f"{metadata['name']} in namespace {metadata['namespace']}")
    facts.add_row("Ready", Text(f"{ready.status}: {ready.reason}", style=_colour(ready)))
    target = f", to become {version.target}" if version.target and version.target != version.current else ""
    facts.add_row("Version", (version.current or "different ones") + target)
    told = condition(status, "Available").status != "Unknown"  # else the number is that of an earlier time
    facts.add_row(
        "Bookies",
        f"{status.ready_replicas} of {spec.get('replicas', '?')} serve, "
        f"{status.writable_replicas if told else '?'} writable, "
        f"{status.updated_replicas} up to date",
    )
    audit = f", last audit {age(ledgers.last_audit)} ago" if ledgers.last_audit else ", no complete audit yet"
    facts.add_row("Under-replicated", _number(ledgers.under_replicated) + " ledgers" + audit)
    if ledgers.unrecoverable:
        facts.add_row("Unrecoverable", Text(f"{ledgers.unrecoverable} ledgers", style="red"))
    facts.add_row("Metadata", status.metadata_service_uri or "-")
    if shared := status.storage.shared_by:
        facts.add_row("Storage", f"{', '.join(shared)} have a file system in common, and fill up together")
    if status.backup is not None:
        facts.add_row("Backup", _backup(status, status.backup))
    if (metadata.get("annotations") or {}).get(names.PAUSED, "").lower() == "true":
        facts.add_row("Paused", Text("nothing is changed until `kubectl bookie resume`", style="yellow"))
    if "deletionTimestamp" in metadata:
        facts.add_row("Deleted", Text(f"asked for {age(metadata['deletionTimestamp'])} ago", style="yellow"))
    if status.observed_generation < metadata.get("generation", 0):
        facts.add_row("Note", Text("the operator has not yet seen the newest spec", style="yellow"))
    return facts


def _backup(status: BookieClusterStatus, backup: BackupStatus) -> Text:
    last = f"{age(backup.last_successful_time)} ago" if backup.last_successful_time else "none yet"
    due = f", next at {backup.next_schedule_time}" if backup.next_schedule_time else ""
    found = condition(status, "MetadataBackedUp")
    why = f": {found.message}" if found.status != "True" or found.reason == "Suspended" else ""
    return Text(f"{last}{due}{why}", style="" if found.status == "True" else _colour(found))


def _operation(status: BookieClusterStatus, now: datetime) -> RenderableType:
    operation = status.operation
    if operation is None:
        ready = condition(status, "Ready")
        return Text(f"none; {ready.message}" if ready.status != "True" and ready.message else "none")
    facts = facts_table()
    about = f" of {operation.bookie}" if operation.bookie else ""
    facts.add_row("What", f"{operation.type.value}{about} ({operation.id}), begun {age(operation.started_at, now)} ago")
    facts.add_row("Step", f"{operation.step}, no progress for {age(operation.last_progress_at, now) or '?'}")
    facts.add_row("Why", Text(_why(status, operation), style="red" if operation.stalled else ""))
    if operation.attempts:
        facts.add_row("Failures", f"{operation.attempts} in a row")
    return facts


def _why(status: BookieClusterStatus, operation: Operation) -> str:
    told = operation.message or condition(status, "Reconciling").message or "its next pass"
    return f"{told} (a person is needed)" if operation.stalled else told


def _conditions(status: BookieClusterStatus, now: datetime) -> Table:
    table = plain_table("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")
    for each in status.conditions:
        since = age(each.last_transition_time, now)
        table.add_row(each.type, Text(each.status, style=_colour(each)), each.reason, since, each.message)
    if not status.conditions:
        table.add_row("-", "", "", "", "the operator has not looked yet: does it run?")
    return table


def _bookies(status: BookieClusterStatus) -> Table:
    zones = any(bookie.zone for bookie in status.bookies)
    table = plain_table("NAME", *(["ZONE"] if zones else []), "STATE", "DISK", "LEDGERS LEFT", "MESSAGE")
    for bookie in status.bookies:
        disk = "-" if bookie.disk_used_percent is None else f"{bookie.disk_used_percent}%"
        left = "-" if bookie.ledgers_remaining is None else str(bookie.ledgers_remaining)
        row = [bookie.name, *([bookie.zone] if zones else []), bookie.state.value, disk, left, bookie.message]
        table.add_row(*row)
    return table


def _tasks(tasks: Sequence[KubernetesObject], now: datetime) -> Table:
    table = plain_table("NAME", "TYPE", "BOOKIES", "PHASE", "AGE", "MESSAGE")
    for task in tasks:
        spec, status, metadata = task["spec"], task.get("status") or {}, task["metadata"]
        table.add_row(
            metadata["name"],
            spec["type"],
            ", ".join(spec.get("bookies") or ()) or "-",
            status.get("phase") or "waits",
            age(metadata.get("creationTimestamp", ""), now),
            status.get("message", ""),
        )
    return table


def _jobs(jobs: Sequence[KubernetesObject], now: datetime) -> Table:
    table = plain_table("NAME", "KIND", "SCHEDULE", "PHASE", "LAST RUN", "MESSAGE")
    for job in jobs:
        spec, status = job["spec"], job.get("status") or {}
        runs = status.get("history") or ()
        ended = age(runs[-1].get("finishedAt", ""), now) if runs else ""
        told = [each.get("message", "") for each in status.get("conditions") or () if each["type"] == "Ready"]
        table.add_row(
            job["metadata"]["name"],
            spec["kind"],
            spec.get("schedule") or "once",
            status.get("phase") or "waits",
            f"{status.get('lastOutcome', '')}, {ended} ago" if ended else "-",
            *(told or [""]),
        )
    return table


def _history(status: BookieClusterStatus, now: datetime) -> Table:
    table = plain_table("OPERATION", "BOOKIE", "OUTCOME", "ENDED", "MESSAGE")
    for each in reversed(status.history):
        ended = age(each.finished_at, now)
        table.add_row(each.id, each.bookie or "-", each.outcome, f"{ended} ago" if ended else "-", each.message)
    return table


def _colour(one: Condition) -> str:
    if one.status == "Unknown":
        return "yellow"
    good = one.status == ("False" if one.type in _GOOD_WHEN_FALSE else "True")
    return "green" if good else "red" if one.type in ("Ready", "Available", "Stalled") else "yellow"


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
