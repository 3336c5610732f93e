"""Streams for people and for programs; truncation and deletion.

`offloaded` shows which ledgers of a stream are in an archive, by the records that `bookie job offload` keeps in the
metadata service.

Invariants
- A ledger counts with as many entries as the stream lists, as for the Spark source and the jobs.
- An unknown state raises, and is never "not there".

Event loop of the client only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click
from rich.table import Table

from bookie_client.streams import Manifest, StreamCursor, StreamPosition, Streams, StreamSettings
from bookie_client.streams.model import AT_ONCE, START, StreamLedger
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.stream.entries import position
from bookie_pod.cli.tables import facts, print_table
from bookie_protocol.archive import KIND
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger, NoSuchStream, StreamPositionGone
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.shown import moment
from bookie_protocol.together import bounded

_LIST: Final = ("stream", "state", "ledger_count", "entries", "bytes", "generation", "writer")
_LEDGER: Final = ("ledger_id", "state", "entries", "bytes", "closed", "offloaded", "under_replicated")
_CURSOR: Final = ("cursor", "position", "behind", "moved")
_COUNTS: Final = ("ledger_count", "entries", "bytes", "behind")


def streams_of(cluster: Cluster) -> Streams:
    """The streams for administration: ledgers are opened with the password that each recorded."""
    return Streams(cluster.client, password=None)


async def create_stream(
    cluster: Cluster, name: str, settings: Mapping[str, Any], *, if_absent: bool, as_json: bool
) -> None:
    """Create it, and print its name."""
    made = StreamSettings(**{**settings, "digest": DigestType[settings["digest"]]})
    manifest = await streams_of(cluster).create(name, made, if_absent=if_absent)
    click.echo(json.dumps(_summary(manifest)) if as_json else manifest.name)


async def list_streams(cluster: Cluster, *, is_long: bool, as_json: bool) -> None:
    """Print names, or a table; as JSON one object a line."""
    streams = streams_of(cluster)
    rows: list[dict[str, Any]] = []
    for name in sorted(await streams.names()):
        if not is_long:
            click.echo(json.dumps({"stream": name}) if as_json else name)
            continue
        try:
            fields = _summary(await streams.manifest(name))
        except NoSuchStream:
            continue  # deleted since it was listed, or on its way
        except MetadataDamaged as error:  # reported in its place: those behind it are listed all the same
            fields = {**dict.fromkeys(_LIST), "stream": name, "state": "damaged"}
            click.echo(f"bookie: {error}", err=True)
        if as_json:
            click.echo(json.dumps(fields))
        else:
            rows.append(fields)
    if is_long and not as_json:
        _print_rows(_LIST, rows)


async def show_stream(cluster: Cluster, name: str, *, as_json: bool) -> None:
    """Print everything about one stream."""
    streams = streams_of(cluster)
    manifest = await streams.manifest(name)
    end = await streams.end(name)
    cursors = await streams.cursors(name)
    archived = await offloaded(cluster.client.metadata_service, manifest)
    fields = _as_dict(manifest, end, cursors, archived, await _marked(cluster, manifest))
    fields["newest_ledger_created"] = await _created(cluster, manifest)
    if as_json:
        click.echo(json.dumps(fields))
        return
    table = facts()
    for key, value in fields.items():
        if not isinstance(value, dict | list):
            table.add_row(key.replace("_", " "), _cell(key, value))
    for key, value in fields["settings"].items():
        table.add_row(key.replace("_", " "), _cell(key, value))
    print_table(table)
    _print_rows(_LEDGER, fields["ledgers"])
    if cursors:
        _print_rows(_CURSOR, fields["cursors"])


async def truncate_stream(cluster: Cluster, name: str, before: str | None, *, force: bool, as_json: bool) -> None:
    """Truncate, or (`before` None) apply the retention; print the ledgers that were deleted."""
    streams = streams_of(cluster)
    gone = False
    with Bar("truncating"):
        if before is None:
            deleted = await streams.apply_retention(name)
        else:
            manifest = await streams.manifest(name)
            at = position(manifest, before, manifest.closed_end)
            gone = _is_gone(manifest, at)
            deleted = await streams.truncate(name, at, force=force)
    if gone:
        click.echo(
            f"warning: stream {name} begins at {manifest.earliest}, and {at} is not a position in it: it was truncated"
            " already, or it never was; nothing more was truncated",
            err=True,
        )
    for ledger_id in deleted:
        click.echo(json.dumps({"ledger_id": ledger_id}) if as_json else ledger_id)


async def seal_stream(cluster: Cluster, name: str, *, as_json: bool) -> None:
    """Seal it, and print where it ends."""
    with Bar(f"sealing stream {name}"):
        manifest = await streams_of(cluster).seal(name)
    end = str(manifest.closed_end)
    click.echo(json.dumps({"stream": name, "end": end}) if as_json else end)


async def delete_streams(cluster: Cluster, names: Sequence[str], *, with_ledgers: bool, force: bool) -> None:
    """Delete them in order. Raises `NoSuchStream` at the end if some do not exist, so that a command that was
    interrupted can be given again."""
    streams = streams_of(cluster)
    missing = []
    with Bar("deleting", len(names)) as bar:
        for name in names:
            try:
                await streams.delete(name, with_ledgers=with_ledgers, force=force)
            except NoSuchStream:
                missing.append(name)
            bar.advance(1)
    if missing:
        raise NoSuchStream(f"there is no stream {', '.join(missing)}; all others that were named are deleted")


async def show_cursors(
    cluster: Cluster, name: str, move: tuple[str, str] | None, delete_it: str | None, *, as_json: bool
) -> None:
    """Print the cursors, after a change of one."""
    streams = streams_of(cluster)
    if move is not None:
        cursor_id, text = move
        at = position(await streams.manifest(name), text, await streams.end(name))
        stored = await streams.move_cursor(name, cursor_id, at)
        if stored.position != at:
            click.echo(
                f"warning: cursor {cursor_id} stays at {stored.position}, which is not before {at}: cursors only go"
                " forwards; delete it first to set it back",
                err=True,
            )
    if delete_it is not None:
        await streams.delete_cursor(name, delete_it)
    manifest, cursors = await streams.manifest(name), await streams.cursors(name)
    rows = _cursors(manifest, await streams.end(name), cursors)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    elif rows:
        _print_rows(_CURSOR, rows)


# --- inside ---------------------------------------------------------------------------------------------------


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "stream": manifest.name,
        "state": "open" if manifest.open_ledger else "closed",
        "ledger_count": len(manifest.ledgers),
        "entries": manifest.entries,
        "bytes": manifest.nbytes,
        "generation": manifest.generation,
        "writer": manifest.writer,
    }


def _is_gone(manifest: Manifest, at: StreamPosition) -> bool:
    """Return True if a position left the stream, or never was in it. Raises `BadRequest` as `Manifest.ordinal`."""
    try:
        manifest.ordinal(at)
    except StreamPositionGone:
        return True
    return False


async def _marked(cluster: Cluster, manifest: Manifest) -> frozenset[int]:
    """The ledgers of a stream that are marked as under-replicated."""
    marks = cluster.client.metadata_service.under_replication.list()
    return frozenset([mark.ledger_id async for mark in marks if mark.ledger_id in manifest])


def _as_dict(
    manifest: Manifest,
    end: StreamPosition,
    cursors: Mapping[str, StreamCursor],
    archived: frozenset[int],
    marked: frozenset[int],
) -> dict[str, Any]:
    """Return the stream as `info --json` prints it.

    The totals of entries and bytes are those of closed ledgers. The entries of an open ledger are the confirmed ones;
    its bytes are null, and so are pending adds, which only its writer knows.
    """
    shown_cursors = _cursors(manifest, end, cursors)
    opened = manifest.open_ledger
    return {
        **_summary(manifest),
        "earliest": _shown(manifest.earliest, manifest),
        "end": _shown(end, manifest),
        "last_confirmed_entry": _last_confirmed(manifest, end),
        "pending_adds": None if opened is not None else 0,
        "waiting_cursors": sum(not row["behind"] for row in shown_cursors),
        "newest_ledger": manifest.ledgers[-1].ledger_id if manifest.ledgers else None,
        "created": _time(manifest.created_ms),
        "to_be_deleted": len(manifest.retired_ids),
        "settings": {**asdict(manifest.settings), "digest": manifest.settings.digest.name},
        "transactions": {
            app: {"batch_id": last.batch_id, "rows": last.rows, "published": _time(last.published_ms)}
            for app, last in manifest.transactions.items()
        },
        "cursors": shown_cursors,
        "ledgers": [
            {
                "ledger_id": ledger.ledger_id,
                "state": "open" if ledger.is_open else "closed",
                "first_ordinal": ledger.first_ordinal,
                "entries": _confirmed(end, ledger.ledger_id) if ledger.is_open else ledger.entries,
                "bytes": ledger.nbytes,
                "closed": None if ledger.closed_ms is None else _time(ledger.closed_ms),
                "offloaded": ledger.ledger_id in archived,
                "under_replicated": ledger.ledger_id in marked,
            }
            for ledger in manifest.ledgers
        ],
    }


def _shown(position: StreamPosition, manifest: Manifest) -> str | None:
    """None in a stream without ledgers: there the beginning has no ledger to be in."""
    if position.ledger_id != START.ledger_id:
        return str(position)
    return f"{manifest.ledgers[0].ledger_id}:0" if manifest.ledgers else None


def _confirmed(end: StreamPosition, ledger_id: int) -> int:
    return end.entry_id if end.ledger_id == ledger_id else 0


def _last_confirmed(manifest: Manifest, end: StreamPosition) -> str | None:
    """The last entry that can be read; None: there is none."""
    if end == manifest.earliest:
        return None
    if end.ledger_id != START.ledger_id and end.entry_id:
        return f"{end.ledger_id}:{end.entry_id - 1}"
    last = next((each for each in reversed(manifest.closed) if each.entries), None)
    return None if last is None else f"{last.ledger_id}:{(last.entries or 0) - 1}"


async def _created(cluster: Cluster, manifest: Manifest) -> str | None:
    """Return the time at which the newest ledger was created; None if there is none, or it is unknown."""
    if not manifest.ledgers:
        return None
    try:
        metadata = await cluster.client.metadata(manifest.ledgers[-1].ledger_id)
    except (NoSuchLedger, MetadataDamaged):
        return None
    return None if metadata.ctime is None else _time(metadata.ctime)


def _cursors(manifest: Manifest, end: StreamPosition, cursors: Mapping[str, StreamCursor]) -> list[dict[str, Any]]:
    try:
        last = manifest.ordinal(end)
    except StreamPositionGone:  # truncated between the two
        last = manifest.end_ordinal
    return [
        {
            "cursor": cursor.cursor_id,
            "position": str(cursor.position),
            "behind": max(0, last - cursor.ordinal),
            "moved": _time(cursor.moved_ms),
        }
        for cursor in cursors.values()
    ]


def _print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(*(name.replace("_", " ") for name in columns), box=None)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in columns))
    print_table(table)


def _time(milliseconds: int) -> str | None:
    found = moment(milliseconds)
    return None if found is None else found.isoformat(timespec="seconds")


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    return "-" if value is None else f"{value:,}" if name in _COUNTS else str(value)


async def offloaded(service: MetadataService, manifest: Manifest) -> frozenset[int]:
    """The ledgers of a stream that are in an archive as a whole. Raises `MetadataUnavailable`, `MetadataDamaged`."""
    names = await service.records(KIND).names()
    noted = [ledger for ledger in manifest.ledgers if not ledger.is_open and str(ledger.ledger_id) in names]
    found = await bounded(noted, partial(_is_archived, service), AT_ONCE)
    return frozenset(ledger.ledger_id for ledger, is_archived in zip(noted, found, strict=True) if is_archived)


async def _is_archived(service: MetadataService, listed: StreamLedger) -> bool:
    there = await archived_ledger(service.records, listed.ledger_id)
    return there is not None and there.counts.entries == listed.entries
