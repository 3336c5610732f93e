"""`bookie disk ledgers`, `ledger`, `locate` and `at`: what the index holds."""

from __future__ import annotations

from typing import Any, Final

import click

from bookie_pod.cli.disk import PAYLOAD, disk, number, payload_text, print_json
from bookie_pod.cli.disk.logs import find_log, space_of
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import EntryDamaged, NoSuchEntry, NoSuchLedger, StorageFault

_LEDGER: Final = click.argument("ledger", metavar="LEDGER")
_SET: Final = "set"


@disk.command()
@click.option("--entries", is_flag=True, help="Count the entries of each ledger, and give the first and the last.")
@AS_JSON_LINES
@on_disk()
def ledgers(place: Place, entries: bool, as_json: bool) -> int:
    """List the ledgers that the index knows."""
    need_ledgers(place)
    code = CommandExit.OK
    with place.spaces() as spaces:
        for space in spaces.spaces:
            for ledger_id in space.ledger_ids():
                try:
                    shown = _ledger(space, ledger_id, entries)
                except StorageFault as error:
                    click.echo(f"bookie: {error}", err=True)
                    code = CommandExit.DAMAGED
                    continue
                if as_json:
                    print_json(shown)
                else:
                    click.echo(_line(shown))
    return code


def _ledger(space: Any, ledger_id: int, entries: bool) -> dict[str, Any]:
    record = space.index.record(ledger_id)
    lac = record.explicit_lac
    shown: dict[str, Any] = {
        "ledger_id": ledger_id,
        "fenced": record.fenced,
        "limbo": record.limbo,
        "key": _key(record.key),
        "explicit_lac": int.from_bytes(lac[8:16], "big", signed=True) if lac and len(lac) >= 16 else None,
    }
    if entries:
        count, first, last = 0, None, None
        for entry_id, _ in space.rows(ledger_id, 0):
            count += 1
            first = entry_id if first is None else first
            last = entry_id
        shown |= {"entries": count, "first_entry": first, "last_entry": last}
    return shown


def _key(stored: bytes) -> str:
    """Say whether there is a key, but do not show it: a user who sees the key may write and read."""
    from bookie_protocol.keys import is_unknown_key

    if not is_unknown_key(stored):
        return _SET
    return "empty" if stored else "unknown"


def _line(shown: dict[str, Any]) -> str:
    words = [f"ledger {shown['ledger_id']}"]
    words += [name for name in ("fenced", "limbo") if shown[name]]
    if shown["key"] != _SET:
        words.append(f"key {shown['key']}")
    if shown["explicit_lac"] is not None:
        words.append(f"explicit LAC {shown['explicit_lac']}")
    if "entries" in shown:
        words.append(
            f"{shown['entries']} entries"
            + (f" {shown['first_entry']} to {shown['last_entry']}" if shown["entries"] else "")
        )
    return ", ".join(words)


@disk.command()
@_LEDGER
@click.option("--check", is_flag=True, help="Read every entry, and say where that fails.")
@PAYLOAD
@AS_JSON_LINES
@on_disk()
def ledger(place: Place, ledger: str, check: bool, payload: str, as_json: bool) -> int:
    """Print what the index holds of LEDGER: its state, and where each entry lies. (Apache: ledger, readledger)"""
    from bookie_pod.storage.entry_log.format import split_location
    from bookie_pod.storage.entry_log.names import log_file_name

    need_ledgers(place)
    ledger_id, code = number(ledger), CommandExit.OK
    with place.spaces() as spaces:
        space = spaces.of(ledger_id)
        if not space.has_ledger(ledger_id):
            raise NoSuchLedger(f"ledger {ledger_id} is not in the index")
        state = _ledger(space, ledger_id, entries=False)
        if as_json:
            print_json(state)
        else:
            click.echo(_line(state))
        for entry_id, location in space.rows(ledger_id, 0):
            log_id, position = split_location(location)
            shown: dict[str, Any] = {
                "entry_id": entry_id,
                "log": log_file_name(log_id),
                "position": position,
                "location": location,
            }
            if check or payload != "none":
                data, error = _read(space, location, ledger_id, entry_id)
                if error is not None:
                    shown["error"], code = error, CommandExit.DAMAGED
                elif payload != "none":
                    shown["payload"] = payload_text(data, payload)
            if as_json:
                print_json(shown)
            else:
                click.echo(
                    f"entry {entry_id}: {shown['log']} at {position}"
                    + (f": {shown['error']}" if "error" in shown else "")
                    + (f"\n  {shown['payload']}" if "payload" in shown else "")
                )
    return code


