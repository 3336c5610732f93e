"""`bookie disk rebuild-locations`, `rebuild-ledgers` and `rebuild-index-files`, and `convert` and `finish`.

The last two make an index in the form of another engine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_pod.cli.disk import UNCLEAN, disk, number, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, AS_JSON_LINES, PASSWORD_VARIABLE, password_option, read_password, tell
from bookie_protocol.errors import BadRequest, NotThere

if TYPE_CHECKING:
    from bookie_pod.storage.index_rebuild.index_files import IndexFilesReport
    from bookie_pod.storage.index_rebuild.locations import RebuildReport
    from bookie_pod.storage.index_rebuild.swap import DiskStores

ACCEPT_DAMAGE = click.option(
    "--accept-damage",
    is_flag=True,
    help="Put the new index in place although entry logs are damaged, the old one cannot be read, or entries that it"
    " names are not there: what lies behind the damage may be missing.",
)


@disk.command("rebuild-locations")
@ACCEPT_DAMAGE
@AS_JSON_LINES
@on_disk()
def rebuild_locations(place: Place, accept_damage: bool, as_json: bool) -> int:
    """Rebuild the `locations` databases of DbLedgerStorage from the entry logs.

    The old ones stay as backups. No new one is put in place before all are built. Rows of the old index that no log
    confirms are kept: what they lead to lies behind damage, or is lost here, and then reads of it fail. (Apache:
    rebuild-db-ledger-locations-index)
    """
    from bookie_pod.storage.index_rebuild.offline import OfflineLocations
    from bookie_pod.storage.index_rebuild.swap import finish
    from bookie_pod.storage.inspect.space import pairs

    need_ledgers(place)
    built = []
    with place.to_change(unclean=True) as stores, ExitStack() as ends:
        for ledger_folder, index_folder in pairs(place.layout):
            finish(place.files, stores, index_folder)
            logs, readers = _logs(place, ledger_folder), _readers()
            ends.callback(logs.close)
            rebuilding = OfflineLocations(place.files, stores, readers, index_folder, logs)
            ends.callback(rebuilding.close)
            step_bytes(rebuilding, rebuilding.report, f"reading entry logs of {ledger_folder}")
            built.append((index_folder, rebuilding))
        refused = not accept_damage and any(
            each.report.damaged_logs or each.report.lost or each.is_old_unread for _, each in built
        )
        for index_folder, rebuilding in built:
            if refused:
                rebuilding.discard()
            else:
                rebuilding.commit()
            _print_locations(index_folder, rebuilding, as_json)
    if refused:
        click.echo("bookie: nothing was changed: --accept-damage puts the new indexes in place", err=True)
        return CommandExit.DAMAGED
    return CommandExit.OK


def _print_locations(folder: str, rebuilding: Any, as_json: bool) -> None:
    report = rebuilding.report
    _tell_of_damage(report)
    unreadable = rebuilding.old_unreadable or report.old_unreadable
    if as_json:
        print_json(
            {
                "index": folder,
                "logs": report.logs,
                "entries": report.entries,
                "entries_of_unknown_ledgers": report.unknown_ledger_entries,
                "salvaged": report.salvaged,
                "lost": report.lost,
                "damaged_logs": report.damaged_logs,
                "torn_logs": report.torn_logs,
                "torn_records": report.torn_records,
                "old_index_unreadable": unreadable,
                "backup": rebuilding.backup,
            }
        )
        return
    click.echo(
        f"{folder}: {report.entries} entries in {report.logs} logs, {report.unknown_ledger_entries} of unknown "
        f"ledgers; {report.salvaged} rows kept from the old index whose entries no scan found, and {report.lost} whose"
        " entries are not there"
    )
    _tell_of_old_index(unreadable, rebuilding.backup)


@disk.command("rebuild-ledgers")
@click.option(
    "--leave-out",
    "left_out",
    multiple=True,
    metavar="ID",
    help="A ledger that has strayed into a directory of other ledgers, and is left out there. Give it again for"
    " another.",
)
@AS_JSON_LINES
@on_disk()
def rebuild_ledgers(place: Place, left_out: tuple[str, ...], as_json: bool) -> int:
    """Rebuild the `ledgers` databases of DbLedgerStorage from what is left of them, the journals and the entry logs.

    The old ones stay as backups. No new one is put in place before all are built. A ledger whose record is gone is
    fenced and in limbo, because it may have been before; if a database has lost its newest rows, every ledger is. Where
    ledgers may have been forgotten that left nothing else here, the bookie asks the metadata service before it takes
    the first entry of one that it does not know. Deleted ledgers may come back; garbage collection deletes them again.
    (Apache: rebuild-db-ledgers-index)
    """
    from bookie_pod.node.identity.earlier_life import EarlierLife
    from bookie_pod.storage.index_rebuild.offline import OfflineLedgers
    from bookie_pod.storage.index_rebuild.swap import finish
    from bookie_pod.storage.inspect.space import pairs

    need_ledgers(place)
    if not place.layout.journals:
        raise BadRequest("no journal directory was named, and journals hold keys and fences: give --journal-dir or -c")
    built, strays = [], {number(text) for text in left_out}
    with place.to_change(unclean=True) as stores, ExitStack() as ends:
        folders = pairs(place.layout)
        for at, (ledger_folder, index_folder) in enumerate(folders):
            finish(place.files, stores, index_folder)
            logs = _logs(place, ledger_folder)
            ends.callback(logs.close)
            rebuilding = OfflineLedgers(
                place.files,
                stores,
                _readers(),
                index_folder,
                logs,
                place.layout.journals,
                number=at,
                count=len(folders),
                left_out=strays,
            )
            ends.callback(rebuilding.close)
            _step_ledgers(rebuilding, f"collecting ledgers of {ledger_folder}")
            built.append((ledger_folder, index_folder, rebuilding))
        for ledger_folder, index_folder, rebuilding in built:
            if rebuilding.may_lack:
                EarlierLife(place.files, [ledger_folder]).doubt()
            rebuilding.commit()
            _print_ledgers(index_folder, rebuilding, as_json)
    return CommandExit.OK


def _print_ledgers(folder: str, rebuilding: Any, as_json: bool) -> None:
    report = rebuilding.report
    for problem in (*rebuilding.damaged_journals, *rebuilding.unreadable):
        _tell_of_journal(problem)
    unreadable = rebuilding.old_unreadable or report.old_unreadable
    if as_json:
        print_json(
            {
                "index": folder,
                "ledgers": report.ledgers,
                "kept": report.kept,
                "fenced_in_doubt": report.fenced_in_doubt,
                "without_key": report.without_key,
                "old_index_unreadable": unreadable,
                "backup": rebuilding.backup,
            }
        )
        return
    click.echo(
        f"{folder}: {report.ledgers} ledgers: {report.kept} kept, {report.fenced_in_doubt} fenced because it is"
        f" unknown whether they were; {report.without_key} without a key"
    )
    _tell_of_old_index(unreadable, rebuilding.backup)


def _tell_of_journal(problem: object) -> None:
    click.echo(f"bookie: not read to its end: {problem}", err=True)


def _tell_of_damage(report: RebuildReport | IndexFilesReport) -> None:
    for end in report.damages:
        click.echo(f"bookie: damaged entry log: {end.detail}", err=True)
    if report.lost:
        click.echo(
            f"bookie: {report.lost} rows of the old index lead to entries that are not there, or cannot be read: bring"
            " missing entry logs and disks back. The rows are kept, and reads of these entries fail",
            err=True,
        )


def _tell_of_old_index(unreadable: str | None, backup: str | None) -> None:
    if unreadable:
        click.echo(f"The old index could not be read: {unreadable}")
    if backup:
        click.echo(f"The old index is now {backup}")


def _logs(place: Place, folder: str) -> Any:
    from bookie_pod.storage.inspect.logs import StoredLogs

    return StoredLogs(place.files, [folder], place.config)


def _readers() -> Any:
    from bookie_pod.cli.disk.read_only import ReadOnlyStores

    return ReadOnlyStores()


def step_bytes(rebuilding: Any, report: Any, text: str) -> None:
    """Run a rebuild that counts bytes, with a bar."""
    from bookie_pod.cli.progress import Bar

    more = rebuilding.step()  # the first step finds out how much there is
    with Bar(text, report.bytes_total, in_bytes=True) as bar:
        done = 0
        while more:
            bar.advance(report.bytes_done - done)
            done = report.bytes_done
            more = rebuilding.step()


def _step_ledgers(rebuilding: Any, text: str) -> None:
    from bookie_pod.cli.progress import Bar

    with Bar(text) as bar:
        done = 0
        while rebuilding.step():
            bar.advance(rebuilding.report.ledgers - done)
            done = rebuilding.report.ledgers


_ENGINES: Final = {
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "interleaved": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
}


@disk.command()
@click.option("--to", "engine", type=click.Choice(list(_ENGINES)), required=True, help="The engine to convert to.")
@UNCLEAN
@AS_JSON_LINES
@on_disk()
def convert(place: Place, engine: str, unclean: bool, as_json: bool) -> None:
    """Convert the index to another storage engine. Entry logs and journals stay as they are.

    The new index is built beside the old one and compared with it row by row; then they change places, and the old one
    stays as a backup. A conversion that ends before that leaves everything as it was; one that ends in the middle of
    the change is finished by `bookie disk finish`. (Apache: convert-to-db-storage, convert-to-interleaved-storage)
    """
    from bookie_pod.cli.progress import Bar
    from bookie_pod.storage.index_rebuild.convert import conversion
    from bookie_pod.storage.index_rebuild.swap import finish
    from bookie_pod.storage.inspect.layout import IndexKind

    need_ledgers(place)
    target = IndexKind.DATABASES if engine == "db" else IndexKind.FILES
    with place.to_change(unclean=unclean) as stores:
        for folder in place.layout.index_folders:
            finish(place.files, stores, folder)
        with place.spaces() as spaces:
            if spaces.kind is target:
                _done(engine, as_json, {"changed": False})
                return
            space = spaces.spaces[0]
            converting = conversion(place.files, stores, place.layout, space.index, space.logs, target)
            try:
                with Bar("converting ledgers") as bar:
                    done = 0
                    while converting.step():
                        now = converting.report.ledgers + converting.report.compared
                        bar.advance(now - done)
                        done = now
                converting.commit()
            finally:
                converting.close()
    _done(engine, as_json, {"changed": True, **asdict(converting.report)})


def _done(engine: str, as_json: bool, report: dict[str, object]) -> None:
    name = _ENGINES[engine]
    if as_json:
        print_json({"ledgerStorageClass": name, **report})
        return
    if report["changed"]:
        click.echo(f"{report['ledgers']} ledgers, {report['entries']} entries; the old index is now {report['backup']}")
        if report["left_out"]:
            click.echo(
                f"{report['left_out']} rows left out: a power cut took their entries before they were acknowledged"
            )
    else:
        click.echo("The index has that form already.")
    click.echo(f"Set ledgerStorageClass={name}")


@disk.command()
@AS_JSON
@on_disk()
def finish(place: Place, as_json: bool) -> None:
    """Finish the change of an index that was interrupted."""
    from bookie_pod.storage.index_rebuild.swap import finish as finish_swap

    need_ledgers(place)
    with place.to_change(unclean=True) as stores:
        finished = [finish_swap(place.files, stores, folder) for folder in place.layout.index_folders]
    done = [f"{purpose}" for purpose in finished if purpose]
    lines = [f"Finished: {purpose}" for purpose in done] or ["Nothing was interrupted."]
    tell(as_json, "\n".join(lines), finished=done)


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

    Key and fence come from the old file. Where its header is gone, the ledger is fenced and in limbo, until its entries
    were compared with those of other bookies; its key is made from the password, if one is given. A ledger without a
    file, an entry in the logs or a record in the journals is refused. (Apache:
    regenerate-interleaved-storage-index-file)
    """
    from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
    from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild, next_logs
    from bookie_pod.storage.index_rebuild.swap import backup_suffix
    from bookie_pod.storage.inspect.index import FileIndex
    from bookie_pod.storage.inspect.logs import StoredLogs
    from bookie_pod.storage.journal.format import RecordKind
    from bookie_pod.storage.journal.survey import read_folders

    need_ledgers(place)
    if bool(ledgers) == missing:
        raise click.UsageError("give ledgers with -l, or --missing")
    with place.to_change(unclean=unclean) as stores:
        _refuse_databases(stores, place.layout.index_folders)
        logs = StoredLogs(place.files, place.layout.ledgers, place.config)
        old = FileIndex(place.files, place.layout.index_folders)
        chosen = _missing(logs, old) if missing else {number(text) for text in ledgers}
        if not chosen:
            raise NotThere("every ledger in the entry logs has its index file")
        keys = _keys(chosen, password_file)
        journaled, deletions = set(), []
        for record in read_folders(place.files, place.layout.journals, _tell_of_journal):
            journaled.add(record.ledger_id)
            if record.kind is RecordKind.DELETION:
                deletions.append(record)
        deleted = [DeletedLedgers(place.files, folder) for folder in place.layout.ledgers]
        rebuilding = IndexFilesRebuild(
            place.files,
            logs,
            old,
            place.layout.index_folders[0],
            chosen,
            keys,
            died_before=lambda ledger_id, log_id: any(each.may_be_earlier_life(ledger_id, log_id) for each in deleted),
            next_logs=next_logs(deletions),
        )
        report = rebuilding.report
        try:
            step_bytes(rebuilding, report, "reading entry logs")
            strange = rebuilding.unknown() - journaled
            if strange and not report.damages:  # else it may lie behind the damage
                rebuilding.discard()
                raise NotThere(
                    f"ledger {min(strange)} has no index file, and no entry in the logs: nothing was changed"
                )
            refused = bool(report.damages or report.lost or report.unread) and not accept_damage
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
    _tell_of_damage(report)
    if as_json:
        print_json(
            {
                "ledgers": report.ledgers,
                "entries": report.entries,
                "empty": report.empty,
                "salvaged": report.salvaged,
                "lost": report.lost,
                "unread": report.unread,
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
