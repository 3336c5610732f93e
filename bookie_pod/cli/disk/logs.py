"""`bookie disk logs`, `readlogmetadata` and `readlog`: what is in entry logs."""

from __future__ import annotations

import os
import struct
import time
from typing import Any, Final

import click

from bookie_pod.cli.disk import PAYLOAD, disk, number, payload_text, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import BadRequest, NotThere

_LAC_AND_LENGTH: Final = struct.Struct(">qq")
_HEAD_BYTES: Final = 32
_LOG: Final = click.argument("log", metavar="LOG")


def find_log(place: Place, log: str) -> tuple[str, int]:
    """(path, id) of a log given as a file, as its name (`1a.log`), or as its id in decimal."""
    from bookie_pod.storage.entry_log.names import log_file_name, parse_log_name

    name = os.path.basename(log)
    if os.path.sep in log:
        log_id = parse_log_name(name)
        return log, 0 if log_id is None else log_id
    need_ledgers(place)
    parsed = parse_log_name(name) if name.endswith(".log") else number(log)
    if parsed is None:
        raise click.UsageError(f"{log} is not a valid name of an entry log (hexadecimal id and .log)")
    paths = [f"{folder}/{log_file_name(parsed)}" for folder in place.layout.ledgers]
    found = [path for path in paths if place.files.exists(path)]
    if not found:
        raise NotThere(f"entry log {log_file_name(parsed)} is in none of {', '.join(place.layout.ledgers)}")
    if len(found) > 1:
        raise BadRequest(f"{' and '.join(found)} are there: name the file that you mean by its path")
    return found[0], parsed


@disk.command()
@_LOG
@click.option("--ledger", "ledger_id", metavar="ID", help="Only entries of this ledger.")
@click.option("--entry", "entry_id", metavar="ID", help="Only this entry.")
@click.option("--from", "begin", metavar="POSITION", default="0", help="Only entries at or behind this position.")
@click.option("--to", "end", metavar="POSITION", help="Only entries before this position.")
@click.option("--resync", is_flag=True, help="Go on behind damage, at the next bytes that look like entries.")
@PAYLOAD
@AS_JSON_LINES
@on_disk(live=True)
def readlog(
    place: Place,
    log: str,
    ledger_id: str | None,
    entry_id: str | None,
    begin: str,
    end: str | None,
    resync: bool,
    payload: str,
    as_json: bool,
) -> int:
    """Print the entries of LOG: a file, its name (`1a.log`), or its id in decimal. (Apache: readlog)

    A position is the offset of an entry's first byte, as in an index. The place of damage is printed on standard error;
    the exit code is 13 then.
    """
    from bookie_pod.storage.entry_log.scan import ScanEnd, ScanOutcome
    from bookie_pod.storage.inspect.logs import read_header, read_log

    path, log_id = find_log(place, log)
    ledgers = None if ledger_id is None else {number(ledger_id)}
    wanted = None if entry_id is None else number(entry_id)
    first, last = number(begin), None if end is None else number(end)
    header = read_header(place.files, path)
    code = CommandExit.OK
    for record in read_log(place.files, path, log_id, ledgers=ledgers, resync=resync):
        if isinstance(record, ScanEnd):
            # A log that was active at a crash may end inside an entry; a closed one may not.
            closed = header is not None and header.has_map
            if record.outcome is ScanOutcome.DAMAGED or (record.outcome is ScanOutcome.TORN and closed):
                code = CommandExit.DAMAGED
            if not record.clean:
                click.echo(f"bookie: {record.outcome.value}: {record.detail}", err=True)
            continue
        if last is not None and record.position >= last:
            break
        if record.position >= first and wanted in (None, record.entry_id):
            _print(record, payload, as_json)
    return code


def _print(record: Any, payload: str, as_json: bool) -> None:
    lac, length = _LAC_AND_LENGTH.unpack_from(record.entry, 16) if len(record.entry) >= _HEAD_BYTES else (None, None)
    if as_json:
        shown = {
            "position": record.position,
            "location": record.location,
            "ledger_id": record.ledger_id,
            "entry_id": record.entry_id,
            "bytes": len(record.entry),
            "last_add_confirmed": lac,
            "length": length,
        }
        if payload != "none":
            shown["payload"] = payload_text(record.entry, payload)
        print_json(shown)
        return
    click.echo(
        f"{record.position:>12} ledger {record.ledger_id} entry {record.entry_id}, {len(record.entry)} bytes, "
        f"LAC {'-' if lac is None else lac}"
    )
    if payload != "none":
        click.echo("             " + payload_text(record.entry, payload))


