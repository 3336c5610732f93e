"""`bookie disk files`, `lastmark` and `cookie`: the small things in the directories."""

from __future__ import annotations

import re

import click

from bookie_pod.cli.disk import disk, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import InvalidCookie, NotThere

_KINDS = ("journal", "entry log", "compaction", "index", "backup", "cookie", "mark", "state", "temporary", "other")


@disk.command()
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True, help="Only these. Give it again for more.")
@click.option("--summary", is_flag=True, help="Only numbers and bytes by kind.")
@AS_JSON_LINES
@on_disk(live=True)
def files(place: Place, kinds: tuple[str, ...], summary: bool, as_json: bool) -> None:
    """List the files by kind, with their sizes in bytes. (Apache: listfilesondisc)"""
    from bookie_pod.storage.inspect.layout import list_files

    totals: dict[str, list[int]] = {}
    for file in list_files(place.files, place.layout):
        kind = file.kind.value
        if kinds and kind not in kinds:
            continue
        total = totals.setdefault(kind, [0, 0])
        total[0] += 1
        total[1] += file.nbytes
        if summary:
            continue
        if as_json:
            print_json({"kind": kind, "path": file.path, "bytes": file.nbytes, "modified_ms": file.modified_ms})
        else:
            click.echo(f"{kind:<10} {file.nbytes:>14} {file.path}")
    for kind, (count, nbytes) in sorted(totals.items()):
        if summary and as_json:
            print_json({"kind": kind, "files": count, "bytes": nbytes})
        elif not as_json:
            click.echo(f"{kind:<10} {nbytes:>14} in {count} files")


@disk.command()
@AS_JSON_LINES
@on_disk(live=True)
def lastmark(place: Place, as_json: bool) -> None:
    """Print up to where each journal is durable in the ledger storage. (Apache: lastmark)"""
    from bookie_pod.storage.journal.marks import LogMark, parse_mark

    need_ledgers(place)
    marks: dict[str, dict[str, LogMark]] = {}
    for folder in place.layout.ledgers:
        for name in place.files.listdir(folder):
            if re.fullmatch(r"lastMark(\.\d+)?", name):
                mark = parse_mark(name, place.files.read_bytes(f"{folder}/{name}"))
                if mark is None:
                    click.echo(f"bookie: {folder}/{name} is damaged and does not count", err=True)
                else:
                    marks.setdefault(name, {})[folder] = mark
    if not marks:
        raise NotThere(f"no mark is in {', '.join(place.layout.ledgers)}: all journals will be replayed")
    for name, found in sorted(marks.items()):
        best = max(found.values())
        if as_json:
            each = {folder: [mark.journal_id, mark.offset] for folder, mark in found.items()}
            print_json({"mark": name, "id": best.journal_id, "offset": best.offset, "folders": each})
        else:
            click.echo(f"{name}: {best.journal_id:x}.txn at {best.offset} (journal id {best.journal_id})")


@disk.command()
@AS_JSON_LINES
@on_disk(live=True)
def cookie(place: Place, as_json: bool) -> int:
    """Print the cookie of the directories, and where it differs."""
    from bookie_pod.node.identity.cookies import COOKIE_FILE, parse_cookie

    first: bytes | None = None
    code = CommandExit.OK
    for folder in place.layout.folders:
        path = f"{folder}/{COOKIE_FILE}"
        if not place.files.exists(path):
            click.echo(f"{path} is not there", err=True)
            code = CommandExit.DAMAGED
            continue
        data = place.files.read_bytes(path)
        if first is not None:
            if data != first:
                click.echo(f"{path} differs from the first", err=True)
                code = CommandExit.DAMAGED
            continue
        first = data
        try:
            found = parse_cookie(data, path)
        except InvalidCookie as error:
            click.echo(f"bookie: {error}", err=True)
            return CommandExit.DAMAGED
        if as_json:
            print_json({name: getattr(found, name) for name in found.__slots__} | {"path": path})
        else:
            click.echo(data.decode("utf-8", "replace"), nl=False)
    if first is None:
        raise NotThere("no directory has a cookie (VERSION): no bookie ever started on them")
    return code
