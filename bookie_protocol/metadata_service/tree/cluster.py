"""The cluster's root, its instance id and its layout.

The node `LAYOUT` says which manager class lays out the ledgers. Format 2 (written): `2` LF `<factory class>:1`, no
newline at the end. Format 1 named `flat` or `hierarchical` in place of the class.

Invariants
- The layout is settled once for each open service: what `LAYOUT` says; where it says nothing, what the URI
  asked for, or the default, is written to it.
- Nothing but `initialize` ever creates the root: a wrong path in a URI must not become an empty cluster.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 2 and 3.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataDamaged,
    MetadataExists,
    MetadataNotFound,
)
from bookie_protocol.lasting import heard
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.nodes import Node, Watch, parent_of
from bookie_protocol.metadata_service.tree.retrying import RetryingTree

DEFAULT_LAYOUT: Final = LedgerLayout.HIERARCHICAL
_FORMAT_VERSION: Final = 2
_MANAGER_VERSION: Final = 1
_FORMAT_1_NAMES: Final = {"flat": LedgerLayout.FLAT, "hierarchical": LedgerLayout.LEGACY_HIERARCHICAL}
FORMATTING: Final = "formatting "
"""Prefix of the instance id while a cluster is being formatted."""
REMOVING: Final = "removing "
"""The word before the instance id while a cluster is being removed."""
COPYING: Final = "copying "
"""The word before the instance id while the metadata of a cluster are being written from a copy or a backup."""
MOVED: Final = "moved "
"""The word before the instance id when the metadata of the cluster were, or are being, copied to another place. Behind
this word, and behind `COPYING`, the name of the copy comes first."""
_NOT_SERVED: Final = {
    FORMATTING: "is being formatted, or that was interrupted: wait for it, or repeat `bookie cluster format`",
    REMOVING: "is being removed, or that was interrupted: repeat `bookie cluster nuke`",
    COPYING: "is not complete: its metadata are being copied or restored, or that was interrupted. Wait for it, or"
    " repeat `bookie cluster metadata copy` or `restore`",
    MOVED: "was moved: its metadata were copied to another place, or are being copied. Set metadataServiceUri to that"
    " place, or let this one count again with `bookie cluster metadata reopen`",
}
"""The reason why no bookie starts, by the word before the instance id."""


class TreeCluster:
    """The properties of the cluster that all parts need; its creation and removal are in `life_cycle`.
    `configured` is the layout that the URI names, if any."""

    def __init__(self, tree: RetryingTree, root: str, configured: LedgerLayout | None) -> None:
        self._tree = tree
        self._root = root
        self._configured = configured
        self._settled: LedgerLayout | None = None
        self._asking: dict[float | None, asyncio.Future[bool]] = {}
        """Requests of `require` that the loop has not begun, by their time-out."""
        self._no_health_check = f"{root}/{paths.DISABLE_HEALTH_CHECK}"

    async def exists(self, *, timeout: float | None = None) -> bool:
        """Return True if the cluster's root exists."""
        return await self._tree.exists(self._root, timeout=timeout) is not None

    async def instance_id(self, *, timeout: float | None = None) -> str | None:
        """The instance id; None if the root carries none. `MetadataNotFound` if there is no root, `MetadataDamaged` if
        it cannot be read, or the cluster is being formatted, removed or copied, or was moved."""
        stored = await self._stored_instance_id(timeout)
        word = split_instance_id(stored)[0]
        if word:
            raise MetadataDamaged(f"the cluster at {self._root} {_NOT_SERVED[word]}")
        return stored

    async def _stored_instance_id(self, timeout: float | None) -> str | None:
        path = f"{self._root}/{paths.INSTANCE_ID}"
        try:
            node = await self._tree.get(path, timeout=timeout)
        except MetadataNotFound:
            await self.require(timeout=timeout)
            return None
        return decode_instance_id(node.data, path)

    async def records_instance_id(self, *, timeout: float | None = None) -> str | None:
        """The instance id of the cluster for which the first of Podkeeper's own records was stored; None: there is no
        record, or that cluster had none. It is another one where a tool that does not know records has formatted the
        cluster."""
        try:
            node = await self._tree.get(f"{self._root}/{paths.PODKEEPER}", timeout=timeout)
        except MetadataNotFound:
            return None
        return node.data.decode("utf-8", "replace") or None

    async def layout(self, *, timeout: float | None = None) -> LedgerLayout | None:
        """Return the stored layout; None if none is stored. `MetadataDamaged` if it cannot be understood."""
        path = f"{self._root}/{paths.LAYOUT}"
        try:
            node = await self._tree.get(path, timeout=timeout)
        except MetadataNotFound:
            return None
        return decode_layout(node.data, path)

    async def initialize(self, *, instance_id: str | None = None, timeout: float | None = None) -> str:
        """Create the cluster and return its instance id (default: a new UUID).

        `MetadataExists` if there is one. A call that was interrupted may be repeated.
        """
        if not await self._may_begin(timeout):
            raise MetadataExists(f"there is a cluster at {self._root} already")
        instance_id = instance_id or str(uuid.uuid4())
        await self._create_parents(timeout)
        available = f"{self._root}/{paths.AVAILABLE}"
        layout = self._configured or DEFAULT_LAYOUT
        nodes = [
            (self._root, b""),
            (available, b""),
            (f"{available}/{paths.READ_ONLY}", b""),
            (f"{self._root}/{paths.LAYOUT}", encode_layout(layout)),
            (f"{self._root}/{paths.INSTANCE_ID}", instance_id.encode()),
        ]
        try:
            await self._tree.create_all(nodes, timeout=timeout)
        except MetadataExists as error:
            raise MetadataExists(f"{self._root} has something already: {error}") from error
        self._settled = layout
        return instance_id

    async def _may_begin(self, timeout: float | None) -> bool:
        """Return True if there is nothing at the root, or what a call left that was interrupted before it came to the
        instance id, the last node that is made. Only where nodes are not created all at once."""
        if not await self.exists(timeout=timeout):
            return True
        if await self._stored_instance_id(timeout) is not None:
            return False
        return set((await self._tree.children(self._root, timeout=timeout)).names) <= {paths.AVAILABLE, paths.LAYOUT}

    async def is_health_check_enabled(self, *, timeout: float | None = None) -> bool:
        """Return True if clients may quarantine bookies; they may until it is disabled."""
        if await self._tree.exists(self._no_health_check, timeout=timeout) is not None:
            return False
        await self.require(timeout=timeout)
        return True

    async def enable_health_check(self, *, timeout: float | None = None) -> None:
        """It may be enabled already."""
        try:
            await self._tree.delete(self._no_health_check, timeout=timeout)
        except MetadataNotFound:
            await self.require(timeout=timeout)

    async def disable_health_check(self, *, timeout: float | None = None) -> None:
        """Clients release the bookies in quarantine, and keep none there. It may be disabled already."""
        await self._tree.ensure(self._no_health_check, timeout=timeout)

    async def watched(self, path: str, watch: Watch) -> Node | None:
        """Return a node of this cluster; None: there is none. `watch` is set either way. Raises as `require`."""
        while True:
            try:
                return await self._tree.get(path, watch=watch)
            except MetadataNotFound:
                await self.require()
            if await self._tree.exists(path, watch=watch) is None:
                return None

    async def require(self, *, timeout: float | None = None) -> None:
        """`MetadataNotFound` unless the root exists. Calls of one turn of the loop are one request: who finds that
        many nodes are missing asks for each of them."""
        asking = self._asking.get(timeout)
        if asking is None:
            asking = self._asking[timeout] = asyncio.ensure_future(self._ask(timeout))
            asking.add_done_callback(heard)
        if not await asyncio.shield(asking):
            raise MetadataNotFound(
                f"there is no cluster at {self._root}: correct metadataServiceUri, or create it with `bookie cluster "
                "init`"
            )

    async def _ask(self, timeout: float | None) -> bool:
        del self._asking[timeout]  # a later caller may know of a change that is newer than this request
        return await self.exists(timeout=timeout)

    async def settled_layout(self, *, timeout: float | None = None) -> LedgerLayout:
        """Return the layout to use. `InvalidConfiguration`: the URI names another one than is stored."""
        if self._settled is None:
            self._settled = await self._settle(timeout)
        return self._settled

    async def _settle(self, timeout: float | None) -> LedgerLayout:
        while True:
            stored = await self.layout(timeout=timeout)
            if stored is not None:
                break
            await self.require(timeout=timeout)
            wanted = self._configured or DEFAULT_LAYOUT
            try:
                await self._tree.create(f"{self._root}/{paths.LAYOUT}", encode_layout(wanted), timeout=timeout)
            except MetadataExists:
                continue  # another client settled it just now
            return wanted
        if self._configured is not None and stored is not self._configured:
            raise InvalidConfiguration(
                f"the ledger layout of metadataServiceUri, {self._configured.name.lower()}, does not match the one of "
                f"the cluster at {self._root}, {stored.name.lower()}; use zk+null:// to take what the cluster has"
            )
        return stored

    async def _create_parents(self, timeout: float | None) -> None:
        missing: list[str] = []
        path = parent_of(self._root)
        while path != "/" and await self._tree.exists(path, timeout=timeout) is None:
            missing.append(path)
            path = parent_of(path)
        for path in reversed(missing):
            await self._tree.ensure(path, timeout=timeout)


