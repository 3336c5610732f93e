"""`bookie disk files`, `lastmark` and `cookie`, for the small files, and `readjournal`, for a journal file."""

from __future__ import annotations

import os
import re

import click

from bookie_pod.cli.disk import PAYLOAD, disk, number, payload_text, print_json
from bookie_pod.cli.disk.place import Place, need_journals, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import BadRequest, InvalidCookie, NotThere

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


@disk.command()
@click.argument("journal", required=False)
@click.option("--from", "start", metavar="OFFSET", help="Begin at this offset; it must be where a record begins.")
@click.option("--ledger", "ledger_id", metavar="ID", help="Only records of this ledger.")
@PAYLOAD
@AS_JSON_LINES
@on_disk(live=True)
def readjournal(
    place: Place, journal: str | None, start: str | None, ledger_id: str | None, payload: str, as_json: bool
) -> int:
    """Print the records of JOURNAL: a file, its name (`18f2a3b4c5d.txn`), or its id in decimal. (Apache: readjournal)

    Without JOURNAL all files of the journal directories are read, the oldest first. Where a file is damaged, its sound
    part is printed, and the place on standard error; the exit code is 13 then.
    """
    from bookie_pod.storage.journal.directory import journal_path, list_journals

    if journal is not None and os.path.sep in journal:
        paths = [(journal, _id_of(journal))]
    else:
        need_journals(place)
        found = [
            (journal_path(folder, at), at)
            for folder in place.layout.journals
            for at in list_journals(place.files, folder)
        ]
        wanted = None if journal is None else (_id_of(journal) if journal.endswith(".txn") else number(journal))
        paths = [(path, at) for path, at in found if wanted is None or at == wanted]
        if not paths:
            raise NotThere(f"{journal or 'a journal'} is in none of {', '.join(place.layout.journals)}")
    code = CommandExit.OK
    only = None if ledger_id is None else number(ledger_id)
    for path, journal_id in paths:
        if not _read(place, path, journal_id, 0 if start is None else number(start), only, payload, as_json):
            code = CommandExit.DAMAGED
    return code


def _id_of(path: str) -> int:
    """The id that the name of a journal file tells."""
    named = re.fullmatch(r"([0-9a-fA-F]{1,16})\.txn", os.path.basename(path))
    if named is None:
        raise BadRequest(f"{path} is not named like a journal: <hexadecimal id>.txn")
    return int(named[1], 16)


def _read(place: Place, path: str, journal_id: int, start: int, only: int | None, payload: str, as_json: bool) -> bool:
    from bookie_pod.storage.files import storage_fault
    from bookie_pod.storage.journal.reader import FileWindow, records_between
    from bookie_pod.storage.journal.survey import survey_journal

    try:
        file = place.files.open(path)
    except OSError as error:
        raise storage_fault(f"cannot open journal {path}", error) from error
    try:
        survey = survey_journal(file, journal_id, start)
        if not as_json:
            header = survey.header
            click.echo(f"{path}: version {header.version}, {header.checks.value}, {survey.size} bytes")
        window = FileWindow(file, survey.size)
        for record in records_between(window, survey.header.version, survey.start, survey.end):
            if only is None or record.ledger_id == only:
                _print(path, record, payload, as_json)
    finally:
        file.close()
    if survey.damage is not None:
        click.echo(f"bookie: journal {path} is damaged at offset {survey.end}: {survey.damage}", err=True)
    elif as_json:
        print_json({"file": path, "end": survey.end, "torn": survey.torn})
    else:
        click.echo(f"ends at {survey.end}" + (" in a torn tail" if survey.torn else ""))
    return survey.damage is None


def _print(path: str, record: object, payload: str, as_json: bool) -> None:
    from bookie_pod.storage.journal.format import RecordKind
    from bookie_pod.storage.journal.reader import JournalRecord

    assert isinstance(record, JournalRecord)
    if record.kind is RecordKind.KEY:
        payload = "none"  # who has seen it may write and read
    shown = {
        "file": path,
        "offset": record.offset,
        "kind": record.kind.value,
        "ledger_id": record.ledger_id,
        "entry_id": record.entry_id,
        "bytes": len(record.body),
    }
    if as_json:
        if payload != "none":
            shown["payload"] = payload_text(record.body, payload)
        print_json(shown)
        return
    entry = f" entry {record.entry_id}" if record.entry_id >= 0 else ""
    click.echo(f"{record.offset:>12} {record.kind.value}: ledger {record.ledger_id}{entry}, {len(record.body)} bytes")
    if payload != "none":
        click.echo("             " + payload_text(record.body, payload))
