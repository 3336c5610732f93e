"""Marks of under-replicated ledgers.

Invariants
- A mark is changed and removed only as it was read, so that a replica reported meanwhile is never lost.
- Directories that became empty go with the mark; marking makes missing ones again.
- Listing holds the names of one directory for each level, and at most `READ_AHEAD` marks.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 10.1, 10.2 and 10.4.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.findings import Failure, Finding, covers, joined, with_failure
from bookie_protocol.metadata_service.tree.nodes import Node, parent_of
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.under_replication import LedgerLock, ReplicaPredicate, UnderreplicatedLedger
from bookie_protocol.together import read_ahead
from bookie_protocol.versioned import Identity

READ_AHEAD: Final = 64
COUNTED_ONE_BY_ONE: Final = 1000
_MAX_ATTEMPTS: Final = 100


class Marks:
    """Makes, lists and removes marks; `UnderReplication` without its locks and settings."""

    def __init__(self, base: UnderReplicationBase) -> None:
        self._base = base
        self._tree = base.tree

    async def mark(
        self,
        ledger_id: int,
        missing_replicas: Collection[str] = (),
        *,
        ctime_ms: int | None,
        findings: Collection[Finding] = (),
    ) -> None:
        """Mark a ledger. What is new joins an existing mark, which stays as it is if it has everything.

        `findings`: why copies need work; their bookies are among the missing replicas. A repair reads everything that a
        missing replica without a finding holds. `ctime_ms` None: the time is not recorded
        (`storeSystemTimeAsLedgerUnderreplicatedMarkTime=false`).
        """
        await self._base.prepare()
        path = self._base.mark(ledger_id)
        missing = tuple(dict.fromkeys((*missing_replicas, *(finding.bookie for finding in findings))))
        new = UnderreplicatedLedger(ledger_id, missing, ctime_ms, None, joined(findings))
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._tree.create(path, formats.encode_mark(missing, ctime_ms, new.findings))
                return
            except MetadataNotFound:
                await self._create_parents(path)
            except MetadataExists:
                with suppress(MetadataVersionConflict, MetadataNotFound):
                    await self._extend(new, path)
                    return
        raise MetadataVersionConflict(f"ledger {ledger_id} could not be marked: {path} never stood still")

    async def renew(self, ledger_id: int) -> bool:
        """See that a mark outlives a repair under way, which may have looked too early: it gets another version. False:
        there is no mark."""
        path = self._base.mark(ledger_id)
        for _ in range(_MAX_ATTEMPTS):
            try:
                stored = await self._tree.read(path)
                await self._tree.set(path, stored.value, stored.identity)
                return True
            except MetadataVersionConflict:
                continue  # the other change may be older than the repair: what we read may have been older still
            except MetadataNotFound:
                return False
        raise MetadataVersionConflict(f"ledger {ledger_id} could not be marked: {path} never stood still")

    async def note_failure(self, lock: LedgerLock, failure: Failure) -> None:
        """Note in the mark of a locked ledger that an attempt to repair it failed. Without a mark nothing is noted.

        Raises `SessionEnded` (the lock is gone) and other `MetadataError`.
        """
        await self._rewrite(lock, lambda found: replace(found, failures=with_failure(found.failures, failure)))

    async def withdraw(self, lock: LedgerLock, bookies: Collection[str]) -> None:
        """Take these bookies, which no metadata name any more, out of a mark that names others too. One that names no
        others stays. Raises as `note_failure`."""

        def without(found: UnderreplicatedLedger) -> UnderreplicatedLedger | None:
            left = tuple(replica for replica in found.replicas if replica not in bookies)
            if not left or left == found.replicas:
                return None
            return replace(found, replicas=left, findings=tuple(each for each in found.findings if each.bookie in left))

        await self._rewrite(lock, without)

    async def _rewrite(
        self, lock: LedgerLock, change: Callable[[UnderreplicatedLedger], UnderreplicatedLedger | None]
    ) -> None:
        """Store what `change` makes of the mark of a locked ledger, in the session of the lock; None: nothing."""
        path = self._base.mark(lock.ledger_id)
        for _ in range(_MAX_ATTEMPTS):
            try:
                stored = await self._tree.read(path)
                changed = change(formats.decode_mark(lock.ledger_id, stored.value, path))
                if changed is not None:
                    data = formats.encode_mark(changed.replicas, changed.ctime_ms, changed.findings, changed.failures)
                    await self._tree.set(path, data, stored.identity, session_id=lock.session_id)
                return
            except MetadataVersionConflict:
                continue
            except MetadataNotFound:
                return

    async def count(self) -> int:
        """Return the number of marked ledgers, without reading the marks. Few are checked one by one: a directory
        may be left without its mark, and people wait for a zero."""
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
        """Return the mark of a ledger; None: it is not marked."""
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

    async def _remove(self, ledger_id: int, mark: Identity | None, *, session_id: int | None = None) -> bool:
        """Remove this mark (None: any), and empty directories above it. False: it was renewed. `session_id`: of the
        lock under which it was read."""
        path = self._base.mark(ledger_id)
        try:
            if mark is None:
                await self._tree.delete(path)
            else:
                await self._tree.delete_this(path, mark, session_id=session_id)
        except MetadataVersionConflict:
            return False
        except MetadataNotFound:
            return True
        with suppress(MetadataError):  # the mark is gone, whatever becomes of its directories
            await self._prune(parent_of(path))
        return True

    async def unmark(self, ledger_id: int) -> None:
        """Remove a mark of any origin (the ledger was deleted), if there is one."""
        await self._remove(ledger_id, None)

    async def _find(self, ledger_id: int) -> Node | None:
        try:
            return await self._tree.get(self._base.mark(ledger_id))
        except MetadataNotFound:
            return None

    async def _extend(self, new: UnderreplicatedLedger, path: str) -> None:
        """Add what is new. Earlier failures are forgotten, since they were those of another task."""
        stored = await self._tree.read(path)
        found = formats.decode_mark(new.ledger_id, stored.value, path)
        if set(new.replicas) <= set(found.replicas) and covers(found.doubts, new.doubts):
            return
        replicas = dict.fromkeys((*found.replicas, *new.replicas))
        ctime_ms = found.ctime_ms if new.ctime_ms is None else new.ctime_ms
        data = formats.encode_mark(tuple(replicas), ctime_ms, joined(found.doubts, new.doubts))
        await self._tree.set(path, data, stored.identity)

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
            await self._tree.delete(path)
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
