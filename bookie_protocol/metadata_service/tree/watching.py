"""Following what is stored: read with a watch, publish, wait for the watch, read again.

Invariants
- Between two reads a watch is set, so no change is missed; several changes may show as one.
- A read that fails is repeated after 200 ms, for ever; the follower ends when it is cancelled or when `read`
  says so.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 4.4 and 9.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.nodes import Watch

RETRY_SECONDS: Final = 0.2

T = TypeVar("T")
Shown = TypeVar("Shown")


async def follow(read: Callable[[Watch], Awaitable[T]], publish: Callable[[T], bool]) -> None:
    """`publish` returns whether to go on."""
    while True:
        changed = asyncio.Event()
        try:
            value = await read(changed.set)
        except MetadataUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if not publish(value):
            return
        await changed.wait()


def changes(read: Callable[[Watch], Awaitable[T]], show: Callable[[T], Shown]) -> Subscription[Shown]:
    """Yield what `read` finds, as `show` shows it: now, then whenever it has changed."""

    async def feed(publish: Callable[[Shown], None]) -> None:
        seen: list[T] = []

        def deliver(found: T) -> bool:
            if [found] != seen:
                seen[:] = [found]
                publish(show(found))
            return True

        await follow(read, deliver)

    return Subscription(feed)