def decode_instance_id(data: bytes, path: str) -> str | None:
    """Return what is stored, with the word before it; None: nothing. `MetadataDamaged`: it is not text."""
    try:
        return data.decode("utf-8") or None
    except UnicodeDecodeError as error:
        raise MetadataDamaged(f"{path} is not text: {error}") from error


def split_instance_id(stored: str | None) -> tuple[str, str, str | None]:
    """The word that keeps bookies from starting, the name of the copy, and the instance id. The first two are empty
    where there is none: earlier releases gave a copy no name."""
    for word in _NOT_SERVED:
        if stored is not None and stored.startswith(word):
            rest = stored.removeprefix(word)
            copy, _, instance_id = rest.rpartition(" ") if word in (COPYING, MOVED) else ("", "", rest)
            return word, copy, instance_id or None
    return "", "", stored


def encode_layout(layout: LedgerLayout) -> bytes:
    return f"{_FORMAT_VERSION}\n{layout.value}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes, path: str) -> LedgerLayout:
    """`MetadataDamaged` names `path` and what is wrong."""
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    parts = lines[1].split(":") if len(lines) > 1 else []
    if len(parts) != 2 or not lines[0].isdecimal() or not parts[1].strip().isdecimal():
        raise MetadataDamaged(f"{path} is not a layout: {text[:200]!r}")
    version, name, manager_version = int(lines[0]), parts[0], int(parts[1])
    if version not in (1, _FORMAT_VERSION) or manager_version != _MANAGER_VERSION:
        raise MetadataDamaged(f"{path} has layout format {version}, manager {manager_version}: neither is known here")
    if version == 1 and name in _FORMAT_1_NAMES:
        return _FORMAT_1_NAMES[name]
    try:
        return LedgerLayout(name)
    except ValueError:
        raise MetadataDamaged(f"{path} names the layout {name!r}, which this release does not know") from None