def _read(space: Any, location: int, ledger_id: int, entry_id: int) -> tuple[bytes, str | None]:
    try:
        return space.logs.read(location, ledger_id, entry_id), None
    except StorageFault as error:
        return b"", str(error)


@disk.command()
@_LEDGER
@click.argument("entry", metavar="ENTRY")
@PAYLOAD
@AS_JSON_LINES
@on_disk()
def locate(place: Place, ledger: str, entry: str, payload: str, as_json: bool) -> int:
    """Print where ENTRY of LEDGER lies, and whether it is there."""
    from bookie_pod.storage.entry_log.format import split_location

    need_ledgers(place)
    ledger_id, entry_id = number(ledger), number(entry)
    with place.spaces() as spaces:
        space = spaces.of(ledger_id)
        if not space.has_ledger(ledger_id):
            raise NoSuchLedger(f"ledger {ledger_id} is not in the index")
        location = space.location_of(ledger_id, entry_id)
        if not location:
            raise NoSuchEntry(f"the index has no entry {entry_id} of ledger {ledger_id}")
        log_id, position = split_location(location)
        data, error = _read(space, location, ledger_id, entry_id)
        path = space.logs.path(log_id) if space.logs.exists(log_id) else None
    shown = {
        "log": path,
        "log_id": log_id,
        "position": position,
        "location": location,
        "bytes": len(data),
        "error": error,
    }
    if payload != "none" and error is None:
        shown["payload"] = payload_text(data, payload)
    if as_json:
        print_json(shown)
    else:
        click.echo(f"{path or f'log {log_id:x} (missing)'} at {position}: " + (error or f"{len(data)} bytes"))
        if "payload" in shown:
            click.echo(shown["payload"])
    return CommandExit.OK if error is None else CommandExit.DAMAGED


@disk.command()
@click.argument("log", metavar="LOG")
@click.argument("position", metavar="POSITION")
@AS_JSON_LINES
@on_disk()
def at(place: Place, log: str, position: str, as_json: bool) -> int:
    """Print which entry of LOG covers POSITION (any byte of it), and whether the index points to it.

    LOG is a file, its name (`1a.log`), or its id in decimal.
    """
    from bookie_pod.storage.inspect.logs import scan_log

    path, log_id = find_log(place, log)
    wanted = number(position)
    scan = scan_log(place.files, path, log_id, place.config, bodies=False)
    found = None
    for location, ledger_id, entry_id, size in scan:
        start = location & 0xFFFFFFFF
        if start + size > wanted:
            found = (location, ledger_id, entry_id, size) if start - 4 <= wanted else None
            break
    else:
        if not scan.end.clean and scan.end.position <= wanted:
            raise EntryDamaged(f"the log cannot be read up to {wanted}: {scan.end.detail}")
    if found is None:
        raise NoSuchEntry(f"no entry covers {wanted} of {path}: header, padding, map of ledgers, or its end")
    location, ledger_id, entry_id, size = found
    indexed = _indexed(place, path, ledger_id, entry_id)
    state = "no index" if indexed is None else _state(indexed, location)
    shown = {
        "ledger_id": ledger_id,
        "entry_id": entry_id,
        "position": location & 0xFFFFFFFF,
        "location": location,
        "bytes": size,
        "index": state,
        "indexed_location": indexed,
    }
    if as_json:
        print_json(shown)
    else:
        click.echo(f"entry {entry_id} of ledger {ledger_id}, {size} bytes at {shown['position']}: {state}")
    return CommandExit.OK


def _indexed(place: Place, path: str, ledger_id: int, entry_id: int) -> int | None:
    from bookie_protocol.errors import StartupError

    try:
        with place.spaces() as spaces:
            space = space_of(spaces, path)
            if space is not None:
                return int(space.location_of(ledger_id, entry_id)) if space.has_ledger(ledger_id) else 0
    except StartupError:
        pass
    return None


def _state(indexed: int, location: int) -> str:
    if indexed == location:
        return "the index points here"
    return f"the index points to another copy, location {indexed}" if indexed else "the index has no row for it"
