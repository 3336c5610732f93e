"""Marks of under-replicated ledgers.

Invariants
- A mark is changed and removed by version only, so that a replica reported meanwhile is never lost.
- Directories that became empty go with the mark; marking makes missing ones again.
- Listing holds the names of one directory for each level, and at most `READ_AHEAD` marks.

Threads: event loop only.

Sources: reference metadata layout, sections 10.1, 10.2 and 10.4.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.tree.nodes import Node, parent_of
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.under_replication import ReplicaPredicate, UnderreplicatedLedger
from bookie_protocol.metadata_service.versioned import ANY_VERSION
from bookie_protocol.together import read_ahead

READ_AHEAD: Final = 64
COUNTED_ONE_BY_ONE: Final = 1000
_MAX_ATTEMPTS: Final = 100


class Marks:
    """Makes, lists and removes marks; `UnderReplication` without its locks and settings."""

    def __init__(self, base: UnderReplicationBase) -> None:
        self._base = base
        self._tree = base.tree

    async def mark(self, ledger_id: int, missing_replicas: Collection[str], *, ctime_ms: int | None) -> None:
        """Mark a ledger; replicas join those of an existing mark, which stays as it is if it has them all.

        `ctime_ms` None: the time is not recorded (`storeSystemTimeAsLedgerUnderreplicatedMarkTime=false`).
        """
        await self._base.prepare()
        path = self._base.mark(ledger_id)
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._tree.create(path, formats.encode_mark(missing_replicas, ctime_ms))
                return
            except MetadataNotFound:
                await self._create_parents(path)
            except MetadataExists:
                with suppress(MetadataVersionConflict, MetadataNotFound):
                    await self._extend(ledger_id, path, missing_replicas, ctime_ms)
                    return
        raise MetadataVersionConflict(f"ledger {ledger_id} could not be marked: {path} never stood still")

    async def renew(self, ledger_id: int) -> bool:
        """See that a mark outlives a repair under way, which may have looked too early: it gets another version. False:
        there is no mark."""
        path = self._base.mark(ledger_id)
        for _ in range(_MAX_ATTEMPTS):
            try:
                node = await self._tree.get(path)
                await self._tree.set(path, node.data, node.stat.version)
                return True
            except MetadataVersionConflict:
                continue  # somebody's change may be older than the repair: what we read may have been older still
            except MetadataNotFound:
                return False
        raise MetadataVersionConflict(f"ledger {ledger_id} could not be marked: {path} never stood still")

    async def count(self) -> int:
        """How many ledgers are marked, without reading the marks. Few are looked at one by one: a directory may be left
        without its mark, and people wait for a zero."""
        await self._base.cluster.require()
        count, first = 0, []
        async for ledger_id in self._ids(""):
            count += 1
            if count <= COUNTED_ONE_BY_ONE:
                first.append(ledger_id)
        if count > COUNTED_ONE_BY_ONE:
            return count
        return sum([await self._tree.exists(self._base.mark(each)) is not None for each in first])

    async def read(self, ledger_id: int) -> UnderreplicatedLedger | None:
        """The mark of a ledger; None: it is not marked."""
        node = await self._find(ledger_id)
        if node is None:
            await self._base.cluster.require()
            return None
        return formats.decode_mark(ledger_id, node.data, self._base.mark(ledger_id))

    async def list(self, predicate: ReplicaPredicate | None = None) -> AsyncIterator[UnderreplicatedLedger]:
        """Every mark, in ascending order of ids, bounded in memory. Marks made or removed meanwhile may show; one that
        is damaged says so, unless there is a predicate, which it cannot be asked for."""

        async def read(ledger_id: int) -> UnderreplicatedLedger | None:
            node = await self._find(ledger_id)
            if node is None:
                return None
            try:
                return formats.decode_mark(ledger_id, node.data, self._base.mark(ledger_id))
            except MetadataDamaged as error:
                return UnderreplicatedLedger(ledger_id, (), damage=str(error))

        await self._base.cluster.require()
        async for found in read_ahead(self._ids(""), read, READ_AHEAD):
            if found is None:
                continue
            if predicate is None or (found.damage is None and predicate(found.replicas)):
                yield found

    async def _remove(
        self,
        ledger_id: int,
        version: int,
        *,
        created_ms: int | None = None,
        session_id: int | None = None,
    ) -> bool:
        """Remove a mark that still has this version, and empty directories above it. False: it was renewed.

        `created_ms`: of the mark that had this version; one that is made anew begins with the versions of its
        predecessor. `session_id`: of the lock under which both were read.
        """
        path = self._base.mark(ledger_id)
        try:
            await self._tree.delete(path, version, created_ms=created_ms, session_id=session_id)
        except MetadataVersionConflict:
            return False
        except MetadataNotFound:
            return True
        with suppress(MetadataError):  # the mark is gone, whatever becomes of its directories
            await self._prune(parent_of(path))
        return True

    async def unmark(self, ledger_id: int) -> None:
        """Remove a mark, whoever set it (the ledger was deleted). None is fine."""
        await self._remove(ledger_id, ANY_VERSION)

    async def _find(self, ledger_id: int) -> Node | None:
        try:
            return await self._tree.get(self._base.mark(ledger_id))
        except MetadataNotFound:
            return None

    async def _extend(self, ledger_id: int, path: str, missing: Collection[str], ctime_ms: int | None) -> None:
        node = await self._tree.get(path)
        found = formats.decode_mark(ledger_id, node.data, path)
        new = [replica for replica in missing if replica not in found.replicas]
        if new:
            data = formats.encode_mark((*found.replicas, *new), found.ctime_ms if ctime_ms is None else ctime_ms)
            await self._tree.set(path, data, node.stat.version)

    async def _create_parents(self, path: str) -> None:
        groups = path.removeprefix(self._base.ledgers).split("/")[1:-1]
        for depth in range(1, len(groups) + 1):
            try:
                await self._tree.ensure("/".join((self._base.ledgers, *groups[:depth])))
            except MetadataNotFound:  # pruned, or the whole tree formatted, under our hands
                await self._base.prepare(again=True)
                return

    async def _prune(self, path: str) -> None:
        while path != self._base.ledgers:
            stat = await self._tree.exists(path)
            if stat is None or stat.children > 0:
                return
            await self._tree.delete(path, stat.version)
            path = parent_of(path)

    async def _ids(self, directory: str, level: int = 0) -> AsyncGenerator[int, None]:
        if level == formats.LEVELS:
            ledger_id = formats.directory_ledger_id(directory)
            if ledger_id is not None:
                yield ledger_id
            return
        try:
            children = await self._tree.children(self._base.ledgers + directory)
        except MetadataNotFound:
            return
        for name in sorted(filter(formats.is_group, children.names)):
            async for ledger_id in self._ids(f"{directory}/{name}", level + 1):
                yield ledger_id