@disk.command()
@_LOG
@AS_JSON_LINES
@on_disk()
def readlogmetadata(place: Place, log: str, as_json: bool) -> int:
    """Print the ledgers of LOG and their bytes in it, and how much of it the index still uses.

    (Apache: readlogmetadata)
    """
    from bookie_pod.storage.entry_log.names import log_file_name
    from bookie_pod.storage.inspect.logs import StoredLogs

    path, log_id = find_log(place, log)
    if os.path.basename(path) != log_file_name(log_id):
        raise click.UsageError(f"{path} is not named like an entry log")
    logs = StoredLogs(place.files, [os.path.dirname(path)], place.config)
    try:
        found, known = logs.ledgers_map(log_id), _known_ledgers(place, path)
        shown = _summary(logs, log_id, found, known)
        if as_json:
            print_json(shown)
        else:
            for name, value in shown.items():
                click.echo(f"{name.replace('_', ' ')}: {value}")
        for ledger_id, nbytes in found.ledgers.pairs():
            live = None if known is None else known(ledger_id)
            if as_json:
                print_json({"ledger_id": ledger_id, "bytes": nbytes, "known": live})
            else:
                click.echo(f"ledger {ledger_id}: {nbytes} bytes{'' if live is not False else ', not in the index'}")
    finally:
        logs.close()
    return CommandExit.OK if found.complete else CommandExit.DAMAGED


def space_of(spaces: Any, path: str) -> Any:
    """The space that a log belongs to; None if it lies elsewhere."""
    folder = os.path.realpath(os.path.dirname(path))
    return next((space for space in spaces.spaces if folder in map(os.path.realpath, space.folders)), None)


def _known_ledgers(place: Place, path: str) -> Any:
    """Return a test that a ledger is in the index of the log's space; None without an index."""
    from bookie_protocol.errors import StartupError

    try:
        ids: dict[str, set[int]] = {}
        with place.spaces() as spaces:
            space = space_of(spaces, path)
            if space is not None:
                ids[path] = set(space.ledger_ids())
    except StartupError:
        return None
    return ids[path].__contains__ if path in ids else None


def _summary(logs: Any, log_id: int, found: Any, known: Any) -> dict[str, Any]:
    header, total = logs.header(log_id), found.ledgers.total
    live = None if known is None else sum(nbytes for ledger, nbytes in found.ledgers.pairs() if known(ledger))
    shown: dict[str, Any] = {
        "log": logs.path(log_id),
        "log_id": log_id,
        "bytes": logs.size(log_id),
        "age_seconds": max(0, round(time.time() - logs.written_ms(log_id) / 1000)),
        "version": None if header is None else header.version,
        "closed": found.closed,
        "ledgers": len(found.ledgers),
        "entry_bytes": total,
        "ledgers_map": "in the file" if found.end is None else "counted by a scan",
    }
    if live is not None:
        shown["entry_bytes_of_known_ledgers"] = live
        shown["usage"] = round(live / total, 4) if total else 0.0
    if found.end is not None and not found.end.clean:
        shown["end"] = found.end.detail
    return shown


@disk.command()
@AS_JSON_LINES
@on_disk()
def logs(place: Place, as_json: bool) -> int:
    """List the entry logs: bytes, ledgers, whether they were closed with their map of ledgers, and age."""
    from bookie_pod.cli.tables import duration_text
    from bookie_pod.storage.entry_log.names import log_file_name
    from bookie_pod.storage.inspect.logs import StoredLogs

    need_ledgers(place)
    code = CommandExit.OK
    for folder in place.layout.ledgers:
        stored = StoredLogs(place.files, [folder], place.config)
        try:
            for log_id in stored.log_ids():
                found = stored.ledgers_map(log_id)
                shown = _summary(stored, log_id, found, None)
                if not found.complete:
                    code = CommandExit.DAMAGED
                if as_json:
                    print_json(shown)
                    continue
                state = "closed" if found.closed else "not closed"
                end = f"; {shown['end']}" if "end" in shown else ""
                click.echo(
                    f"{folder}/{log_file_name(log_id)} {shown['bytes']:>12} bytes {shown['ledgers']:>8} ledgers "
                    f"{state}, written {duration_text(shown['age_seconds'])} ago{end}"
                )
        finally:
            stored.close()
    return code
