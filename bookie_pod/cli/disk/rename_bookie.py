"""`bookie disk rename-bookie`: the directories of a bookie that got another id."""

from __future__ import annotations

from dataclasses import replace

import click

from bookie_pod.cli.disk.group import disk
from bookie_pod.cli.disk.place import Place, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_protocol.errors import BadRequest, InvalidConfiguration
from bookie_protocol.metadata_service.service_info import is_valid_bookie_id


@disk.command("rename-bookie")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@on_disk()
def rename_bookie(place: Place, old: str, new: str) -> int:
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
    click.echo(f"{len(cookies)} of {len(place.layout.folders)} directories were of {old}; all are of {new} now")
    return CommandExit.OK
