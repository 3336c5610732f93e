"""Copy, backup and restore of the metadata of a cluster.

A copy: nothing starts at the source any more; the target is a root that no bookie can start in; everything is written;
ids go on behind those that were given; both places are read again and compared; bookies can start at the target. The
source stays as it is, and stays closed. A copy that was interrupted is repeated: what is there already is compared.

Threads: event loop only.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, MetadataExists, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.moving.backup_file import BackupFile, Header, Trailer
from bookie_protocol.metadata_service.moving.nodes import (
    ClusterNodes,
    Entries,
    Entry,
    Tally,
    differences,
    overlaid,
)
from bookie_protocol.metadata_service.moving.numbers import go_on_behind, numbers_of
from bookie_protocol.metadata_service.records import HISTORY, HISTORY_NAME, history_of, split_history
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import COPYING, MOVED
from bookie_protocol.metadata_service.tree.life_cycle import erase
from bookie_protocol.metadata_service.tree.service import MetadataService

Told = Callable[[int], None]
"""Hears now and then how many nodes are done."""
_RECORDS: Final = f"/{paths.PODKEEPER}"


async def copy_cluster(source: MetadataService, target: MetadataService, told: Told) -> Tally | None:
    """Copy everything, and let no bookie start at the source any more. None: that was complete before.

    `MetadataNotEmpty`: processes are connected. `MetadataExists`: the target is another cluster, the source was copied
    to another place, or another process changes one of the two. `InvalidConfiguration`: one of the two cannot be used
    so. `MetadataVersionConflict`: the source was changed meanwhile. Whatever it raises, it may be repeated.
    """
    await source.cluster.require()
    async with source.cluster.held():
        return await _copy_held(source, target, told)


async def back_up(
    service: MetadataService, source: str, file: BackupFile, told: Told, *, expected: str | None = None
) -> Trailer:
    """Write a backup of a cluster, which may be in use. `source`: its URI as people may see it. `expected`: the
    instance id that the file is named after; None: any.

    `MetadataVersionConflict`: the cluster became another one meanwhile.
    """
    await service.cluster.instance_id()
    identity = instance_id, history = await _identity(service)
    if expected not in (None, instance_id):
        raise MetadataVersionConflict(f"the cluster at {service.root} was replaced by {instance_id}: repeat it")
    layout, session = await service.cluster.settled_layout(), service.session
    header = Header(instance_id, layout, source, time.time_ns() // 1_000_000, history, session.position, session.counts)

    async def lines() -> AsyncGenerator[Entry | Trailer, None]:
        nodes, tally = ClusterNodes(service.tree, service.root), Tally()
        async with aclosing(nodes.read(live=True)) as entries:
            async for path, data in entries:
                tally.add(path, data)
                yield path, data
                if tally.nodes % 1000 == 0:
                    told(tally.nodes)
        given = await numbers_of(service)  # behind the reading: none of its ledgers has an id from there on
        await service.cluster.instance_id()
        if await _identity(service) != identity:
            raise MetadataVersionConflict(f"the cluster at {service.root} was replaced while it was read: repeat it")
        left_out = nodes.left_out
        yield Trailer(tally.nodes, tally.ledgers, tally.sha256, given.next, given.high_order, left_out)

    return await file.write(header, lines())


async def restore(file: BackupFile, target: MetadataService, told: Told) -> tuple[Header, Tally]:
    """Write the cluster of a backup to another place. It may be repeated.

    `MetadataDamaged`: the file is not a complete backup, and nothing was written. `MetadataExists`: there is something
    at the target. `InvalidConfiguration`: its URI names another layout.
    """
    header, trailer = await file.checked()
    origin = _digest(repr((header, trailer)))
    copy, session_id = await target.cluster.begin_copy(header.instance_id, origin, header.layout)

    async def go_on() -> None:
        await go_on_behind(target, trailer.numbers, restored=True)

    record = _history(copy, copy)
    tally = await _fill(target, header.instance_id, session_id, file.entries, record, go_on, told)
    await target.cluster.finish_copy(header.instance_id, copy, session_id)
    return header, tally


async def reopen(service: MetadataService) -> str:
    """Let bookies start again in a cluster that was moved, behind all ids that the other place may have given. Return
    its instance id. `InvalidConfiguration`: it was not moved."""
    if (await service.cluster.mark())[0] == MOVED:
        await go_on_behind(service, await numbers_of(service), restored=True)
    return await service.cluster.reopen()


async def _copy_held(source: MetadataService, target: MetadataService, told: Told) -> Tally | None:
    """Copy as `copy_cluster` does. The hold ends with the session; then the copy fails if the source has changed."""
    instance_id, history = await _identity(source)
    await source.cluster.check_no_bookies("copied")
    word, before, _ = await source.cluster.mark()
    if word != MOVED:
        await source.cluster.instance_id()
    else:
        there = await _copy_at(target)
        if before and there == ("", before):
            return None
        if not before or there != (COPYING, before):
            raise MetadataExists(
                f"the cluster at {source.root} was copied to another place than {target.root}, or that has begun:"
                " repeat it to that place, or let this one count again with `bookie cluster metadata reopen`"
            )
    origin, layout = _digest(history), await source.cluster.settled_layout()
    copy, session_id = await target.cluster.begin_copy(instance_id, origin, layout)
    await _check_apart(source, target)
    await source.cluster.begin_move(instance_id, copy)

    async def go_on() -> None:  # behind the reading: none of its ledgers has an id from there on
        await go_on_behind(target, await numbers_of(source), restored=False)

    record = _history(copy, split_history(history)[1])
    nodes = ClusterNodes(source.tree, source.root)
    tally = await _fill(target, instance_id, session_id, nodes.read, record, go_on, told)
    await source.tree.sync(source.root)
    if await source.cluster.mark() != (MOVED, copy, instance_id):
        raise MetadataVersionConflict(f"the cluster at {source.root} was opened again meanwhile: stop what runs there")
    await target.cluster.finish_copy(instance_id, copy, session_id)
    return tally


async def _identity(service: MetadataService) -> tuple[str, str]:
    """The instance id and the record `history`: no two places have the same. `InvalidConfiguration`: it has no id."""
    await service.tree.sync(service.root)
    instance_id = await service.cluster.known_instance_id()
    if instance_id is None:
        raise InvalidConfiguration(f"the cluster at {service.root} has no instance id: bookies cannot tell it apart")
    return instance_id, await history_of(service.records)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _history(copy: str, restored: str) -> bytes:
    at_ms = time.time_ns() // 1_000_000
    return json.dumps({"format": 1, "history": copy, "restore": restored, "at_ms": at_ms}).encode()


async def _copy_at(target: MetadataService) -> tuple[str, str]:
    """Return the word that keeps bookies from starting there, and the copy that is there, or being written."""
    try:
        word, copy, _ = await target.cluster.mark()
    except MetadataNotFound:
        return "", ""
    return word, copy or split_history(await history_of(target.records))[0]


async def _fill(
    target: MetadataService,
    instance_id: str,
    session_id: int,
    read: Callable[[], Entries],
    history: bytes,
    go_on: Callable[[], Awaitable[None]],
    told: Told,
) -> Tally:
    """Write everything and compare it. `go_on`: puts the generation of ids behind what was given."""
    own = {f"{_RECORDS}/{HISTORY}": b"", f"{_RECORDS}/{HISTORY}/{HISTORY_NAME}": history}

    def wanted() -> Entries:
        return overlaid(read(), own, {_RECORDS: instance_id.encode()})

    nodes = ClusterNodes(target.tree, target.root)
    tally = await nodes.make_equal(wanted(), session_id, told)
    await go_on()
    again, count, some = await differences(wanted(), nodes.read(times=False))
    if count or again.sha256 != tally.sha256:
        shown = f"{count} nodes differ, such as {', '.join(some)}" if count else "what was read first is not there now"
        raise MetadataVersionConflict(
            f"the copy at {target.root} is not equal to its source ({shown}): something still writes at one of the two."
            " Stop it, and repeat the command"
        )
    return tally


async def _check_apart(source: MetadataService, target: MetadataService) -> None:
    """`InvalidConfiguration`: the target lies within the source."""
    if not target.root.startswith(f"{source.root}/"):
        return
    place = f"{target.root}/{paths.INSTANCE_ID}"
    try:
        seen = (await source.tree.get(place)).data
    except MetadataNotFound:
        return
    if seen == (await target.tree.get(place)).data:
        await erase(target.tree, target.root)
        raise InvalidConfiguration(f"{target.root} lies within the cluster at {source.root}: choose a path beside it")
