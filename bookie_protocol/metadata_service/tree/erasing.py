"""Deleting a node with everything below it.

Invariants
- What vanished meanwhile is fine. What is created meanwhile is deleted too, or the call fails; it may be repeated.
- At most `MAX_DELETES` requests are under way, and the names of one directory for each level are held.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bookie_protocol.errors import MetadataNotEmpty, MetadataNotFound
from bookie_protocol.metadata_service.tree.retrying import RetryingTree

MAX_DELETES: Final = 64
_MAX_ROUNDS: Final = 10


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
