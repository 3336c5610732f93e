"""`bookie disk format`: making the directories of a bookie empty."""

from __future__ import annotations

from collections.abc import Sequence

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

    folders = place.layout.folders
    with hold(place.layout):  # before the question: nobody may begin to use them while it waits
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
