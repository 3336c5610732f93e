"""Formatting and removing a cluster.

Invariants
- Everything that speaks against the step is looked at before the first change.
- Both delete the parents of the registrations first: a bookie that came meanwhile stops them, with nothing lost.
- Formatting then marks the instance id: from there on no bookie starts, with old data or without, until all of it is
  done. It looks for bookies once more before it erases anything, and a bookie looks at the instance id once more when
  it has registered: of two that meet, one sees the other.
- Instance id and layout are replaced by one write each, and there until the root goes, so each step can be repeated
  with the same instance id.
- What vanishes while a tree is deleted is fine. What is created meanwhile is deleted too, or the call fails; it may be
  repeated.
- At most `MAX_DELETES` requests are under way, and the names of one directory for each level are held.

Threads: event loop only.

Source: reference metadata layout, section 3.4.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, MetadataDamaged, MetadataNotEmpty, MetadataNotFound
from bookie_protocol.metadata_service.interface import ANY_VERSION, LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import DEFAULT_LAYOUT, FORMATTING, TreeCluster, encode_layout
from bookie_protocol.metadata_service.tree.listing import LedgerListing
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication import formats

_NAMED: Final = 5
_SPECIAL: Final = frozenset(
    (
        paths.LAYOUT,
        paths.INSTANCE_ID,
        paths.AVAILABLE,
        paths.COOKIES,
        paths.UNDER_REPLICATION,
        paths.DISABLE_HEALTH_CHECK,
        paths.PODKEEPER,
    )
)


_LAST: Final = (paths.INSTANCE_ID, paths.LAYOUT)
"""A removal that was interrupted can be repeated with the same instance id and the same URI."""
MAX_DELETES: Final = 64
_MAX_ROUNDS: Final = 10


class ClusterMetadata(TreeCluster):
    """The cluster as a whole: is there one, how are its ledgers laid out, what is its instance id."""

    async def format(self, *, instance_id: str | None = None, force: bool = False, timeout: float | None = None) -> str:
        """Erase ledgers, id generation, marks, cookies, records and instance id, write new ones; returns the new id.

        Registrations, the auditor's votes and the auto-recovery settings stay. Where there is no cluster one is made.
        `InvalidConfiguration`: `instance_id` is not the cluster's (None: do not compare). `MetadataNotEmpty`: bookies
        are registered, and `force` is not set. An interrupted call may be repeated; until then `instance_id` raises
        `MetadataDamaged`, and no bookie starts.
        """
        if not await self.exists(timeout=timeout):
            return await self.initialize(timeout=timeout)
        before = await self._known_instance_id(timeout)
        self._check_instance_id(instance_id, before)
        if not force:
            await self._check_no_bookies("formatted", timeout)
            await self._delete_registration_parents("formatted", timeout)
        layout = await self._layout_to_keep(timeout)
        await self._mark(before, force, timeout)
        for name in (await self._tree.children(self._root, timeout=timeout)).names:
            if paths.is_ledger_parent(name) or paths.is_id_generation(name):
                await erase(self._tree, f"{self._root}/{name}", timeout=timeout)
        for name in (formats.LEDGERS, formats.LOCKS, formats.LEFT_ALONE):
            await erase(self._tree, f"{self._root}/{paths.UNDER_REPLICATION}/{name}", timeout=timeout)
        for name in (paths.COOKIES, paths.PODKEEPER):  # records tell of bookies and ledgers that are no more
            await erase(self._tree, f"{self._root}/{name}", timeout=timeout)
        await self._replace(paths.LAYOUT, encode_layout(layout), timeout)
        self._settled = layout
        await self._make_registration_parents(timeout)
        new = str(uuid.uuid4())
        await self._replace(paths.INSTANCE_ID, new.encode(), timeout)
        return new

    async def nuke(self, *, instance_id: str | None, with_ledgers: bool = False, timeout: float | None = None) -> None:
        """Remove the cluster and its root. An interrupted call may be repeated.

        `InvalidConfiguration`: `instance_id` is not the cluster's (None: do not compare). `MetadataNotEmpty`, and
        nothing was changed: bookies are registered, the root holds nodes that are none of BookKeeper's, or (unless
        `with_ledgers`) there are ledgers.
        """
        stored = await self._known_instance_id(timeout)
        left = set((await self._tree.children(self._root, timeout=timeout)).names)
        if stored is not None or not left <= {paths.LAYOUT}:
            self._check_instance_id(instance_id, stored)
        await self._check_no_bookies("removed", timeout)
        await self._check_known(timeout)
        if not with_ledgers:
            await self._check_no_ledgers(timeout)
        await self._delete_registration_parents("removed", timeout)
        for name in (await self._tree.children(self._root, timeout=timeout)).names:
            if name not in _LAST:
                await erase(self._tree, f"{self._root}/{name}", timeout=timeout)
        for name in _LAST:
            await erase(self._tree, f"{self._root}/{name}", timeout=timeout)
        await erase(self._tree, self._root, timeout=timeout)
        self._settled = None

    # --- what speaks against it -------------------------------------------------------------------------------

    async def _known_instance_id(self, timeout: float | None) -> str | None:
        """Also of a cluster that is being formatted, from before that."""
        stored = await self._stored_instance_id(timeout)
        return None if stored is None else stored.removeprefix(FORMATTING) or None

    def _check_instance_id(self, wanted: str | None, stored: str | None) -> None:
        if wanted is not None and wanted != stored:
            raise InvalidConfiguration(
                f"the cluster at {self._root} has instance id {stored or '(none)'}, not {wanted}; nothing was changed"
            )

    async def _check_no_bookies(self, step: str, timeout: float | None) -> None:
        found: set[str] = set()
        for path in self._registration_parents():
            try:
                found |= set((await self._tree.children(path, timeout=timeout)).names)
            except MetadataNotFound:
                continue
        bookies = sorted(found - {paths.READ_ONLY})
        if bookies:
            raise MetadataNotEmpty(
                f"the cluster at {self._root} cannot be {step}: {_named('bookie', bookies)} registered; stop "
                f"{'it' if len(bookies) == 1 else 'them'} first"
            )

    async def _check_known(self, timeout: float | None) -> None:
        children = (await self._tree.children(self._root, timeout=timeout)).names
        unknown = sorted(
            name
            for name in children
            if name not in _SPECIAL and not paths.is_ledger_parent(name) and not paths.is_id_generation(name)
        )
        if unknown:
            raise MetadataNotEmpty(
                f"the cluster at {self._root} cannot be removed: {_named('node', unknown)} none of BookKeeper's; check "
                "the path, or remove them by hand"
            )

    async def _check_no_ledgers(self, timeout: float | None) -> None:
        async with aclosing(LedgerListing(self._tree, self._root, self).ranges(timeout=timeout)) as ranges:
            async for found in ranges:
                if found.ids:
                    raise MetadataNotEmpty(
                        f"the cluster at {self._root} cannot be removed: it holds ledgers, such as "
                        f"{found.ids[0]}; delete them first, or say that they may go"
                    )

    # --- inside -----------------------------------------------------------------------------------------------

    def _registration_parents(self) -> tuple[str, str]:
        available = f"{self._root}/{paths.AVAILABLE}"
        return available, f"{available}/{paths.READ_ONLY}"

    async def _layout_to_keep(self, timeout: float | None) -> LedgerLayout:
        try:
            stored = await self.layout(timeout=timeout)
        except MetadataDamaged:
            stored = None
        return self._configured or stored or DEFAULT_LAYOUT

    async def _delete_registration_parents(self, step: str, timeout: float | None) -> None:
        for path in reversed(self._registration_parents()):
            try:
                await self._tree.delete(path, timeout=timeout)
            except MetadataNotFound:
                continue
            except MetadataNotEmpty:
                await self._make_registration_parents(timeout)
                await self._check_no_bookies(step, timeout)
                raise

    async def _make_registration_parents(self, timeout: float | None) -> None:
        for path in self._registration_parents():
            await self._tree.ensure(path, timeout=timeout)

    async def _mark(self, before: str | None, force: bool, timeout: float | None) -> None:
        """Taken back if a bookie has come."""
        stored = await self._stored_instance_id(timeout)
        await self._replace(paths.INSTANCE_ID, f"{FORMATTING}{before or ''}".encode(), timeout)
        if not force:
            try:
                await self._check_no_bookies("formatted", timeout)
            except MetadataNotEmpty:
                await self._replace(paths.INSTANCE_ID, (stored or "").encode(), timeout)
                await self._make_registration_parents(timeout)
                raise

    async def _replace(self, name: str, data: bytes, timeout: float | None) -> None:
        path = f"{self._root}/{name}"
        try:
            await self._tree.set(path, data, ANY_VERSION, timeout=timeout)
        except MetadataNotFound:
            await self._tree.create(path, data, timeout=timeout)


def _named(what: str, found: list[str]) -> str:
    """`bookie a is`, `bookies a, b and 7 more are`"""
    shown = ", ".join(found[:_NAMED])
    if len(found) == 1:
        return f"{what} {shown} is"
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{what}s {shown}{more} are"


async def erase(tree: RetryingTree, path: str, *, timeout: float | None = None) -> None:
    """Delete `path` and all below it. `MetadataNotEmpty`: somebody creates faster than this deletes."""
    for _ in range(_MAX_ROUNDS):
        if await _delete(tree, path, timeout):
            return
        await erase_children(tree, path, timeout=timeout)
    raise MetadataNotEmpty(f"{path} was filled again while it was being deleted: stop whoever writes there, and repeat")


async def erase_children(tree: RetryingTree, path: str, *, timeout: float | None = None) -> None:
    """Delete all below `path`."""
    try:
        names = (await tree.children(path, timeout=timeout)).names
    except MetadataNotFound:
        return
    for start in range(0, len(names), MAX_DELETES):
        children = [f"{path}/{name}" for name in names[start : start + MAX_DELETES]]
        for child in await _not_deleted(tree, children, timeout):
            await erase(tree, child, timeout=timeout)


async def _not_deleted(tree: RetryingTree, children: Sequence[str], timeout: float | None) -> list[str]:
    """Delete these at once; returns those that have children themselves."""
    async with asyncio.TaskGroup() as group:
        deletes = [group.create_task(_delete(tree, child, timeout)) for child in children]
    return [child for child, delete in zip(children, deletes, strict=True) if not delete.result()]


async def _delete(tree: RetryingTree, path: str, timeout: float | None) -> bool:
    try:
        await tree.delete(path, timeout=timeout)
    except MetadataNotEmpty:
        return False
    except MetadataNotFound:
        pass
    return True
