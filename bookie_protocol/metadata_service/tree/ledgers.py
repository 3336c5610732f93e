"""Ledger metadata as nodes, one for each ledger.

Invariants
- A create whose answer was lost is told from another client's by the creation token (format 3 only).
- An update always names the version that it replaces.
- After a delete, empty parent directories go too (hierarchical layouts); creating makes missing ones again.

Threads: event loop only.

Sources: reference metadata layout, section 9.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

from bookie_protocol.errors import (
    BadRequest,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
)
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import CURRENT_FORMAT_VERSION, MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import (
    ANY_VERSION,
    LedgerLayout,
    LedgerRange,
    Versioned,
)
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.ledger_ids import LedgerIdGenerator
from bookie_protocol.metadata_service.tree.ledger_watches import LedgerWatches
from bookie_protocol.metadata_service.tree.listing import LedgerListing
from bookie_protocol.metadata_service.tree.nodes import Node, Watch, parent_of
from bookie_protocol.metadata_service.tree.retrying import RetryingTree

_PRUNED_LAYOUTS = (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL)


class TreeLedgers:
    """Implements `LedgerStore`. `format_version`: the newest format that new ledgers are written in, 1 to 3."""

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

    async def generate_id(self, *, timeout: float | None = None) -> int:
        return await self._ids.generate(timeout=timeout)

    async def create(self, metadata: LedgerMetadata, *, timeout: float | None = None) -> Versioned[LedgerMetadata]:
        if metadata.format_version > self._format_version:
            metadata = replace(metadata, format_version=self._format_version)
        # What is returned is what is stored: formats before 3 have no place for a token.
        token = self._random.randrange(MAX_LEDGER_ID) if metadata.format_version >= 3 else 0
        metadata = replace(metadata, creation_token=token)
        path = await self._path(metadata.ledger_id, timeout)
        data = encode_ledger_metadata(metadata)
        while True:
            try:
                await self._tree.create(path, data, recognise=False, timeout=timeout)
            except MetadataNotFound:
                await self._create_parents(path, timeout)
                continue
            except MetadataExists as error:
                if not await self._is_ours(path, metadata, timeout):
                    raise MetadataExists(f"ledger {metadata.ledger_id} exists already") from error
            return Versioned(metadata, 0)

    async def read(
        self, ledger_id: int, *, fresh: bool = False, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        if fresh:
            await self._tree.sync(await self._path(ledger_id, timeout), timeout=timeout)
        return await self._read(ledger_id, None, timeout)

    async def write(
        self, metadata: LedgerMetadata, version: int, *, session_id: int | None = None, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        if version < 0:
            raise ValueError("ledger metadata is never replaced without naming the version it replaces")
        ledger_id = metadata.ledger_id
        path = await self._path(ledger_id, timeout)
        try:
            data = encode_ledger_metadata(metadata)
            written = await self._tree.set(path, data, version, session_id=session_id, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        except MetadataVersionConflict as error:
            raise _changed(ledger_id) from error
        return Versioned(metadata, written)

    async def delete(self, ledger_id: int, version: int = ANY_VERSION, *, timeout: float | None = None) -> None:
        path = await self._path(ledger_id, timeout)
        try:
            await self._tree.delete(path, version, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return
        except MetadataVersionConflict as error:
            raise _changed(ledger_id) from error
        await self._prune_above(path, timeout)

    async def delete_this(self, stored: Versioned[LedgerMetadata], *, timeout: float | None = None) -> None:
        ledger_id = stored.value.ledger_id
        path = await self._path(ledger_id, timeout)
        try:
            await self._tree.sync(path, timeout=timeout)
            node = await self._tree.read(path, timeout=timeout)
            found = decode_ledger_metadata(ledger_id, node.value, node.identity.created_ms)
            if node.version != stored.version or found != stored.value:
                raise _changed(ledger_id)
            await self._tree.delete_this(path, node.identity, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return
        await self._prune_above(path, timeout)

    async def _prune_above(self, path: str, timeout: float | None) -> None:
        if await self._cluster.settled_layout(timeout=timeout) in _PRUNED_LAYOUTS:
            with suppress(MetadataError):  # the ledger is gone, whatever becomes of its directories
                await self._prune(parent_of(path), timeout)

    def watch(self, ledger_id: int) -> Subscription[Versioned[LedgerMetadata] | None]:
        return self._watches.watch(ledger_id)

    def ranges(self, *, timeout: float | None = None) -> AsyncIterator[LedgerRange]:
        return self._listing.ranges(timeout=timeout)

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
        try:
            node = await self._tree.get(path, watch=watch, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        return _decode(ledger_id, node)

    async def _read_or_none(self, ledger_id: int, watch: Watch | None) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._read(ledger_id, watch, None)
        except MetadataNotFound:
            return None

    async def _missing(self, ledger_id: int, timeout: float | None) -> MetadataNotFound:
        """The error for a ledger whose node is not there. Raises as `TreeCluster.require`."""
        await self._cluster.require(timeout=timeout)
        return MetadataNotFound(f"ledger {ledger_id} does not exist")

    async def _is_ours(self, path: str, metadata: LedgerMetadata, timeout: float | None) -> bool:
        if metadata.format_version < 3:
            return False
        try:
            node = await self._tree.get(path, timeout=timeout)
            found = _decode(metadata.ledger_id, node).value
        except (MetadataNotFound, MetadataDamaged):
            return False
        return found.format_version >= 3 and found.creation_token == metadata.creation_token

    async def _create_parents(self, path: str, timeout: float | None) -> None:
        await self._cluster.require(timeout=timeout)
        names = path.removeprefix(self._root).split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            try:
                await self._tree.ensure("/".join((self._root, *names[:depth])), timeout=timeout)
            except MetadataNotFound:
                return  # pruned under our hands: the caller tries again

    async def _prune(self, path: str, timeout: float | None) -> None:
        while path != self._root:
            stat = await self._tree.exists(path, timeout=timeout)
            if stat is None or stat.children > 0:
                return
            await self._tree.delete(path, timeout=timeout)
            path = parent_of(path)


def _changed(ledger_id: int) -> MetadataVersionConflict:
    return MetadataVersionConflict(f"the metadata of ledger {ledger_id} was changed by somebody else")


def _decode(ledger_id: int, node: Node) -> Versioned[LedgerMetadata]:
    return Versioned(decode_ledger_metadata(ledger_id, node.data, node.stat.ctime_ms), node.stat.version)
