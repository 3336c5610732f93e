"""Nodes of a session in ZooKeeper, among those of others.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataRefused
from bookie_protocol.metadata_service.migrating.numbers import ensure
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE, Node, NodeTree, parent_of


class SourceTree(NodeTree, Protocol):
    """A tree of ZooKeeper."""

    async def delete_while(
        self, paths: Sequence[str], checked: str, version: int, *, session_id: int, timeout: float
    ) -> None:
        """Delete nodes, all or none, if another one has this version still. `MetadataNotFound`: one of these or that is
        missing; `MetadataVersionConflict`; `SessionEnded` as for `set`."""
        ...


async def below(tree: NodeTree, parent: str, timeout: float) -> list[str]:
    """Return the paths of the children of a node, which may be missing."""
    names: tuple[str, ...] = ()
    with suppress(MetadataNotFound):
        names = (await tree.children(parent, timeout=timeout)).names
    return [f"{parent}/{name}" for name in names]


async def nodes(tree: NodeTree, paths: list[str], timeout: float) -> dict[str, Node]:
    """Return the nodes that exist and may be read. Those of our session always may."""
    found: dict[str, Node] = {}
    for first in range(0, len(paths), NODES_AT_ONCE):
        part = paths[first : first + NODES_AT_ONCE]
        for path, node in zip(part, await tree.get_each(part, timeout=timeout), strict=True):
            if isinstance(node, Node):
                found[path] = node
            elif not isinstance(node, MetadataNotFound | MetadataRefused):
                raise node
    return found


async def delete_own(tree: NodeTree, paths: Iterable[str], session_id: int, timeout: float) -> None:
    """Delete those of these nodes that this session made."""
    for path, node in (await nodes(tree, list(paths), timeout)).items():
        if node.stat.owner == session_id:
            with suppress(MetadataNotFound):
                await tree.delete(path, None, session_id=session_id, timeout=timeout)


async def carry_own(
    tree: NodeTree, paths: Iterable[str], session_id: int, target: NodeTree, scope: str, timeout: float
) -> None:
    """Make those of these nodes that this session made in Oxia too, without `scope`."""
    for path, node in (await nodes(tree, list(paths), timeout)).items():
        if node.stat.owner == session_id:
            there = path.removeprefix(scope)
            await ensure(target, parent_of(there), timeout)
            with suppress(MetadataExists):
                await target.create(there, node.data, ephemeral=True, timeout=timeout)
