"""`kubectl bookie migrate`: other bookies leave the metadata root that a cluster has joined.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_operator.plugin.connection import Api, Connection, connects
from bookie_operator.plugin.faults import ExitCode, Fault, NotThereFault, RefusedFault, UsageFault, explained

if TYPE_CHECKING:
    from bookie_operator.plugin.migration import Migration, Outlooks, View
    from bookie_operator.plugin.strangers import Stranger

_EVERY_S: Final = 5.0
_TELL_S: Final = 10.0
"""Seconds between two lines about one bookie that differ in numbers only."""
_FAILURES: Final = 60
"""Looks in a row without an answer, before a run is given up."""

_output = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_in_place = click.option(
    "--in-place",
    is_flag=True,
    help="The bookies of a StatefulSet become the cluster's, on their volumes and with their ids: nothing is copied.",
)
_bookies = click.option(
    "--bookie", "bookies", multiple=True, metavar="ID", help="Only this one. May be given again. [default: all]"
)


@click.group()
def migrate() -> None:
    """Move other bookies to a cluster: beside, or in place.

    Beside, the cluster has joined their metadata root, and they leave it: each is decommissioned by the bookies of the
    cluster. What it holds is copied to others while it serves, and nothing of it is deleted but its cookie, once it is
    proved that no ledger needs it. In place (--in-place), their StatefulSet becomes the cluster's, which restarts them
    one by one. Documentation: docs/migrate.md.
    """


@migrate.command("plan")
@click.argument("name")
@_in_place
@_output
@connects
def plan(connection: Connection, name: str, in_place: bool, output: str) -> int:
    """Show what is to be moved to the bookies of cluster NAME, and any blockers. Changes nothing."""
    if in_place:
        from bookie_operator.plugin import in_place as command

        return connection.run(lambda api: command.plan(api, name, output))

    async def work(api: Api) -> tuple[View, Outlooks]:
        from bookie_operator.plugin.migration import migration

        async with migration(api, name) as found:
            view = await found.look()
            return view, await found.outlooks(view, view.strangers)

    view, outlooks = connection.run(work)
    if output == "json":
        click.echo(json.dumps({**_members(view), **asdict(outlooks)}, indent=2))
    else:
        _print_plan(view, outlooks)
    return ExitCode.REFUSED if outlooks.refusals else ExitCode.OK


@migrate.command("status")
@click.argument("name")
@_in_place
@_output
@connects
def status(connection: Connection, name: str, in_place: bool, output: str) -> None:
    """Show the bookies that are still there beside those of cluster NAME, the progress of each, and the next step."""
    if in_place:
        from bookie_operator.plugin import in_place as command

        connection.run(lambda api: command.status(api, name, output))
        return

    async def work(api: Api) -> View:
        from bookie_operator.plugin.migration import migration

        async with migration(api, name) as found:
            return await found.look()

    view = connection.run(work)
    if output == "json":
        click.echo(json.dumps(_members(view), indent=2))
    else:
        _print_status(view)


@migrate.command("run")
@click.argument("name")
@_in_place
@_bookies
@click.option(
    "--at-once",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Bookies that are read-only and drained at the same time. With all of them nothing is copied twice.",
)
@connects
def run(connection: Connection, name: str, in_place: bool, bookies: tuple[str, ...], at_once: int) -> None:
    """Take them out, one after the other, and say when the pod of each may go; or hand them over in place.

    May be ended at any moment, and started again: it goes on where it was. What is under way goes on without it.
    """
    if in_place:
        from bookie_operator.plugin import in_place as command

        if bookies or at_once != 1:
            raise UsageFault("in place the operator chooses who is next: leave --bookie and --at-once out")
        connection.run(lambda api: command.run(api, name))
        return
    connection.run(lambda api: _Run(api, name, frozenset(bookies), at_once).until_done())


@migrate.command("undo")
@click.argument("name")
@_in_place
@_bookies
@connects
def undo(connection: Connection, name: str, in_place: bool, bookies: tuple[str, ...]) -> None:
    """Make those writable again that are not taken out yet; in place, give all back. A run that goes on ends."""
    if in_place:
        from bookie_operator.plugin import in_place as command

        if bookies:
            raise UsageFault("in place all of them go back to their StatefulSet: leave --bookie out")
        connection.run(lambda api: command.undo(api, name))
        return
    connection.run(lambda api: _undone(api, name, bookies))


# --- running ------------------------------------------------------------------------------------------------------


class _Run:
    def __init__(self, api: Api, name: str, only: frozenset[str], at_once: int) -> None:
        self._api = api
        self._name = name
        self._only = only
        self._at_once = at_once
        self._checked: set[str] | None = None
        """Bookies that the plan did not speak against; None: it was not made yet."""
        self._under_way: set[str] = set()
        """Bookies that this command has begun, or has found so."""
        self._told: dict[str, tuple[object, str, float]] = {}

    async def until_done(self) -> None:
        from bookie_operator.api.errors import TooManyRequests, Unreachable
        from bookie_operator.plugin.migration import migration

        failures = 0
        try:
            while True:
                try:
                    # Again each time: pods come and go, and their addresses change.
                    async with migration(self._api, self._name) as work:
                        if await self._step(work):
                            return
                    failures = 0
                except (RefusedFault, NotThereFault):
                    raise
                except (Fault, Unreachable, TooManyRequests) as error:
                    failures += 1
                    if failures > _FAILURES or self._checked is None:
                        raise
                    shown = error if isinstance(error, Fault) else explained(error, self._api.server)
                    click.echo(f"kubectl-bookie: {shown}; looks again", err=True)
                await asyncio.sleep(_EVERY_S)
        except asyncio.CancelledError:
            click.echo(
                f"interrupted: what is under way goes on; `kubectl bookie migrate run {self._name}` goes on with the"
                f" rest, `kubectl bookie migrate undo {self._name}` takes it back",
                err=True,
            )
            raise

    async def _step(self, work: Migration) -> bool:
        """Look, and do the next thing. True: nothing is left to do."""
        from bookie_operator.plugin.strangers import Stage

        view = await work.look()
        chosen = await _chosen(work, view, self._only)
        await self._check(work, view, chosen)
        for gone in self._told.keys() - {each.bookie_id for each in view.strangers} - {""}:
            click.echo(f"{gone}: gone")
            del self._told[gone]
        for each in chosen:
            await self._follow(work, each)
        if not chosen:
            whose = "of these bookies none is" if self._only else "no bookie of somebody else is"
            click.echo(f"{whose} left in the metadata root of {self._name}")
            return True
        waiting = [each for each in chosen if each.stage is Stage.TO_DRAIN]
        if waiting and len(chosen) - len(waiting) < self._at_once:
            await self._begin(work, view, waiting[0])
        return False

    async def _check(self, work: Migration, view: View, chosen: Sequence[Stranger]) -> None:
        """Check once, and again when a bookie has come meanwhile, such as a bookie of another resource."""
        from bookie_operator.plugin.strangers import Stage, out_of_turn

        waiting = {each.bookie_id for each in chosen if each.stage is Stage.TO_DRAIN}
        if waiting - self._under_way - (self._checked or set()):
            if words := out_of_turn(chosen, view.strangers):
                raise RefusedFault(words)
            outlooks = await work.outlooks(view, chosen)
            for note in outlooks.notes:
                click.echo(f"note: {note}", err=True)
            if outlooks.refusals:
                raise RefusedFault("; ".join(outlooks.refusals))
        self._checked = waiting | (self._checked or set())

    async def _begin(self, work: Migration, view: View, stranger: Stranger) -> None:
        if obstacle := _obstacle(view):
            self._tell("", obstacle, f"waits: {obstacle}")
            return
        self._told.pop("", None)
        await work.begin(stranger.bookie_id)
        self._under_way.add(stranger.bookie_id)
        click.echo(f"{stranger.bookie_id}: begun")

    async def _follow(self, work: Migration, stranger: Stranger) -> None:
        from bookie_operator.plugin.strangers import Stage, removal

        bookie_id, drain = stranger.bookie_id, stranger.drain
        match stranger.stage:
            case None:
                raise Fault(f"the progress of {bookie_id} is unknown: repeat the command")
            case Stage.UNDOING:
                raise RefusedFault(f"{bookie_id} is being taken back: this run ends")
            case Stage.TO_DRAIN if bookie_id in self._under_way and not _keeps_cookie(stranger):
                raise RefusedFault(_given_up(stranger))
            case Stage.STOPPED:
                await work.begin(bookie_id)
                self._tell(bookie_id, Stage.STOPPED, "goes on, since no process worked on it")
            case Stage.DRAINING:
                self._tell(bookie_id, _blocked(stranger), _progress(stranger))
            case Stage.TO_REMOVE:
                proven = drain.proven_ledgers if drain is not None else None
                self._tell(
                    bookie_id,
                    Stage.TO_REMOVE,
                    f"taken out: of {'all' if proven is None else proven} ledgers none names it, and its cookie is"
                    f" gone. Now {removal(stranger)}",
                )
        if stranger.stage is not Stage.TO_DRAIN:
            self._under_way.add(bookie_id)

    def _tell(self, bookie_id: str, kind: object, text: str) -> None:
        """Every change of kind at once; what only goes on, of which the kind is a tuple, now and then."""
        before, words, at = self._told.get(bookie_id, (None, "", 0.0))
        now = time.monotonic()
        if kind != before or (isinstance(kind, tuple) and text != words and now - at >= _TELL_S):
            self._told[bookie_id] = kind, text, now
            click.echo(f"{bookie_id}: {text}" if bookie_id else text)


def _obstacle(view: View) -> str:
    """Return why the next one is not begun now; empty: it may be."""
    if (operation := view.status.operation) is not None:
        return f"the operator is at work on {view.cluster} ({operation.type.value} {operation.bookie}".rstrip() + ")"
    away = sorted(each.name for each in view.status.bookies if each.bookie_id and each.bookie_id not in view.ready)
    if away:
        return f"{', '.join(away[:5])} of {view.cluster} is not writable"
    return ""


def _keeps_cookie(stranger: Stranger) -> bool:
    """Return whether it was drained and its cookie left: the rest is soon done."""
    from bookie_operator.world.facts import DrainPhase

    return stranger.drain is not None and stranger.drain.phase is DrainPhase.DRAINED and stranger.mode != "writable"


def _given_up(stranger: Stranger) -> str:
    from bookie_operator.world.facts import DrainPhase

    drain = stranger.drain
    if drain is not None and drain.phase is DrainPhase.DRAINED:
        return f"{stranger.bookie_id} has come back since it was taken out: remove its pod for good, then run it again"
    if drain is not None and drain.message:
        return f"{stranger.bookie_id}: {drain.message}"
    return f"the decommission of {stranger.bookie_id} was taken back: this run ends"


async def _chosen(work: Migration, view: View, only: frozenset[str]) -> list[Stranger]:
    """Raises `NotThereFault` for one that is not there, and was not taken out."""
    there = {each.bookie_id for each in view.strangers}
    for bookie_id in sorted(only - there):
        if not await work.is_taken_out(bookie_id):
            listed = ", ".join(sorted(there)) or "none"
            raise NotThereFault(f"there is no bookie {bookie_id} beside those of the cluster; there are: {listed}")
    return [each for each in view.strangers if not only or each.bookie_id in only]


async def _undone(api: Api, name: str, bookies: Sequence[str]) -> None:
    from bookie_operator.plugin.migration import migration
    from bookie_operator.plugin.strangers import Stage

    async with migration(api, name) as work:
        chosen = await _chosen(work, await work.look(), frozenset(bookies))
        faults: list[Fault] = []
        begun = [each for each in chosen if each.stage in (Stage.DRAINING, Stage.STOPPED, Stage.UNDOING)]
        for each in begun:
            try:
                await work.undo(each.bookie_id)
                click.echo(f"{each.bookie_id}: taken back, it takes new data again")
            except Fault as fault:
                faults.append(fault)
        for each in chosen:
            if each.stage is Stage.TO_REMOVE:
                click.echo(f"{each.bookie_id}: is taken out already, and has no cookie any more")
            elif each.stage is None:
                faults.append(Fault(f"the progress of {each.bookie_id} is unknown: repeat the command"))
    if faults:
        raise faults[0]
    if not begun:
        click.echo("nothing is under way")


# --- showing ------------------------------------------------------------------------------------------------------


def _members(view: View) -> dict[str, Any]:
    shown = [asdict(each) | {"stage": each.stage} for each in view.strangers]
    return {"cluster": view.cluster, "writable": sorted(view.ready), "bookies": shown}


def _print_plan(view: View, outlooks: Outlooks) -> None:
    from bookie_operator.crds.quantity import readable
    from bookie_operator.plugin.tables import plain_table, print_to_terminal

    if not view.strangers:
        click.echo(f"nothing to do: all bookies of this metadata root are of {view.cluster}")
        return
    table = plain_table("BOOKIE", "MODE", "LEDGERS", "OPEN", "TO COPY", "POD", "STAGE")
    for each in view.strangers:
        found = outlooks.by_bookie.get(each.bookie_id)
        numbers = ("?", "?", "?")
        if found is not None:
            numbers = str(found.ledgers), str(found.open_ledgers), readable(found.nbytes)
        table.add_row(each.bookie_id, each.mode, *numbers, _pod(each), _stage(each))
    largest = max((each.largest_ensemble for each in outlooks.by_bookie.values() if each is not None), default=0)
    print_to_terminal(table)
    click.echo(f"to copy: {readable(outlooks.nbytes)}; your bookies have room for {readable(outlooks.free_bytes)}")
    click.echo(
        f"bookies: {len(view.ready)} of yours are writable; the largest ensemble of a ledger is {largest or '?'}"
    )
    for note in outlooks.notes:
        click.echo(f"note: {note}")
    for refusal in outlooks.refusals:
        click.echo(f"refused: {refusal}")
    if not outlooks.refusals:
        click.echo(f"`kubectl bookie migrate run {view.cluster}` begins with {view.strangers[0].bookie_id}")


def _print_status(view: View) -> None:
    from bookie_operator.plugin.strangers import Stage, removal
    from bookie_operator.plugin.tables import plain_table, print_to_terminal

    if not view.strangers:
        click.echo(f"all bookies of this metadata root are of {view.cluster}")
        return
    table = plain_table("BOOKIE", "MODE", "POD", "STAGE", "PROGRESS")
    for each in view.strangers:
        progress = ""
        if each.stage is Stage.DRAINING:
            progress = _progress(each)
        elif each.stage is Stage.TO_REMOVE:
            progress = removal(each)
        table.add_row(each.bookie_id, each.mode, _pod(each), _stage(each), progress)
    print_to_terminal(table)
    if obstacle := _obstacle(view):
        click.echo(f"a run waits: {obstacle}")
    elif any(each.stage in (Stage.TO_DRAIN, Stage.STOPPED) for each in view.strangers):
        click.echo(f"`kubectl bookie migrate run {view.cluster}` goes on")


def _pod(stranger: Stranger) -> str:
    return f"{stranger.place.namespace}/{stranger.place.pod}" if stranger.place is not None else "?"


def _stage(stranger: Stranger) -> str:
    return stranger.stage.value if stranger.stage is not None else "?"


def _blocked(stranger: Stranger) -> tuple[str, ...]:
    """Return what distinguishes one state of a drain from another, to report each change: why it does not go on."""
    return ("draining", *stranger.drain.blockers[:1]) if stranger.drain is not None else ("draining",)


def _progress(stranger: Stranger) -> str:
    from bookie_operator.crds.quantity import readable
    from bookie_operator.plugin.tables import duration

    drain = stranger.drain
    if drain is None or drain.ledgers_left is None:
        return "draining"
    words = f"{drain.ledgers_left} ledgers left, {readable(drain.bytes_left or 0)}"
    if drain.eta_seconds is not None:
        words += f", about {duration(drain.eta_seconds)}"
    if drain.blockers:
        words += f"; ledger {drain.blockers[0]}"
    return words
