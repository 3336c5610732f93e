"""The commands of `bookie cluster` for auto-recovery, through the metadata service.

They are `autorecovery`, `lost-delay`, `trigger-audit`, `who-is-auditor`, `list-under-replicated` and
`force-auditor-checks`.
"""

from __future__ import annotations

import json

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.connection import Cluster, Connection, connects
from bookie_pod.cli.options import AS_JSON, AS_JSON_LINES, tell
from bookie_protocol.errors import NotThere

_DELAY_MAX = 2**31 - 1


@cluster.group()
def autorecovery() -> None:
    """Enable, disable and look at auto-recovery.

    While it is disabled nothing is marked and nothing is copied, but absent bookies are noted, and their delay runs.
    """


@autorecovery.command()
@AS_JSON
@connects
def enable(connection: Connection, as_json: bool) -> None:
    """Let auditors and workers work. Enabling what is enabled is fine."""
    _set(connection, True, as_json)


@autorecovery.command()
@AS_JSON
@connects
def disable(connection: Connection, as_json: bool) -> None:
    """Let lost copies be until auto-recovery is enabled again. For a restart, `lost-delay set` is the safer choice."""
    _set(connection, False, as_json)


def _set(connection: Connection, enabled: bool, as_json: bool) -> None:
    async def work(found: Cluster) -> None:
        from bookie_pod.autorecovery.auditor.runs import set_enabled

        await set_enabled(found.service, enabled)

    connection.run(work)
    tell(as_json, f"auto-recovery is {'enabled' if enabled else 'disabled'}", enabled=enabled)


@autorecovery.command()
@AS_JSON_LINES
@connects
def status(connection: Connection, as_json: bool) -> int:
    """Show whether auto-recovery is enabled, the auditor and its checks, and who works on what.

    The exit code is 12 if it is disabled or there is no auditor.
    """
    from bookie_pod.cli.cluster.autorecovery_view import show_status

    return connection.run(lambda found: show_status(found, as_json=as_json))


@cluster.command("who-is-auditor")
@AS_JSON
@connects
def who_is_auditor(connection: Connection, as_json: bool) -> None:
    """Print the bookie id of the auditor. The exit code is 11 if there is none."""

    async def work(found: Cluster) -> str | None:
        return await found.service.auditor_election.current_auditor()

    auditor = connection.run(work)
    if auditor is None:
        raise NotThere("there is no auditor: run auto-recovery somewhere (`bookie autorecovery`)")
    click.echo(json.dumps({"auditor": auditor}) if as_json else auditor)


@cluster.command("trigger-audit")
@AS_JSON
@connects
def trigger_audit(connection: Connection, as_json: bool) -> None:
    """Have the auditor mark, now, the ledgers of bookies that are absent, whatever the delay."""

    async def work(found: Cluster) -> str:
        from bookie_pod.autorecovery.auditor.runs import trigger_audit

        return await trigger_audit(found.service)

    auditor = connection.run(work)
    tell(as_json, f"auditor {auditor} was asked for an audit", auditor=auditor)


@cluster.group("lost-delay")
def lost_delay() -> None:
    """Show or set how long a bookie may be absent before its copies count as missing (lostBookieRecoveryDelay)."""


@lost_delay.command("get")
@AS_JSON
@connects
def get_delay(connection: Connection, as_json: bool) -> None:
    """Print the delay in seconds."""

    async def work(found: Cluster) -> int | None:
        return await found.service.under_replication.lost_bookie_recovery_delay()

    delay = connection.run(work)
    if delay is None:
        raise NotThere("the delay is not set: no auditor has run in this cluster yet")
    tell(as_json, str(delay), lost_bookie_recovery_delay_seconds=delay)


@lost_delay.command("set")
@click.argument("seconds", type=click.IntRange(0, _DELAY_MAX))
@AS_JSON
@connects
def set_delay(connection: Connection, seconds: int, as_json: bool) -> None:
    """Set the delay. It counts at once, also for who is absent now; 0 asks for an audit."""

    async def work(found: Cluster) -> None:
        marks = found.service.under_replication
        if seconds and await marks.lost_bookie_recovery_delay() == seconds:
            return  # writing the same value again would ask for an audit
        await marks.set_lost_bookie_recovery_delay(seconds)

    connection.run(work)
    tell(as_json, f"lostBookieRecoveryDelay is {seconds} s", lost_bookie_recovery_delay_seconds=seconds)


@cluster.command("list-under-replicated")
@click.option("--missing", metavar="BOOKIE", help="Only ledgers that miss this bookie's copies.")
@click.option("--excluding", metavar="BOOKIE", help="Only ledgers that do not miss this bookie's copies.")
@click.option("--count", is_flag=True, help="Print only how many there are.")
@AS_JSON_LINES
@connects
def list_under_replicated(
    connection: Connection, missing: str | None, excluding: str | None, count: bool, as_json: bool
) -> int:
    """List the ledgers that are marked as under-replicated: the bookies whose copies are missing, since when, and who
    works on them."""
    from bookie_pod.cli.cluster.autorecovery_view import list_marks

    return connection.run(lambda found: list_marks(found, missing, excluding, count=count, as_json=as_json))


@cluster.command("force-auditor-checks")
@click.option("--ledgers", is_flag=True, help="The check that reads from every replica of every ledger.")
@click.option("--placement", is_flag=True, help="The check of placement.")
@click.option("--replicas", is_flag=True, help="The check of what bookies store.")
@AS_JSON
@connects
def force_auditor_checks(connection: Connection, ledgers: bool, placement: bool, replicas: bool, as_json: bool) -> None:
    """Have the auditor run checks now, whatever their intervals; without an option all three.

    Podkeeper's auditors begin at once, Apache's when they are elected next. `bookie cluster autorecovery status` shows
    how far they are.
    """
    every = not (ledgers or placement or replicas)
    wanted = {"ledgers": ledgers or every, "placement": placement or every, "replicas": replicas or every}
    names = [name for name, chosen in wanted.items() if chosen]

    async def work(found: Cluster) -> None:
        from bookie_pod.autorecovery.auditor.runs import Check, force_checks

        await force_checks(found.service, [Check(name) for name in names])

    connection.run(work)
    tell(as_json, f"asked for: {', '.join(names)}", checks=names)
