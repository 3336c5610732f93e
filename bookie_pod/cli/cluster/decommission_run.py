"""The work of `bookie cluster decommission`: plan, run, status, undo.

Progress of a drain is shown on standard error: a live view on a terminal; elsewhere a line for each phase and fault,
and one now and then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bookie_pod.admin.peers import bookie_admin
from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts, Watched
from bookie_pod.autorecovery.decommission.drain import DrainMeter, DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.plan import DecommissionPlan, make_plan
from bookie_pod.autorecovery.decommission.presence import BookieAdmin
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, DrainProgress, Form, Phase
from bookie_pod.autorecovery.decommission.store import (
    DecommissionRequest,
    DecommissionStore,
    coordinator_name,
    now_ms,
)
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_pod.cli.bookie_api import client_tls, read_token, scheme_of
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.tables import duration_text, facts, print_table, size_text
from bookie_pod.client_options import replication_options
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.config.sections.service import HttpConfig
from bookie_protocol.console import console
from bookie_protocol.errors import InvalidConfiguration, NotThere, Refused

SILENT_S: Final = 60.0
"""Seconds after which a coordinator that has stored nothing is reported as gone."""
T = TypeVar("T")
_REDRAW_S: Final = 0.25
_LINE_S: Final = 10.0
_LOOK_S: Final = 0.5
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The access to bookies' admin API: as `http` says, so that commands in a pod need no options; `url` and the
    files override it."""

    http: HttpConfig
    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None

    def open(self, cluster: Cluster) -> BookieAdmin:
        """`InvalidConfiguration` for a URL or a file that cannot be used."""
        if self.url is not None:
            scheme_of(self.url, "--admin-url")
        token = read_token(self.token_file) if self.token_file is not None else None
        tls = client_tls(self.ca_file, self.cert_file) if self.ca_file is not None else None
        return bookie_admin(cluster.service, self.http, url=self.url, token=token, tls=tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request of the command line, and of the configuration (`copying`). `grace` in seconds."""

    bookie_id: str
    form: Form | None
    delete_cookie: bool
    recover_open: bool
    grace: float
    copying: AutoRecoveryConfig
    parallel: int
    accepted_losses: frozenset[int]
    force: bool


def form(*, stopped: bool, live: bool) -> Form | None:
    """The form that is demanded."""
    return Form.STOPPED if stopped else Form.LIVE if live else None


def read_ledger_ids(path: str) -> frozenset[int]:
    """The ids in a file. `InvalidConfiguration` names what is none."""
    ids = set()
    try:
        with open(path, encoding="utf-8") as file:
            words = file.read().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"
        raise InvalidConfiguration(f"--accept-loss {path}: {reason}") from error
    if not words:
        raise InvalidConfiguration(f"--accept-loss {path}: the file is empty")
    for word in words:
        if not (word.isascii() and word.isdecimal()):
            raise InvalidConfiguration(f"--accept-loss {path}: {word[:50]!r} is not a ledger id")
        ids.add(int(word))
    return frozenset(ids)


# --- carrying it out ------------------------------------------------------------------------------------------


async def carry_out(cluster: Cluster, wanted: Wanted, admin: AdminAccess, *, as_json: bool) -> int:
    """Begin or resume, show progress until it is done, print the proof."""
    service = cluster.service
    reach = admin.open(cluster)
    store = DecommissionStore(service)
    if await store.active(wanted.bookie_id) is None:
        plan = await make_plan(cluster.client, service, wanted.bookie_id)
        for line in plan.warnings:
            click.echo(f"warning: {line}", err=True)
        if plan.refusals and not wanted.force:
            raise Refused(f"{'; '.join(plan.refusals)} (--force begins all the same)")
    options = DrainOptions(wanted.parallel, wanted.grace, wanted.recover_open)
    mover = ClientMover(cluster.client, replication_options(wanted.copying))
    coordinator = Coordinator(Parts(service, mover, reach, options, wanted.form))
    request = DecommissionRequest(wanted.bookie_id, coordinator_name(), wanted.delete_cookie, wanted.accepted_losses)
    try:
        title = f"decommission of {wanted.bookie_id}"
        record = await while_draining(coordinator.run(request), coordinator.watched, title)
    except asyncio.CancelledError:
        if coordinator.begun.is_set():
            click.echo(_stopped_early(wanted.bookie_id), err=True)
        raise
    if as_json:
        click.echo(json.dumps(record_members(record)))
    else:
        for line in _done(record):
            click.echo(line)
    return CommandExit.OK


def _stopped_early(bookie_id: str) -> str:
    return (
        f"interrupted: the same command goes on with it; until then {bookie_id} takes no new data. --undo takes it back"
    )


def _done(record: DecommissionRecord) -> list[str]:
    proof, moved = record.proof, record.progress
    lines = [f"copied {size_text(moved.bytes_copied)} of {moved.ledgers_total} ledgers"]
    if proof is not None:
        lines.append(f"proven: of {proof.ledgers} ledgers and {proof.marks} marks none names {record.bookie_id}")
    if record.accepted_losses:
        accepted = len(record.accepted_losses)
        lines.append(f"given up: what it held of {moved.blocked} of the {accepted} ledgers whose loss was accepted")
    lines.append("its cookie is deleted" if record.delete_cookie else "its cookie was kept")
    if record.form is Form.LIVE:
        lines.append(f"now stop {record.bookie_id} and remove its volumes; it must not be started with them again")
    return lines


# --- looking --------------------------------------------------------------------------------------------------


async def show_plan(cluster: Cluster, bookie_id: str, *, as_json: bool) -> int:
    """Print the plan. The exit code is that of a refusal if it would be refused."""
    plan = await make_plan(cluster.client, cluster.service, bookie_id)
    if as_json:
        click.echo(json.dumps(plan_members(plan)))
    else:
        _print_plan(plan)
    return CommandExit.REFUSED if plan.refusals else CommandExit.OK


def _print_plan(plan: DecommissionPlan) -> None:
    table = facts()
    table.add_row("bookie", f"{plan.bookie_id}, {plan.presence}{'' if plan.has_cookie else ', without a cookie'}")
    if plan.under_way is not None:
        table.add_row("under way", f"{plan.under_way.phase.value}, by {plan.under_way.coordinator}")
    table.add_row("form", plan.form.value)
    table.add_row("ledgers", f"{plan.ledgers} of {plan.ledgers_in_cluster}, {plan.open_ledgers} of them not closed")
    table.add_row("to copy", f"about {size_text(plan.nbytes)}")
    table.add_row("targets", f"{len(plan.targets)} bookies with {size_text(plan.free_bytes)} free")
    table.add_row("largest ensemble", str(plan.largest_ensemble))
    recovery = "enabled" if plan.auto_recovery_enabled else "disabled"
    table.add_row("auto-recovery", f"{recovery}, auditor {plan.auditor or 'none'}, {plan.ledgers_locked} in work")
    table.add_row("under-replicated", f"{plan.under_replicated} ledgers, {plan.needing_count} of them on this bookie")
    for line in plan.warnings:
        table.add_row("warning", line)
    for line in plan.refusals:
        table.add_row("refused", line)
    print_table(table)


async def show_status(cluster: Cluster, bookie_id: str, *, as_json: bool) -> int:
    """Print the stored record."""
    store = DecommissionStore(cluster.service)
    active = await store.active(bookie_id)
    record = active.value if active is not None else await store.finished(bookie_id)
    if record is None:
        raise NotThere(f"bookie {bookie_id} is not being decommissioned, and never was")
    if as_json:
        click.echo(json.dumps(record_members(record)))
        return CommandExit.OK
    progress, table = record.progress, facts()
    table.add_row("bookie", record.bookie_id)
    table.add_row("phase", record.phase.value if record.form is None else f"{record.phase.value} ({record.form.value})")
    table.add_row("by", record.coordinator)
    if record.phase is not Phase.DONE:
        table.add_row("last heard of", _heard(record, now_ms()))
    if record.phase in (Phase.REQUESTED, Phase.DRAINING) and not progress.ledgers_total:
        table.add_row("ledgers left", "not counted yet")
    else:
        table.add_row("ledgers left", f"{progress.ledgers_left} of {progress.ledgers_total}")
        table.add_row("bytes left", f"{size_text(progress.bytes_left)}, {size_text(progress.bytes_copied)} copied")
    if progress.eta_s is not None and record.phase is Phase.DRAINING:
        table.add_row("about", duration_text(progress.eta_s))
    table.add_row("blocked", str(progress.blocked))
    for blocker in progress.blockers:
        table.add_row(f"  ledger {blocker.ledger_id}", blocker.reason)
    print_table(table)
    return CommandExit.OK


def _heard(record: DecommissionRecord, now_ms: int) -> str:
    """Return the age of the record. A coordinator stores it every few seconds, but not while the first listing runs."""
    age_s = max(0, now_ms - record.updated_ms) / 1000
    heard = f"{duration_text(age_s)} ago"
    if age_s < SILENT_S:
        return heard
    return f"{heard}: no process seems to work on it; `bookie cluster decommission {record.bookie_id}` continues it"


async def take_back(cluster: Cluster, bookie_id: str, admin: AdminAccess, *, as_json: bool) -> int:
    """Undo, and say what the bookie is now."""
    done = await undo(cluster.service, admin.open(cluster), bookie_id)
    if as_json:
        click.echo(json.dumps({"bookie_id": bookie_id, "undone": True, "made_writable": done.writable}))
        return CommandExit.OK
    state = "it is writable again" if done.writable else "its mode was left as it is"
    click.echo(f"the decommission of {bookie_id} is undone; {state}")
    return CommandExit.OK


def record_members(record: DecommissionRecord) -> dict[str, Any]:
    """A record as JSON shows it."""
    shown = asdict(record)
    shown["phase"] = record.phase.value
    shown["form"] = record.form.value if record.form is not None else None
    return shown


def plan_members(plan: DecommissionPlan) -> dict[str, Any]:
    """A plan as JSON shows it."""
    shown = asdict(plan)
    shown["form"] = plan.form.value
    shown["under_way"] = record_members(plan.under_way) if plan.under_way is not None else None
    return shown | {"free_bytes": plan.free_bytes}


async def while_draining(work: Awaitable[T], watched: Watched, title: str) -> T:
    """Await the work of a coordinator and show how far it is."""
    return await _while_shown(
        work, lambda: _coordinator_lines(watched, title), lambda: _notes(watched), lambda: _stage(watched)
    )


async def while_restoring(work: Awaitable[T], meter: DrainMeter, title: str) -> T:
    """The same for a recovery."""
    return await _while_shown(
        work, lambda: [f"{title}: {_line(meter.progress())}", *_blockers(meter.progress())], list, int
    )


async def _while_shown(
    work: Awaitable[T], lines: Callable[[], list[str]], notes: Callable[[], list[str]], stage: Callable[[], object]
) -> T:
    """`stage`: where no view is live, a line is due at once when this changes."""
    showing = asyncio.create_task(_show(console(stderr=True), lines, notes, stage))
    try:
        return await work
    finally:
        showing.cancel()
        await asyncio.wait([showing])


async def _show(
    shown: Console, lines: Callable[[], list[str]], notes: Callable[[], list[str]], stage: Callable[[], object]
) -> None:
    if shown.is_terminal:
        with Live(console=shown, auto_refresh=False, transient=True) as live:
            while True:
                for note in notes():
                    live.console.print(note)
                live.update(Text("\n".join(lines())), refresh=True)
                await asyncio.sleep(_REDRAW_S)
    loop = asyncio.get_running_loop()
    said, said_at, said_of = "", 0.0, None
    try:
        while True:
            for note in notes():
                click.echo(note, err=True)
            now, line = stage(), lines()[0]
            if line != said and (now != said_of or loop.time() >= said_at + _LINE_S):
                click.echo(line, err=True)
                said, said_at, said_of = line, loop.time(), now
            await asyncio.sleep(_LOOK_S)
    finally:  # what came since the last look, such as how far it was when it was interrupted
        if stage() != said_of:
            click.echo(lines()[0], err=True)


def _stage(watched: Watched) -> object:
    """Return the part of the state whose changes are shown without delay."""
    record, meter = watched.record, watched.meter
    listed = meter is not None and meter.progress().ledgers_total > 0
    return None if record is None else (record.phase, listed, watched.waiting_for)


def _notes(watched: Watched) -> list[str]:
    """Take the notes, so that each is shown once."""
    notes, watched.notes = watched.notes, []
    return [f"note: {note}" for note in notes]


def _coordinator_lines(watched: Watched, title: str) -> list[str]:
    record, meter = watched.record, watched.meter
    if record is None:
        return [f"{title}: begins"]
    if record.phase is Phase.DRAINING and meter is not None:
        progress = meter.progress()
        if not progress.ledgers_total:
            return [f"{title}: listing ledgers, {watched.ledgers_read} so far{_waiting(watched)}"]
        in_work = [f"  ledger {i}: {size_text(nbytes)} copied" for i, nbytes in list(meter.in_work.items())[:_SHOWN]]
        return [f"{title}: {_line(progress)}{_waiting(watched)}", *in_work, *_blockers(progress)]
    detail = f", {watched.ledgers_read} ledgers read" if record.phase is Phase.PROVING else ""
    return [f"{title}: {record.phase.value}{detail}{_waiting(watched)}"]


def _waiting(watched: Watched) -> str:
    return f"; waits: {watched.waiting_for}" if watched.waiting_for else ""


def _line(progress: DrainProgress) -> str:
    parts = [
        f"{progress.ledgers_left} of {progress.ledgers_total} ledgers left",
        f"{size_text(progress.bytes_left)} of {size_text(progress.bytes_total)} left",
        f"{size_text(progress.bytes_copied)} copied",
    ]
    if progress.eta_s:
        parts.append(f"about {duration_text(progress.eta_s)}")
    if progress.blocked:
        first = progress.blockers[0]
        parts.append(f"{progress.blocked} blocked (ledger {first.ledger_id}: {first.reason})")
    return ", ".join(parts)


def _blockers(progress: DrainProgress) -> list[str]:
    return [f"  ledger {blocker.ledger_id}: {blocker.reason}" for blocker in progress.blockers[:_SHOWN]]
