"""`bookie disk format`: making the directories of a bookie empty."""

from __future__ import annotations

from typing import Any

import click

from bookie_pod.cli.confirm import YES, confirmed
from bookie_pod.cli.disk.group import disk, print_json
from bookie_pod.cli.disk.place import Place, on_disk
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON_LINES
from bookie_protocol.errors import BadRequest


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

    totals: dict[FileKind, int] = {}
    for file in list_files(place.files, place.layout):
        if file.kind is FileKind.OTHER:
            raise BadRequest(f"{file.path} is no file of a bookie: look at it, and move it away if it may stay")
        totals[file.kind] = totals.get(file.kind, 0) + 1
    if totals and not yes:
        counts = ", ".join(f"{count} {kind.value}" for kind, count in totals.items())
        if not confirmed("format", "removes", f"Remove {counts} files in {', '.join(place.layout.folders)}?"):
            return CommandExit.USAGE
    with hold(place.layout):
        removed = sum(_empty(place, folder) for folder in place.layout.folders)
    if as_json:
        print_json({"removed": removed, "folders": list(place.layout.folders)})
    else:
        click.echo(f"Removed {removed} files and folders.")
    return CommandExit.OK


def _empty(place: Place, folder: str) -> int:
    """Remove what is in a folder, cookies last: a format that was interrupted is no new environment."""
    from bookie_pod.storage.conversion.swap import remove_tree

    names: list[Any] = sorted(place.files.listdir(folder), key=lambda name: (name == "VERSION", name))
    for name in names:
        remove_tree(place.files, f"{folder}/{name}")
    place.files.sync_directory(folder)
    return len(names)
