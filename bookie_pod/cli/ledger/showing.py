"""Metadata of ledgers, for people and for programs; recovery and deletion."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

import click
from rich.table import Table

from bookie_client.streams.store import ManifestStore
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.tables import facts, print_table
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger, PodkeeperError, Refused
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.shown import moment

_COLUMNS: Final = ("ledger_id", "state", "entries", "bytes", "ensemble_size", "write_quorum", "ack_quorum", "digest")

_COUNTS: Final = ("entries", "bytes")


def as_dict(metadata: LedgerMetadata) -> dict[str, Any]:
    """Return the metadata as `--json` prints them, without the password. Entries and bytes are null unless the
    ledger is closed."""
    closed, created = metadata.is_closed, moment(metadata.ctime or None)
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "entries": metadata.last_entry_id + 1 if closed else None,
        "bytes": metadata.length if closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "digest": metadata.digest_type.name if metadata.digest_type else None,
        "has_password": bool(metadata.password) if metadata.password is not None else None,
        "created": None if created is None else created.isoformat(),
        "format_version": metadata.format_version,
        "ensembles": {str(first): list(bookies) for first, bookies in metadata.ensembles.items()},
        "custom_metadata": {name: _text(value) for name, value in metadata.custom_metadata.items()},
    }


async def list_ledgers(cluster: Cluster, *, is_long: bool, as_json: bool) -> None:
    """Print ids, or a table; as JSON one object a line."""
    if not is_long:
        async for ledger_id in cluster.client.list():
            click.echo(json.dumps({"ledger_id": ledger_id}) if as_json else ledger_id)
        return
    table = Table(*(name.replace("_", " ") for name in _COLUMNS), box=None)
    async for ledger_id in cluster.client.list():
        try:
            fields = as_dict(await cluster.client.metadata(ledger_id))
        except NoSuchLedger:
            continue  # deleted since it was listed
        except MetadataDamaged as error:  # reported in its place: those behind it are listed all the same
            fields = {**dict.fromkeys(_COLUMNS), "ledger_id": ledger_id, "state": "DAMAGED"}
            click.echo(f"bookie: {error}", err=True)
        if as_json:
            click.echo(json.dumps({name: fields[name] for name in _COLUMNS}))
        else:
            table.add_row(*(_cell(name, fields[name]) for name in _COLUMNS))
    if not as_json:
        print_table(table)


async def show_ledger(cluster: Cluster, ledger_id: int, *, as_json: bool) -> None:
    """Print the metadata of one ledger."""
    _show(await cluster.client.metadata(ledger_id), as_json)


async def recover_ledger(cluster: Cluster, ledger_id: int, password: bytes, digest: str, *, as_json: bool) -> None:
    """Recover, and print the metadata of the closed ledger."""
    with Bar(f"recovering ledger {ledger_id}"):
        metadata = await cluster.client.recover(ledger_id, password=password, digest=DigestType[digest])
    _show(metadata, as_json)


async def delete_ledgers(cluster: Cluster, ledger_ids: Sequence[int], *, force: bool, as_json: bool) -> None:
    """Delete ledgers in order; as JSON each is printed when it is gone.

    Those that stay are reported at the end, so that one does not hold up the others, and an interrupted command can be
    repeated: raises `NoSuchLedger` for those that do not exist, and, without `force`, `MetadataDamaged` for those that
    cannot be read and `Refused` for those that a stream lists.
    """
    listing = {} if force else await ManifestStore(cluster.service).listing(set(ledger_ids))
    left: dict[type[PodkeeperError], list[str]] = {Refused: [], MetadataDamaged: [], NoSuchLedger: []}
    with Bar("deleting", len(ledger_ids)) as bar:
        for ledger_id in ledger_ids:
            streams = ", ".join(sorted(listing.get(ledger_id, ())))
            try:
                if streams:
                    raise Refused(f"ledger {ledger_id} belongs to stream {streams}")
                await _check_known(cluster, ledger_id, force)
            except (NoSuchLedger, MetadataDamaged, Refused) as error:
                kind = next(each for each in left if isinstance(error, each))
                left[kind].append(f"ledger {ledger_id} does not exist" if kind is NoSuchLedger else str(error))
            else:
                await cluster.client.delete(ledger_id)
                if as_json:
                    click.echo(json.dumps({"ledger_id": ledger_id, "deleted": True}))
            bar.advance(1)
    for kind, reasons in left.items():
        if reasons:
            told = "; ".join(reason for each in left.values() for reason in each)
            way = "" if kind is NoSuchLedger else " (--force deletes them all the same)"
            raise kind(f"{told}; all others that were named are deleted{way}")


async def _check_known(cluster: Cluster, ledger_id: int, force: bool) -> None:
    try:
        await cluster.client.metadata(ledger_id)
    except MetadataDamaged:
        if not force:
            raise


def _show(metadata: LedgerMetadata, as_json: bool) -> None:
    fields = as_dict(metadata)
    if as_json:
        click.echo(json.dumps(fields))
        return
    table = facts()
    for name, value in fields.items():
        if not isinstance(value, dict):
            table.add_row(name.replace("_", " "), _cell(name, value))
    for first, bookies in fields["ensembles"].items():
        table.add_row(f"from entry {first}", ", ".join(bookies))
    for name, value in fields["custom_metadata"].items():
        table.add_row(f"property {name}", _cell(name, value))
    print_table(table)


def _cell(name: str, value: object) -> str:
    return "-" if value is None else f"{value:,}" if name in _COUNTS else str(value)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
