"""`bookie disk rebuild-locations`, `rebuild-ledgers`, and `convert` and `finish`: an index as another engine has it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

import click

from bookie_pod.cli.disk import UNCLEAN, disk, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import BadRequest

ACCEPT_DAMAGE = click.option(
    "--accept-damage",
    is_flag=True,
    help="Put the new index in place although entry logs are damaged: what lies behind the damage may be missing.",
)


@disk.command("rebuild-locations")
@ACCEPT_DAMAGE
@AS_JSON_LINES
@on_disk()
def rebuild_locations(place: Place, accept_damage: bool, as_json: bool) -> int:
    """Rebuild the `locations` databases of DbLedgerStorage from the entry logs.

    The old ones stay as backups. No new one is put in place before all are built. Where a log is damaged, rows of the
    old index whose entries are still there are kept. (Apache: rebuild-db-ledger-locations-index)
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
        refused = not accept_damage and any(rebuilding.report.damaged_logs for _, rebuilding in built)
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
    for end in report.damages:
        click.echo(f"bookie: damaged entry log: {end.detail}", err=True)
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
                "old_index_unreadable": unreadable,
                "backup": rebuilding.backup,
            }
        )
        return
    click.echo(
        f"{folder}: {report.entries} entries in {report.logs} logs, {report.unknown_ledger_entries} of unknown "
        f"ledgers; {report.salvaged} rows kept from the old index, {report.lost} of its rows had no entry"
    )
    _tell_of_old_index(unreadable, rebuilding.backup)


@disk.command("rebuild-ledgers")
@AS_JSON_LINES
@on_disk()
def rebuild_ledgers(place: Place, as_json: bool) -> int:
    """Rebuild the `ledgers` databases of DbLedgerStorage from what is left of them, the journals and the entry logs.

    A ledger whose record is gone is fenced, because nobody knows whether it was; of a database that has lost its newest
    rows, every one is. Where ledgers may have been forgotten that left nothing else here, the bookie asks the metadata
    service before it takes the first entry of one that it does not know. Deleted ledgers may come back; garbage
    collection deletes them again. (Apache: rebuild-db-ledgers-index)
    """
    from bookie_pod.node.identity.earlier_life import EarlierLife
    from bookie_pod.storage.index_rebuild.offline import OfflineLedgers
    from bookie_pod.storage.index_rebuild.swap import finish
    from bookie_pod.storage.inspect.space import pairs

    need_ledgers(place)
    if not place.layout.journals:
        raise BadRequest("no journal directory was named, and journals hold keys and fences: give --journal-dir or -c")
    with place.to_change(unclean=True) as stores:
        folders = pairs(place.layout)
        for at, (ledger_folder, index_folder) in enumerate(folders):
            finish(place.files, stores, index_folder)
            logs = _logs(place, ledger_folder)
            rebuilding = OfflineLedgers(
                place.files,
                stores,
                _readers(),
                index_folder,
                logs,
                place.layout.journals,
                number=at,
                count=len(folders),
            )
            try:
                _step_ledgers(rebuilding, f"collecting ledgers of {ledger_folder}")
                if rebuilding.may_lack:
                    EarlierLife(place.files, [ledger_folder]).doubt()
                rebuilding.commit()
            finally:
                rebuilding.close()
                logs.close()
            _print_ledgers(index_folder, rebuilding, as_json)
    return CommandExit.OK


def _print_ledgers(folder: str, rebuilding: Any, as_json: bool) -> None:
    report = rebuilding.report
    for problem in (*rebuilding.damaged_journals, *rebuilding.unreadable):
        click.echo(f"bookie: not read to its end: {problem}", err=True)
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
        f"{folder}: {report.ledgers} ledgers: {report.kept} kept, {report.fenced_in_doubt} fenced because nobody knows "
        f"whether they were; {report.without_key} without a key"
    )
    _tell_of_old_index(unreadable, rebuilding.backup)


def _tell_of_old_index(unreadable: str | None, backup: str | None) -> None:
    if unreadable:
        click.echo(f"The old index could not be read: {unreadable}")
    if backup:
        click.echo(f"The old index is now {backup}")


def _logs(place: Place, folder: str) -> Any:
    from bookie_pod.storage.inspect.logs import StoredLogs

    return StoredLogs(place.files, [folder], place.options)


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
            converting = conversion(place.files, stores, place.layout, spaces.spaces[0].index, target)
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
    else:
        click.echo("The index has that form already.")
    click.echo(f"Set ledgerStorageClass={name}")


@disk.command()
@on_disk()
def finish(place: Place) -> None:
    """Finish the change of an index that was interrupted."""
    from bookie_pod.storage.index_rebuild.swap import finish as finish_swap

    need_ledgers(place)
    with place.to_change(unclean=True) as stores:
        finished = [finish_swap(place.files, stores, folder) for folder in place.layout.index_folders]
    for purpose in filter(None, finished):
        click.echo(f"Finished: {purpose}")
    if not any(finished):
        click.echo("Nothing was interrupted.")
