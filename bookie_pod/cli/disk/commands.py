"""All commands of `bookie disk`: importing this module adds them.

Defined here are those that check the index against entry logs, empty the directories of a bookie, and give them another
id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from bookie_pod.cli.disk import (  # noqa: F401 - the modules add their commands to `disk`
    disk,
    index,
    logs,
    look,
    print_json,
    rebuild,
)
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, AS_JSON_LINES, YES, confirmed, tell
from bookie_protocol.errors import BadRequest, InvalidConfiguration
from bookie_protocol.metadata_service.service_info import is_valid_bookie_id

__all__ = ["disk"]


@disk.command()
@click.option("--rows-only", is_flag=True, help="Only from the index to the logs, not back.")
@click.option("--allow-unindexed", is_flag=True, help="Do not report entries that the index lacks.")
@click.option(
    "--findings", default=100, show_default=True, type=click.IntRange(0, 100_000), help="Print at most these."
)
@AS_JSON_LINES
@on_disk()
def check(place: Place, rows_only: bool, allow_unindexed: bool, findings: int, as_json: bool) -> int:
    """Check that every row of the index points to its entry, and that every entry of a known ledger has a row.

    Every entry is read. Exit code 13 if something is wrong. Entries without a row are also what a ledger leaves that
    was removed from this bookie and came back: --allow-unindexed. (Apache: localconsistencycheck)
    """
    from bookie_pod.cli.progress import Bar
    from bookie_pod.storage.integrity.consistency import ConsistencyCheck

    need_ledgers(place)
    with place.spaces() as spaces:
        running = ConsistencyCheck(spaces.spaces, logs=not rows_only, max_findings=findings)
        report, shown = running.report, 0
        with Bar("checking rows and entries") as bar:
            while running.step():
                done = report.rows + report.entries
                bar.advance(done - shown)
                shown = done
    _print(report, as_json)
    failed = report.damages > 0 or (report.unindexed > 0 and not allow_unindexed)
    return CommandExit.DAMAGED if failed else CommandExit.OK


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        shown = asdict(report)
        shown["counts"] = {kind.value: count for kind, count in report.counts.items()}
        shown["findings"] = [asdict(finding) | {"kind": finding.kind.value} for finding in report.findings]
        print_json(shown | {"sound": report.sound})
        return
    for finding in report.findings:
        click.echo(f"{finding.kind.value}: {finding.detail}")
    click.echo(
        f"{report.ledgers} ledgers, {report.rows} rows; {report.logs} entry logs, {report.entries} entries, "
        f"{report.unknown_ledger_entries} of them of ledgers that the index does not know"
    )
    for kind, count in report.counts.items():
        click.echo(f"{kind.value}: {count}")
    if report.sound:
        click.echo("Index and entry logs agree.")


@disk.command("format")
@YES
@AS_JSON_LINES
@on_disk()
def format_(place: Place, yes: bool, as_json: bool) -> int:
    """Remove everything that a bookie stored in the directories, for good. (Apache: bookieformat)

    The cookie in the metadata service stays: while it is there, a bookie with this id does not start on empty
    directories, and that is right as long as ledgers still count on this bookie. Decommission it first.
    """
    from bookie_pod.cli.disk.holders import hold
    from bookie_pod.storage.inspect.layout import FileKind, list_files

    folders = place.layout.folders
    with hold(place.layout):  # before the question: no process may begin to use them while it waits
        totals: dict[FileKind, int] = {}
        for file in list_files(place.files, place.layout):
            if file.kind is FileKind.OTHER:
                raise BadRequest(f"{file.path} is not a file of a bookie: look at it, and move it away if it may stay")
            totals[file.kind] = totals.get(file.kind, 0) + 1
        if totals and not yes:
            counts = ", ".join(f"{count} {kind.value}" for kind, count in totals.items())
            if not confirmed("format", "removes", f"Remove {counts} files in {', '.join(folders)}?"):
                return CommandExit.USAGE
        removed = _empty(place, folders)
    if as_json:
        print_json({"removed": removed, "folders": list(place.layout.folders)})
    else:
        click.echo(f"Removed {removed} files and folders.")
    return CommandExit.OK


def _empty(place: Place, folders: Sequence[str]) -> int:
    """Remove what is in the folders. Until all of it is gone each holds a mark, which no start passes: one that was
    ended in between leaves nothing that a bookie would take for its own."""
    from bookie_pod.storage.index_rebuild.swap import remove_tree
    from bookie_pod.storage.inspect.layout import FORMAT_MARK

    files = place.files
    removed = 0
    for folder in folders:
        files.write_bytes_synced(f"{folder}/{FORMAT_MARK}", b"")
        files.sync_directory(folder)
    for folder in folders:
        names = [name for name in files.listdir(folder) if name != FORMAT_MARK]
        for name in names:
            remove_tree(files, f"{folder}/{name}")
        files.sync_directory(folder)
        removed += len(names)
    for folder in folders:
        files.unlink(f"{folder}/{FORMAT_MARK}")
        files.sync_directory(folder)
    return removed


@disk.command("rename-bookie")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@AS_JSON
@on_disk()
def rename_bookie(place: Place, old: str, new: str, as_json: bool) -> int:
    """Write the id NEW in the place of OLD into the cookies of a stopped bookie's directories. (Apache: updatecookie)

    After `bookie cluster rename-bookie OLD NEW`, which does it in the metadata. May be repeated; nothing is written
    before every directory was looked at.
    """
    from bookie_pod.cli.disk.holders import hold
    from bookie_pod.node.identity.cookies import COOKIE_FILE, format_cookie, parse_cookie

    if not is_valid_bookie_id(new):
        raise InvalidConfiguration(f"{new!r} is not a valid bookie id")
    files = place.files
    with hold(place.layout):
        cookies = {}
        for folder in place.layout.folders:
            path = f"{folder}/{COOKIE_FILE}"
            if not files.exists(path):
                raise BadRequest(f"{path} is not there: is this a directory of bookie {old}?")
            cookie = parse_cookie(files.read_bytes(path), path)
            if cookie.bookie_id not in (old, new):
                raise BadRequest(
                    f"{path} is the cookie of bookie {cookie.bookie_id}, not of {old}; nothing was changed"
                )
            if cookie.bookie_id == old:
                cookies[folder] = format_cookie(replace(cookie, bookie_id=new))
        for folder, data in cookies.items():
            files.write_bytes_atomic(f"{folder}/{COOKIE_FILE}", data)
    line = f"{len(cookies)} of {len(place.layout.folders)} directories were of {old}; all are of {new} now"
    tell(as_json, line, renamed=sorted(cookies), directories=list(place.layout.folders))
    return CommandExit.OK
