"""`bookie disk rebuild-index-files`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bookie_pod.cli.disk import UNCLEAN, disk, number, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.disk.rebuild import ACCEPT_DAMAGE, step_bytes
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_pod.cli.passwords import PASSWORD_VARIABLE, password_option, read_password
from bookie_protocol.errors import BadRequest, NotThere

if TYPE_CHECKING:
    from bookie_pod.storage.index_rebuild.index_files import IndexFilesReport
    from bookie_pod.storage.index_rebuild.swap import DiskStores


@disk.command("rebuild-index-files")
@click.option("-l", "--ledger", "ledgers", multiple=True, metavar="ID", help="A ledger. Give it again for another.")
@click.option("--missing", is_flag=True, help="Every ledger that has entries in the logs and no index file.")
@click.option("--dry-run", is_flag=True, help="Build and count, but change nothing.")
@password_option
@ACCEPT_DAMAGE
@UNCLEAN
@AS_JSON_LINES
@on_disk()
def rebuild_index_files(
    place: Place,
    ledgers: tuple[str, ...],
    missing: bool,
    dry_run: bool,
    password_file: str | None,
    accept_damage: bool,
    unclean: bool,
    as_json: bool,
) -> int:
    """Rebuild index files of SortedLedgerStorage or InterleavedLedgerStorage from the entry logs.

    Key and fence come from the old file. Where its header is gone, the ledger is fenced, and its key is made from the
    password, if one is given. (Apache: regenerate-interleaved-storage-index-file)
    """
    from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
    from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
    from bookie_pod.storage.index_rebuild.swap import backup_suffix
    from bookie_pod.storage.inspect.index import FileIndex
    from bookie_pod.storage.inspect.logs import StoredLogs

    need_ledgers(place)
    if bool(ledgers) == missing:
        raise click.UsageError("give ledgers with -l, or --missing")
    with place.to_change(unclean=unclean) as stores:
        _refuse_databases(stores, place.layout.index_folders)
        logs = StoredLogs(place.files, place.layout.ledgers, place.options)
        old = FileIndex(place.files, place.layout.index_folders)
        chosen = _missing(logs, old) if missing else {number(text) for text in ledgers}
        if not chosen:
            raise NotThere("every ledger in the entry logs has its index file")
        keys = _keys(chosen, password_file)
        deleted = DeletedLedgers(place.files, logs.folders[0])
        rebuilding = IndexFilesRebuild(
            place.files, logs, old, place.layout.index_folders[0], chosen, keys, deleted.may_be_earlier_life
        )
        report = rebuilding.report
        try:
            step_bytes(rebuilding, report, "reading entry logs")
            refused = bool(report.damages) and not accept_damage
            if dry_run or refused:
                rebuilding.discard()
            else:
                rebuilding.commit(backup_suffix())
        finally:
            rebuilding.close()
            logs.close()
    _tell_of_index_files(report, changed=not dry_run and not refused, as_json=as_json)
    if refused:
        click.echo("bookie: nothing was changed: --accept-damage puts the new files in place", err=True)
    return CommandExit.DAMAGED if refused else CommandExit.OK


def _refuse_databases(stores: DiskStores, folders: Sequence[str]) -> None:
    from bookie_pod.storage.index.store import StoreKind

    for folder in folders:
        if any(stores.exists(f"{folder}/{kind.value}") for kind in StoreKind):
            raise BadRequest(f"{folder} was written by DbLedgerStorage, which has no index files")


def _tell_of_index_files(report: IndexFilesReport, *, changed: bool, as_json: bool) -> None:
    for end in report.damages:
        click.echo(f"bookie: damaged entry log: {end.detail}", err=True)
    if as_json:
        print_json(
            {
                "ledgers": report.ledgers,
                "entries": report.entries,
                "empty": report.empty,
                "fenced_in_doubt": report.fenced_in_doubt,
                "without_key": report.without_key,
                "changed": changed,
            }
        )
        return
    click.echo(
        f"{report.ledgers} index files with {report.entries} entries; {report.fenced_in_doubt} ledgers fenced "
        f"because their header was gone, {report.without_key} without a key, {report.empty} without entries"
    )


def _missing(logs: Any, old: Any) -> set[int]:
    """Ledgers in the logs without an index file."""
    checked: dict[int, bool] = {}
    for log_id in logs.log_ids():
        for ledger_id in logs.ledgers_map(log_id).ledgers:
            if ledger_id not in checked:
                checked[ledger_id] = old.path(ledger_id) is None
    return {ledger_id for ledger_id, lacks in checked.items() if lacks}


def _keys(ledger_ids: set[int], password_file: str | None) -> dict[int, bytes]:
    if password_file is None and PASSWORD_VARIABLE not in os.environ:
        return {}
    from bookie_protocol.keys import master_key

    key = master_key(read_password(password_file))
    return dict.fromkeys(ledger_ids, key)
