"""Ledger metadata as nodes, one for each ledger.

Invariants
- A create whose answer was lost is distinguished from another client's by the creation token (format 3 only).
- An update always names the version that it replaces.
- After a delete, empty parent directories go too (hierarchical layouts, and `NodeTree.removes_directories`); creating
  makes missing ones again.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, sections 6 and 9.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from bookie_protocol.aside import Decoding
from bookie_protocol.errors import (
    BadRequest,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataReplaced,
    MetadataVersionConflict,
)
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata, decoding_cost, encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import CURRENT_FORMAT_VERSION, MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerRange
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.ledger_ids import LONG_LAYOUTS, LedgerIdGenerator
from bookie_protocol.metadata_service.tree.ledger_watches import LedgerWatches
from bookie_protocol.metadata_service.tree.listing import LedgerListing
from bookie_protocol.metadata_service.tree.nodes import NO_SESSION, Node, Watch, parent_of
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.versioned import Identity, Versioned


class LedgerStore:
    """Ledger metadata with compare-and-set. `format_version`: the newest format that new ledgers are written in, 1 to
    3."""

    def __init__(
        self, tree: RetryingTree, root: str, cluster: TreeCluster, format_version: int = CURRENT_FORMAT_VERSION
    ) -> None:
        self._format_version = format_version
        self._tree = tree
        self._root = root
        self._cluster = cluster
        self._ids = LedgerIdGenerator(tree, root, cluster)
        self._listing = LedgerListing(tree, root, cluster)
        self._watches = LedgerWatches(self._read_or_none)
        self._random = random.SystemRandom()
        self._decoding = Decoding()

    async def generate_id(self, *, timeout: float | None = None) -> int:
        """Return an id that no other call on this cluster was or will be given."""
        return await self._ids.generate(timeout=timeout)

    async def create(self, metadata: LedgerMetadata, *, timeout: float | None = None) -> Versioned[LedgerMetadata]:
        """Store a new ledger. `MetadataExists`: the id is taken (not by an earlier try of this very call)."""
        if metadata.format_version > self._format_version:
            metadata = replace(metadata, format_version=self._format_version)
        # What is returned is what is stored: formats before 3 have no place for a token.
        token = self._random.randrange(MAX_LEDGER_ID) if metadata.format_version >= 3 else 0
        metadata = replace(metadata, creation_token=token)
        if not self._tree.keeps_times and metadata.ctime is None and metadata.format_version >= 2:
            metadata = replace(metadata, ctime=time.time_ns() // 1_000_000, store_ctime=True)
        path = await self._path(metadata.ledger_id, timeout)
        data = encode_ledger_metadata(metadata)
        while True:
            session_id = self._tree.session_id
            try:
                made = await self._tree.create(path, data, recognise=False, timeout=timeout)
            except MetadataNotFound:
                await self._create_parents(path, timeout)
            except MetadataExists as error:
                creation = await self._creation_of_ours(path, metadata, timeout)
                if creation is None:
                    raise MetadataExists(f"ledger {metadata.ledger_id} exists already") from error
                return Versioned(metadata, Identity(0, creation, session_id))
            else:
                return Versioned(metadata, Identity(0, made.creation, session_id))

    async def read(
        self, ledger_id: int, *, fresh: bool = False, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        """Return the metadata of a ledger. `MetadataNotFound` if it does not exist, `MetadataDamaged` if they cannot be
        read. `fresh`: nothing older than what any client had written when this was called."""
        if fresh:
            await self._tree.sync(await self._path(ledger_id, timeout), timeout=timeout)
        return await self._read(ledger_id, None, timeout)

    async def read_each(
        self, ledger_ids: Sequence[int], *, timeout: float | None = None
    ) -> list[Versioned[LedgerMetadata] | MetadataError | BadRequest]:
        """Return what `read` returns or raises for each. It suits tens of ledgers: all of them are read at once."""
        places: list[str] = []
        refused: dict[int, BadRequest] = {}
        for ledger_id in ledger_ids:
            try:
                places.append(await self._path(ledger_id, timeout))
            except BadRequest as error:
                refused[ledger_id] = error
        session_id = self._tree.session_id
        nodes = await self._tree.get_each(places, timeout=timeout)
        if any(isinstance(node, MetadataNotFound) for node in nodes):
            await self._cluster.require(timeout=timeout)
        asked = [ledger_id for ledger_id in ledger_ids if ledger_id not in refused]
        found = {
            each: await self._decode_or_error(each, node, session_id) for each, node in zip(asked, nodes, strict=True)
        }
        return [refused.get(ledger_id) or found[ledger_id] for ledger_id in ledger_ids]

    async def write(
        self,
        metadata: LedgerMetadata,
        replaced: Identity,
        *,
        session_id: int | None = None,
        timeout: float | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Replace what was read or written so.

        `MetadataVersionConflict`; `MetadataReplaced`: the ledger was deleted, and another one has its id;
        `MetadataNotFound`. `session_id`: in this session or not at all (`SessionEnded`), for callers that hold the
        ledger's lock by it.
        """
        ledger_id = metadata.ledger_id
        path = await self._path(ledger_id, timeout)
        data = encode_ledger_metadata(metadata)
        try:
            written = await self._tree.set(path, data, replaced, session_id=session_id, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        except MetadataVersionConflict as error:
            raise _conflict(ledger_id, error) from error
        return Versioned(metadata, written)

    async def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Remove whatever ledger has this id; one that is already gone is fine."""
        await self._delete(ledger_id, None, timeout)

    async def delete_this(self, stored: Versioned[LedgerMetadata], *, timeout: float | None = None) -> None:
        """Remove the ledger that was read or written so, and no other that was made under its id since.

        One that is gone is fine. `MetadataVersionConflict`, `MetadataReplaced`.
        """
        await self._delete(stored.value.ledger_id, stored.identity, timeout)

    async def _delete(self, ledger_id: int, this: Identity | None, timeout: float | None) -> None:
        path = await self._path(ledger_id, timeout)
        try:
            if this is None:
                await self._tree.delete(path, timeout=timeout)
            else:
                await self._tree.delete_this(path, this, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return
        except MetadataVersionConflict as error:
            raise _conflict(ledger_id, error) from error
        await self._prune_above(path, timeout)

    async def _prune_above(self, path: str, timeout: float | None) -> None:
        if not self._tree.removes_directories:
            return
        if await self._cluster.settled_layout(timeout=timeout) in LONG_LAYOUTS:
            with suppress(MetadataError):  # the ledger is gone, whatever becomes of its directories
                await self._prune(parent_of(path), timeout)

    def watch(self, ledger_id: int) -> Subscription[Versioned[LedgerMetadata] | None]:
        """Yield what is stored now, then each newer version; None and the end once the ledger does not exist, or
        another one has its id."""
        return self._watches.watch(ledger_id)

    def ranges(self, *, first: int | None = None, timeout: float | None = None) -> AsyncIterator[LedgerRange]:
        """Yield every ledger, in ascending order of ids, from 0 to the largest id possible.

        `first`: begin at this id, for callers that want the next few ledgers; smaller ids cost nothing, except in the
        flat layout.

        Complete or an error: a listing that could not see everything raises. `timeout` is for each request.
        """
        return self._listing.ranges(first=first, timeout=timeout)

    async def close(self) -> None:
        """Let background deletions end."""
        await self._ids.close()

    async def _path(self, ledger_id: int, timeout: float | None) -> str:
        layout = await self._cluster.settled_layout(timeout=timeout)
        try:
            return self._root + paths.ledger_path(layout, ledger_id)
        except ValueError as error:
            raise BadRequest(str(error)) from None

    async def _read(self, ledger_id: int, watch: Watch | None, timeout: float | None) -> Versioned[LedgerMetadata]:
        path = await self._path(ledger_id, timeout)
        session_id = self._tree.session_id
        try:
            node = await self._tree.get(path, watch=watch, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        return await self._decode(ledger_id, node, session_id)

    async def _decode(self, ledger_id: int, node: Node, session_id: int) -> Versioned[LedgerMetadata]:
        data, ctime_ms = node.data, node.stat.ctime_ms
        metadata = await self._decoding.run(
            lambda: decode_ledger_metadata(ledger_id, data, ctime_ms), decoding_cost(data)
        )
        return Versioned(metadata, node.stat.identity(session_id))

    async def _decode_or_error(
        self, ledger_id: int, node: Node | MetadataError, session_id: int
    ) -> Versioned[LedgerMetadata] | MetadataError:
        if isinstance(node, MetadataNotFound):
            return _no_such(ledger_id)
        if isinstance(node, MetadataError):
            return node
        try:
            return await self._decode(ledger_id, node, session_id)
        except MetadataDamaged as error:
            return error

    async def _read_or_none(self, ledger_id: int, watch: Watch | None) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._read(ledger_id, watch, None)
        except MetadataNotFound:
            return None

    async def _missing(self, ledger_id: int, timeout: float | None) -> MetadataNotFound:
        """Return the error for a ledger whose node is not there. Raises as `TreeCluster.require`."""
        await self._cluster.require(timeout=timeout)
        return _no_such(ledger_id)

    async def _creation_of_ours(self, path: str, metadata: LedgerMetadata, timeout: float | None) -> int | None:
        """Return the creation of our node; None: another client made this ledger, or that is unknown."""
        if metadata.format_version < 3:
            return None
        try:
            node = await self._tree.get(path, timeout=timeout)
            found = (await self._decode(metadata.ledger_id, node, NO_SESSION)).value
        except (MetadataNotFound, MetadataDamaged):
            return None
        is_ours = found.format_version >= 3 and found.creation_token == metadata.creation_token
        return node.stat.creation if is_ours else None

    async def _create_parents(self, path: str, timeout: float | None) -> None:
        await self._cluster.require(timeout=timeout)
        names = path.removeprefix(self._root).split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            try:
                await self._tree.ensure("/".join((self._root, *names[:depth])), timeout=timeout)
            except MetadataNotFound:
                return  # pruned under our hands: the caller tries again

    async def _prune(self, path: str, timeout: float | None) -> None:
        session_id = self._tree.session_id  # another service may leave its directories
        while path != self._root:
            stat = await self._tree.exists(path, timeout=timeout)
            if stat is None or stat.children > 0:
                return
            await self._tree.delete(path, session_id=session_id, timeout=timeout)
            path = parent_of(path)


def _conflict(ledger_id: int, error: MetadataVersionConflict) -> MetadataVersionConflict:
    if isinstance(error, MetadataReplaced):
        return MetadataReplaced(f"ledger {ledger_id} was deleted: a different ledger now has this id")
    return MetadataVersionConflict(f"the metadata of ledger {ledger_id} were changed by another client")


def _no_such(ledger_id: int) -> MetadataNotFound:
    return MetadataNotFound(f"ledger {ledger_id} does not exist")
