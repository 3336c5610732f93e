"""Formatting and removing a cluster.

Invariants
- Each holds a node of its session in the root from before its first look until its end, as a copy does, and writes in
  that session or not at all: of formats, removals and copies of one cluster, one is under way.
- Everything that speaks against the step is looked at before the first change.
- Both delete the parents of the registrations first: a bookie that came meanwhile stops them, with nothing lost.
- Both then mark the instance id: from there on no bookie starts, with old data or without, and no backup is made, until
  all of it is done. They look for bookies once more before they erase anything, and a bookie looks at the instance id
  once more when it has registered: of two that meet, one sees the other.
- Both mark the instance id that they have checked and no other, and read their mark again before each name that they
  erase: a tool that does not know that node may have made another cluster. Where there is no instance id, that is what
  they read again. The root goes only when it is empty.
- Instance id and layout are replaced by one write each, and there until the root goes, so each step can be repeated
  with the same instance id.
- What vanishes while a tree is deleted is fine. What is created meanwhile is deleted too, or the call fails; it may be
  repeated.
- At most `MAX_DELETES` requests are under way, and the names of one directory for each level are held.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 3.4.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import Identity, LedgerLayout, Versioned
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import (
    COPYING,
    DEFAULT_LAYOUT,
    FORMATTING,
    MOVED,
    REMOVING,
    TreeCluster,
    decode_instance_id,
    encode_layout,
    split_instance_id,
)
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
        paths.HOLDER,
    )
)


_LAST: Final = (paths.INSTANCE_ID, paths.LAYOUT, paths.HOLDER)
"""A removal that was interrupted can be repeated with the same instance id and the same URI."""
MAX_DELETES: Final = 64
_MAX_ROUNDS: Final = 10
_PATIENCE: Final = 1.5
"""Times the time-out of sessions: for so long a step waits for the session of one that was killed."""


class ClusterMetadata(TreeCluster):
    """The cluster as a whole: is there one, how are its ledgers laid out, what is its instance id."""

    async def format(self, *, instance_id: str | None = None, force: bool = False, timeout: float | None = None) -> str:
        """Erase ledgers, id generation, marks, cookies, records and instance id, write new ones; returns the new id.

        Registrations, the auditor's votes and the auto-recovery settings stay. Where there is no cluster one is made.
        `InvalidConfiguration`: `instance_id` is not the cluster's (None: do not compare). `MetadataNotEmpty`: bookies
        are registered, and `force` is not set. `MetadataExists`: another process formats, removes or copies it. An
        interrupted call may be repeated; until then `instance_id` raises `MetadataDamaged`, and no bookie starts.
        """
        if not await self.exists(timeout=timeout):
            return await self.initialize(timeout=timeout)
        async with self.held(timeout) as session_id:
            return await self._format(instance_id, force, session_id, timeout)

    async def _format(self, instance_id: str | None, force: bool, session_id: int, timeout: float | None) -> str:
        before, stored = await self._instance_id_before(timeout)
        self._check_instance_id(instance_id, stored)
        if not force:
            await self.check_no_bookies("formatted", timeout)
            await self._delete_registration_parents("formatted", session_id, timeout)
        layout = await self._layout_to_keep(timeout)
        mark = await self._mark(FORMATTING, before, "formatted", force, session_id, timeout)
        for name in (await self._tree.children(self._root, timeout=timeout)).names:
            if paths.is_ledger_parent(name) or paths.is_id_generation(name):
                await self._erase(name, mark, session_id, timeout)
        for name in (formats.LEDGERS, formats.LOCKS, formats.LEFT_ALONE):
            await self._erase(f"{paths.UNDER_REPLICATION}/{name}", mark, session_id, timeout)
        for name in (paths.COOKIES, paths.PODKEEPER):  # records tell of bookies and ledgers that are no more
            await self._erase(name, mark, session_id, timeout)
        await self._check_mark(mark, timeout)
        await self._replace(paths.LAYOUT, encode_layout(layout), timeout, session_id)
        self._settled = layout
        await self._make_registration_parents(timeout)
        new = str(uuid.uuid4())
        await self._tree.set(self._instance_id_path, new.encode(), mark, session_id=session_id, timeout=timeout)
        return new

    async def nuke(
        self,
        *,
        instance_id: str | None,
        with_ledgers: bool = False,
        bookie_suffix: str = "",
        timeout: float | None = None,
    ) -> None:
        """Remove the cluster and its root. An interrupted call may be repeated; until then `instance_id` raises
        `MetadataDamaged`, and no bookie starts.

        `InvalidConfiguration`: `instance_id` is not the cluster's (None: do not compare). `MetadataNotEmpty`, and
        nothing was changed: bookies are registered, the id of a bookie that has a cookie does not end with
        `bookie_suffix`, the root holds nodes that are none of BookKeeper's, or (unless `with_ledgers`) there are
        ledgers. `MetadataNotFound`: there is no such root. `MetadataExists`: another process formats, removes or copies
        it. `MetadataVersionConflict`: another command changed the cluster meanwhile. `SessionEnded`: another one may
        have.
        """
        await self.require(timeout=timeout)
        async with self.held(timeout) as session_id:
            before, stored = await self._instance_id_before(timeout)
            left = set((await self._tree.children(self._root, timeout=timeout)).names)
            if stored is not None or not left <= {paths.LAYOUT, paths.AVAILABLE, paths.HOLDER}:
                self._check_instance_id(instance_id, stored)
            await self.check_no_bookies("removed", timeout)
            await self._check_cookies(bookie_suffix, timeout)
            await self._check_known(timeout)
            if not with_ledgers:
                await self._check_no_ledgers(timeout)
            await self._empty(before, session_id, timeout)
        self._settled = None
        if not await _delete(self._tree, self._root, session_id, timeout):
            raise self._changed()

    async def _empty(self, before: Versioned[bytes] | None, session_id: int, timeout: float | None) -> None:
        """Erase all that is in the root."""
        await self._delete_registration_parents("removed", session_id, timeout)
        mark: Identity | None = None
        if before is not None:
            mark = await self._mark(REMOVING, before, "removed", False, session_id, timeout)
        for name in (await self._tree.children(self._root, timeout=timeout)).names:
            if name not in _LAST:
                await self._erase(name, mark, session_id, timeout)
        if mark is not None:
            with suppress(MetadataNotFound):
                await self._tree.delete_this(self._instance_id_path, mark, session_id=session_id, timeout=timeout)
        await self._erase(paths.LAYOUT, None, session_id, timeout)

    # --- moving: `metadata_service.moving` carries the nodes ---------------------------------------------------

    async def mark(self, *, timeout: float | None = None) -> tuple[str, str, str | None]:
        """Take the stored instance id apart, as `split_instance_id` does. `MetadataNotFound`: there is no cluster."""
        return split_instance_id(await self._stored_instance_id(timeout))

    async def begin_move(self, instance_id: str, copy: str, *, timeout: float | None = None) -> None:
        """Let no bookie start here from now on: the metadata go to the place that has this copy. It may be repeated.

        `MetadataNotEmpty`: bookies are registered, and nothing was changed. `MetadataVersionConflict`: another command
        changed the instance id at the same time, such as a copy to another place.
        """
        path = self._instance_id_path
        before = await self._tree.read(path, timeout=timeout)
        found = split_instance_id(before.value.decode("utf-8", "replace"))
        if found not in (("", "", instance_id), (MOVED, copy, instance_id)):
            raise self._changed()
        mark = f"{MOVED}{copy} {instance_id}".encode()
        marked = await self._tree.set(path, mark, before.identity, timeout=timeout)
        try:
            await self.check_no_bookies("moved", timeout)
        except MetadataNotEmpty:
            await self._tree.set(path, before.value, marked, timeout=timeout)
            raise

    async def reopen(self, *, timeout: float | None = None) -> str:
        """Let bookies start again in a cluster that was moved, and return its instance id. `InvalidConfiguration`: it
        was not. To be called behind the ids that the other place may have given (`moving.moves.reopen`)."""
        before, instance_id = await self._instance_id_before(timeout)
        if before is None or instance_id is None or not before.value.startswith(MOVED.encode()):
            raise InvalidConfiguration(f"the cluster at {self._root} was not moved; nothing was changed")
        await self._tree.set(self._instance_id_path, instance_id.encode(), before.identity, timeout=timeout)
        return instance_id

    async def begin_copy(
        self, instance_id: str, origin: str, layout: LedgerLayout, *, timeout: float | None = None
    ) -> tuple[str, int]:
        """Make the root of a cluster that no bookie can start in until `finish_copy`. Return the name of the copy, and
        the session in which it may be written: no other process may meanwhile. It may be repeated. `origin`, of which
        the name tells, is what the metadata come from: another source does not go on with what this one began.

        `MetadataExists`: there is a cluster already, other than one that this began; or another process writes it, or
        died a moment ago. `InvalidConfiguration`: the URI names another layout.
        """
        if self._configured not in (None, layout):
            raise InvalidConfiguration(
                f"the ledger layout of the target's URI does not match the one of the metadata, {layout.name.lower()}"
            )
        if not await self._may_begin(timeout):
            await self._begun(instance_id, origin, timeout)
        else:
            await self._create_parents(timeout)
            mark = f"{COPYING}{origin}-{secrets.token_hex(8)} {instance_id}"
            names = ((paths.LAYOUT, encode_layout(layout)), (paths.INSTANCE_ID, mark.encode()))
            nodes = [(self._root, b""), *((f"{self._root}/{name}", data) for name, data in names)]
            try:
                await self._tree.create_all(nodes, timeout=timeout)
            except MetadataExists:
                await self._begun(instance_id, origin, timeout)
        session_id = await self._hold(timeout)
        return await self._begun(instance_id, origin, timeout), session_id  # who held it may have come to the end

    async def finish_copy(self, instance_id: str, copy: str, session_id: int, *, timeout: float | None = None) -> None:
        """Let bookies start from now on. `SessionEnded`: another process may write it by now.
        `MetadataVersionConflict`: a command has begun to remove or format it."""
        path = self._instance_id_path
        before = await self._tree.read(path, timeout=timeout)
        if split_instance_id(before.value.decode("utf-8", "replace")) != (COPYING, copy, instance_id):
            raise self._changed()
        await self._tree.set(path, instance_id.encode(), before.identity, session_id=session_id, timeout=timeout)
        await self._tree.delete_own(self._holder, session_id, timeout=timeout)
        self._settled = None

    async def _begun(self, instance_id: str, origin: str, timeout: float | None) -> str:
        stored = await self._stored_instance_id(timeout)
        word, copy, found = split_instance_id(stored)
        if (word, copy.partition("-")[0], found) != (COPYING, origin, instance_id):
            raise MetadataExists(
                f"there is something at {self._root} already (instance id {stored or '(none)'}): choose another path,"
                " or remove it with `bookie cluster nuke`; nothing was changed"
            )
        return copy

    async def known_instance_id(self, timeout: float | None = None) -> str | None:
        """Return the instance id, also of a cluster in which no bookie can start at present."""
        return (await self.mark(timeout=timeout))[2]

    async def check_no_bookies(self, step: str, timeout: float | None = None) -> None:
        """`MetadataNotEmpty`: bookies are registered. `step` says what becomes of the cluster, for the message."""
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

    # --- what speaks against it -------------------------------------------------------------------------------

    @asynccontextmanager
    async def held(self, timeout: float | None = None) -> AsyncIterator[int]:
        """Hold the cluster until the end, in the session that is given: no other process formats, removes or copies it
        meanwhile. `MetadataExists`: another one does."""
        session_id = await self._hold(timeout)
        try:
            yield session_id
        finally:
            with suppress(MetadataError):  # it goes with the session
                await self._tree.delete_own(self._holder, session_id, timeout=timeout)

    async def _hold(self, timeout: float | None) -> int:
        """Return the session that alone formats, removes or copies here from now on; one that has died is waited for.
        `MetadataExists`: another one does."""
        session_id = self._tree.session_id
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE * self._tree.session.expires_after
        while True:
            gone = asyncio.Event()
            stat = await self._tree.exists(self._holder, watch=gone.set, timeout=timeout)
            if stat is not None and stat.owner == session_id:
                return session_id
            with suppress(TimeoutError, MetadataExists):
                if stat is None:
                    await self._tree.create(self._holder, ephemeral=True, session_id=session_id, timeout=timeout)
                    return session_id
                async with asyncio.timeout_at(deadline):
                    await gone.wait()
            if loop.time() >= deadline:
                raise MetadataExists(
                    f"another process formats or removes the cluster at {self._root}, or copies or restores metadata"
                    " to it: wait for it, or end it"
                )

    def _check_instance_id(self, wanted: str | None, stored: str | None) -> None:
        if wanted is not None and wanted != stored:
            raise InvalidConfiguration(
                f"the cluster at {self._root} has instance id {stored or '(none)'}, not {wanted}; nothing was changed"
            )

    async def _check_cookies(self, suffix: str, timeout: float | None) -> None:
        try:
            found = (await self._tree.children(f"{self._root}/{paths.COOKIES}", timeout=timeout)).names
        except MetadataNotFound:
            return
        others = sorted(name for name in found if name != paths.INSTANCE_ID and not name.endswith(suffix))
        if others:
            raise MetadataNotEmpty(
                f"the cluster at {self._root} cannot be removed: {_named('bookie', others)} of another cluster that "
                "uses the same metadata; decommission it first"
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

    async def _delete_registration_parents(self, step: str, session_id: int, timeout: float | None) -> None:
        for path in reversed(self._registration_parents()):
            try:
                await self._tree.delete(path, session_id=session_id, timeout=timeout)
            except MetadataNotFound:
                continue
            except MetadataNotEmpty:
                await self._make_registration_parents(timeout)
                await self.check_no_bookies(step, timeout)
                raise

    async def _make_registration_parents(self, timeout: float | None) -> None:
        for path in self._registration_parents():
            await self._tree.ensure(path, timeout=timeout)

    @property
    def _holder(self) -> str:
        return f"{self._root}/{paths.HOLDER}"

    @property
    def _instance_id_path(self) -> str:
        return f"{self._root}/{paths.INSTANCE_ID}"

    async def _instance_id_before(self, timeout: float | None) -> tuple[Versioned[bytes] | None, str | None]:
        """Return what is stored (None: nothing), and the instance id, as `known_instance_id` gives it."""
        try:
            before = await self._tree.read(self._instance_id_path, timeout=timeout)
        except MetadataNotFound:
            await self.require(timeout=timeout)
            return None, None
        return before, split_instance_id(decode_instance_id(before.value, self._instance_id_path))[2]

    async def _mark(
        self,
        word: str,
        before: Versioned[bytes] | None,
        step: str,
        force: bool,
        session_id: int,
        timeout: float | None,
    ) -> Identity:
        """Let no bookie start from now on, if what was read before is still there; return the mark. What was before is
        put back if a bookie has come (`force`: that may be)."""
        path, stored = self._instance_id_path, split_instance_id(before.value.decode() if before else None)[2]
        data = f"{word}{stored or ''}".encode()
        try:
            if before is not None:
                mark = await self._tree.set(path, data, before.identity, session_id=session_id, timeout=timeout)
            else:
                made = await self._tree.create(path, data, session_id=session_id, timeout=timeout)
                mark = Identity(0, made.creation)
        except MetadataNotFound as error:  # it was removed meanwhile
            raise self._changed() from error
        except (MetadataVersionConflict, MetadataExists) as error:
            with suppress(MetadataNotFound):
                await self._make_registration_parents(timeout)
            raise self._changed() from error
        if force:
            return mark
        try:
            await self.check_no_bookies(step, timeout)
        except MetadataNotEmpty:
            with suppress(MetadataVersionConflict, MetadataNotFound):
                if before is not None:
                    await self._tree.set(path, before.value, mark, timeout=timeout)
                else:
                    await self._tree.delete_this(path, mark, timeout=timeout)
            await self._make_registration_parents(timeout)
            raise
        return mark

    async def _check_mark(self, mark: Identity | None, timeout: float | None) -> None:
        """`MetadataVersionConflict`: the instance id is not as this command left it (None: away)."""
        await self._tree.sync(self._root, timeout=timeout)
        try:
            found = (await self._tree.read(self._instance_id_path, timeout=timeout)).identity
        except MetadataNotFound:
            found = None
        if found != mark:
            raise self._changed()

    async def _erase(self, name: str, mark: Identity | None, session_id: int, timeout: float | None) -> None:
        await self._check_mark(mark, timeout)
        await erase(self._tree, f"{self._root}/{name}", session_id=session_id, timeout=timeout)

    def _changed(self) -> MetadataVersionConflict:
        return MetadataVersionConflict(f"the cluster at {self._root} was changed meanwhile; repeat the command")

    async def _replace(self, name: str, data: bytes, timeout: float | None, session_id: int | None = None) -> None:
        path = f"{self._root}/{name}"
        try:
            await self._tree.overwrite(path, data, session_id=session_id, timeout=timeout)
        except MetadataNotFound:
            await self._tree.create(path, data, session_id=session_id, timeout=timeout)


def _named(what: str, found: list[str]) -> str:
    """`bookie a is`, `bookies a, b and 7 more are`"""
    shown = ", ".join(found[:_NAMED])
    if len(found) == 1:
        return f"{what} {shown} is"
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{what}s {shown}{more} are"


async def erase(tree: RetryingTree, path: str, *, session_id: int | None = None, timeout: float | None = None) -> None:
    """Delete `path` and all below it, with `session_id` in this session or not at all.

    `MetadataNotEmpty`: another client creates faster than this deletes.
    """
    for _ in range(_MAX_ROUNDS):
        if await _delete(tree, path, session_id, timeout):
            return
        await erase_children(tree, path, session_id=session_id, timeout=timeout)
    raise MetadataNotEmpty(
        f"{path} was filled again while it was being deleted: stop the client that writes there, and repeat"
    )


async def erase_children(
    tree: RetryingTree, path: str, *, session_id: int | None = None, timeout: float | None = None
) -> None:
    """Delete all below `path`. `session_id`: as for `erase`."""
    try:
        names = (await tree.children(path, timeout=timeout)).names
    except MetadataNotFound:
        return
    for start in range(0, len(names), MAX_DELETES):
        children = [f"{path}/{name}" for name in names[start : start + MAX_DELETES]]
        for child in await _not_deleted(tree, children, session_id, timeout):
            await erase(tree, child, session_id=session_id, timeout=timeout)


async def _not_deleted(
    tree: RetryingTree, children: Sequence[str], session_id: int | None, timeout: float | None
) -> list[str]:
    """Delete these at once; returns those that have children themselves. Raises the first error of one of them."""
    deletes = (_delete(tree, child, session_id, timeout) for child in children)
    results = await asyncio.gather(*deletes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [child for child, is_gone in zip(children, results, strict=True) if not is_gone]


async def _delete(tree: RetryingTree, path: str, session_id: int | None, timeout: float | None) -> bool:
    try:
        await tree.delete(path, session_id=session_id, timeout=timeout)
    except MetadataNotEmpty:
        return False
    except MetadataNotFound:
        pass
    return True
