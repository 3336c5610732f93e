"""What a cluster looks like: its bookies, and in a few lines the whole."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import click
from rich.table import Table

from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.tables import print_table
from bookie_protocol.errors import MetadataNotFound, NoSuchLedger, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup

ASKED_AT_A_TIME: Final = 32
_GB: Final = 1_000_000_000


@dataclass(slots=True)
class BookieState:
    """One bookie; sizes in bytes. `problem`: why it could not be asked."""

    bookie_id: str
    state: str
    address: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str | None = None


async def bookie_states(cluster: Cluster) -> list[BookieState]:
    """Every bookie that ever stamped a cookie or is registered, in the order of ids. Raises `MetadataError`."""
    registry = cluster.service.bookies
    writable = (await registry.list(BookieGroup.WRITABLE)).bookies
    read_only = (await registry.list(BookieGroup.READ_ONLY)).bookies
    known = (await registry.list(BookieGroup.ALL)).bookies
    states = []
    for bookie_id in sorted(writable | read_only | known):
        state = "writable" if bookie_id in writable else "read-only" if bookie_id in read_only else "down"
        states.append(BookieState(bookie_id, state))
    places = asyncio.Semaphore(ASKED_AT_A_TIME)
    await asyncio.gather(*(_ask(cluster, bookie, places) for bookie in states if bookie.state != "down"))
    return states


async def show_bookies(cluster: Cluster, wanted: Sequence[str] = (), *, as_json: bool) -> None:
    """Print those in a `wanted` state, without any all of them; as JSON one object a line."""
    states = [state for state in await bookie_states(cluster) if not wanted or state.state in wanted]
    if as_json:
        for state in states:
            click.echo(json.dumps(asdict(state)))
        return
    table = Table("bookie", "state", "address", "free", "of", "problem", box=None)
    for state in states:
        sizes = (_size(state.free_bytes), _size(state.total_bytes))
        table.add_row(state.bookie_id, state.state, state.address or "-", *sizes, state.problem or "")
    print_table(table)


async def show_status(cluster: Cluster, uri: str, *, count: bool, as_json: bool) -> int:
    """Print the whole; returns the exit code."""
    service = cluster.service.cluster
    layout = await service.layout()
    states = Counter(bookie.state for bookie in await bookie_states(cluster))
    status: dict[str, object] = {
        "metadata_service": uri,
        "instance_id": await service.instance_id(),
        "layout": layout.value.rpartition(".")[2] if layout is not None else None,
        "bookies": {name: states[name] for name in ("writable", "read-only", "down")},
    }
    if count:
        status["ledgers"] = await _count_ledgers(cluster)
    if as_json:
        click.echo(json.dumps(status))
    else:
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        for name, value in status.items():
            shown = (
                ", ".join(f"{number:,} {kind}" for kind, number in value.items()) if isinstance(value, dict) else value
            )
            table.add_row(name.replace("_", " "), str(shown))
        print_table(table)
    return CommandExit.OK if states["writable"] else CommandExit.COULD_NOT_TELL


async def _count_ledgers(cluster: Cluster) -> dict[str, int]:
    states = Counter[str]()
    with Bar("counting ledgers") as bar:
        async for ledger_id in cluster.client.list():
            try:
                states[(await cluster.client.metadata(ledger_id)).state.value.lower()] += 1
            except NoSuchLedger:
                continue  # deleted since it was listed
            bar.advance(1)
    return {name: states[name] for name in ("open", "in_recovery", "closed")}


async def _ask(cluster: Cluster, bookie: BookieState, places: asyncio.Semaphore) -> None:
    async with places:
        try:
            address = (await cluster.service.bookies.service_info(bookie.bookie_id)).bookie_address()
            bookie.address = f"{address[0]}:{address[1]}" if address else None
            info = await cluster.client.bookie_info(bookie.bookie_id)
        except MetadataNotFound:
            bookie.state = "down"
        except PodkeeperError as error:
            bookie.problem = str(error)
        else:
            bookie.total_bytes, bookie.free_bytes = info.total_bytes, info.free_bytes


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / _GB:,.1f} GB"
