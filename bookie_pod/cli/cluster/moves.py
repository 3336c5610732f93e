"""`bookie cluster metadata copy|backup|restore|reopen`: the cluster's metadata in another place, or in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.cluster.metadata import CONFIG_HELP, JSON, TIMEOUT, finished, opened
from bookie_pod.cli.options import config_option, tell
from bookie_protocol.errors import InvalidConfiguration, MetadataWentBack
from bookie_protocol.shown import shown_uri, time_text

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.moving.backup_file import BackupFile, Trailer
    from bookie_protocol.metadata_service.moving.nodes import Tally

_TELL_EVERY_S: Final = 10.0
_config = config_option(CONFIG_HELP, "config")


@cluster.group("metadata")
def metadata_group() -> None:
    """Move the metadata of a cluster to another metadata service, back them up, and restore them."""


@metadata_group.command()
@click.argument("source")
@click.argument("target")
@_config
@click.option("--target-config", metavar="FILE", help="The same for TARGET. [default: that of --config]")
@TIMEOUT
@JSON
def copy(
    source: str, target: str, config: str | None, target_config: str | None, timeout: float | None, as_json: bool
) -> int:
    """Copy the metadata of the cluster at SOURCE to TARGET, where nothing may be.

    Both are URIs, of any of the metadata services. Stop all bookies, auto-recovery and clients first: the command
    refuses while any of them holds a node of a session at SOURCE, but cannot see clients that only write ledgers. No
    bookie starts at SOURCE from then on, and none at TARGET until everything is there, was read back, and is equal.
    Repeat the command, with the same TARGET, if it was interrupted. Afterwards start everything with
    metadataServiceUri=TARGET.
    """

    async def work() -> int:
        from bookie_protocol.metadata_service.moving.moves import copy_cluster

        async with AsyncExitStack() as stack:
            old = await stack.enter_async_context(opened(source, config, timeout))
            of_new = target_config or config
            new = await stack.enter_async_context(opened(target, of_new, timeout, make_store=True))
            tally = await copy_cluster(old, new, _progress("copied"))
        shown = shown_uri(target)
        if tally is None:
            tell(as_json, f"the cluster is at {shown} already; nothing was changed", target=shown, nodes=0, ledgers=0)
            return 0
        rest = (
            f"copied to {shown} and compared (sha256 {tally.sha256}). No bookie starts at {shown_uri(source)} any more:"
            f" set metadataServiceUri={shown} everywhere"
        )
        return _tell_of(as_json, tally, rest, target=shown, sha256=tally.sha256)

    return finished(work())


@metadata_group.command()
@click.argument("uri")
@click.argument("file", metavar="FILE")
@click.option(
    "--keep",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="FILE is a folder. Write a file named after the cluster and the time, then remove all but the N newest files"
    " of this cluster.",
)
@_config
@TIMEOUT
@JSON
def backup(uri: str, file: str, keep: int | None, config: str | None, timeout: float | None, as_json: bool) -> int:
    """Write the metadata of the cluster at URI to FILE, which must not exist.

    The cluster may be in use. FILE is compressed, has a digest of its content, is read back, and only its owner may
    read it: it holds the passwords of ledgers. With --keep no older file is removed before the new one was read back.
    """

    async def work() -> int:
        import asyncio

        from bookie_protocol.metadata_service.moving.backup_file import BackupFile
        from bookie_protocol.metadata_service.moving.backup_folder import BackupFolder
        from bookie_protocol.metadata_service.moving.moves import back_up

        async with opened(uri, config, timeout) as service:
            own = None if keep is None else await service.cluster.instance_id() or ""
            folder = None if own is None else BackupFolder(file, own)
            path = file if folder is None else await asyncio.to_thread(folder.new_path, time.time())
            found = await back_up(service, shown_uri(uri), BackupFile(path), _progress("read"), expected=own)
        removed = [] if folder is None or keep is None else await asyncio.to_thread(folder.keep_newest, keep, path)
        rest = f"written to {path} (sha256 {found.sha256}){'; the cluster was in use' if found.left_out else ''}"
        rest += f"; {len(removed)} older files removed" if removed else ""
        more = {"file": path, "sha256": found.sha256, "in_use": bool(found.left_out), "removed": removed}
        return _tell_of(as_json, found, rest, **more)

    return finished(work())


@metadata_group.command()
@click.argument("file", metavar="FILE")
@click.argument("uri")
@click.option(
    "--seen",
    multiple=True,
    metavar="DIR",
    help="The first ledger directory of a stopped bookie: refuse unless FILE is as new as what that bookie has seen."
    " May be given again.",
)
@click.option("--older", is_flag=True, help="Restore although a bookie of --seen may have seen newer metadata.")
@_config
@TIMEOUT
@JSON
def restore(
    file: str, uri: str, seen: tuple[str, ...], older: bool, config: str | None, timeout: float | None, as_json: bool
) -> int:
    """Write the cluster of the backup FILE to URI, where nothing may be.

    Stop all bookies first. FILE is checked before anything is written; no bookie starts at URI until everything is
    there, was read back, and is equal. Repeat the command if it was interrupted. A bookie that holds ledgers deletes
    none of them at URI until you run `bookie gc allow-deletions --older-metadata` on it, because FILE may be too old
    for some. --seen compares FILE with what a bookie knows. New ledgers get ids behind all that may have been given.
    """

    async def work() -> int:
        from bookie_protocol.metadata_service.moving.backup_file import BackupFile
        from bookie_protocol.metadata_service.moving.moves import restore as write

        found = BackupFile(file)
        if seen and not older:
            await _check_seen(found, seen)
        async with opened(uri, config, timeout, make_store=True) as service:
            header, tally = await write(found, service, _progress("restored"))
        shown, own, at_ms = shown_uri(uri), header.instance_id, header.taken_ms
        rest = f"of cluster {own} restored to {shown} and compared, as they were at {time_text(at_ms)}"
        return _tell_of(as_json, tally, rest, uri=shown, instance_id=own, taken_ms=at_ms)

    return finished(work())


@metadata_group.command()
@click.argument("uri")
@click.option("--confirm", is_flag=True, help="Yes, no bookie runs at the place to which the metadata were copied.")
@_config
@TIMEOUT
@JSON
def reopen(uri: str, confirm: bool, config: str | None, timeout: float | None, as_json: bool) -> int:
    """Let bookies start again at URI, from which `copy` has copied the metadata.

    What was changed at the other place since is not here. Remove that place first (`bookie cluster nuke`), so that
    bookies cannot run at both. New ledgers get ids behind all that it may have given.
    """
    if not confirm:
        raise InvalidConfiguration(f"bookies that run at another place than {uri} would be lost; repeat with --confirm")

    async def work() -> int:
        from bookie_protocol.metadata_service.moving.moves import reopen as open_again

        async with opened(uri, config, timeout) as service:
            instance_id = await open_again(service)
        tell(as_json, f"cluster {instance_id} is open again at {shown_uri(uri)}", uri=shown_uri(uri))
        return 0

    return finished(work())


def _tell_of(as_json: bool, tally: Tally | Trailer, rest: str, **more: object) -> int:
    line = f"{tally.nodes} nodes with {tally.ledgers} ledgers {rest}"
    tell(as_json, line, nodes=tally.nodes, ledgers=tally.ledgers, **more)
    return 0


def _progress(done: str) -> Callable[[int], None]:
    """Tells now and then on standard error."""
    told_at = time.monotonic()

    def tell_of(nodes: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            click.echo(f"bookie: {nodes} nodes {done}", err=True)

    return tell_of


async def _check_seen(file: BackupFile, directories: Sequence[str]) -> None:
    """Raises `MetadataWentBack` unless the file is as new as what each of these bookies has seen."""
    from bookie_pod.node.metadata_witness import KIND, Place, read_seen
    from bookie_protocol.metadata_service.tree import paths

    marks = f"/{paths.PODKEEPER}/{KIND}/"
    header, _ = await file.checked()
    has = {path.removeprefix(marks): data async for path, data in file.entries() if path.startswith(marks)}
    for directory in directories:
        seen = read_seen(directory)
        has_mark = not seen.known or has.get(seen.bookie, b"").decode("ascii", "replace") in seen.known
        if (
            not has_mark
            or seen.place != Place(header.history, header.counts)
            or not 0 < seen.position <= header.position
        ):
            raise MetadataWentBack(
                f"{file.path} is older than what bookie {seen.bookie} has seen, or cannot be compared with that: use a"
                " newer backup, or repeat with --older if there is none"
            )
