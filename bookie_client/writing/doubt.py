"""After a bookie came back: is the ledger still this writer's?

A bookie that comes back may be another one under the same id, with empty disks, which remembers no fence. While its
predecessor was there a recovery may have fenced and closed the ledger; what the new one acknowledges is lost then
(apache/bookkeeper#4812; bookies of this project refuse it, those of the reference do not). A recovery says so in the
metadata before it fences the first bookie, and the other end of a connection is one bookie for as long as it is open.
So an answer over a connection counts once the metadata, read after it was made, have shown the ledger open.

Invariants
- Nothing is asked for while no connection to the ensemble was made, nor by a writer that has nothing to deliver.
- One look covers all connections that were made before it began; at most one is under way.
- While the metadata service does not answer, acknowledgements wait, for `PATIENCE_SECONDS`; then the handle fails, as
  if an ensemble change could not be stored. New adds wait in the window meanwhile.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bookie_client.connection.channel import Channel
from bookie_client.connection.pool import ChannelPool
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.logs import get_logger

Look = Callable[[], Awaitable[None]]
"""Read the metadata, past every cache. Raises the error that ends the writing, or `MetadataUnavailable` if the
state is unknown.
"""

PATIENCE_SECONDS: Final = 60.0
"""Seconds that the metadata service may be away."""

_log = get_logger(__name__)


class Doubt:
    """The doubts of one writer about its ensemble.

    `seen_open`: the number of connections that the pool had made when the ledger was known to be open. `pause`: seconds
    until a metadata service that does not answer is asked again.
    """

    def __init__(self, pool: ChannelPool, look: Look, seen_open: int, pause: float) -> None:
        self.settled = seen_open
        """Number of connections made by the pool up to which nothing is in doubt."""
        self._pool = pool
        self._look = look
        self._pause = pause
        self._seen_open = seen_open
        self._channels: Sequence[Channel] = ()

    def follow(self, channels: Sequence[Channel]) -> None:
        """Follow these channels: they lead to the bookies of the ensemble now."""
        self._channels = channels
        self.settled = -1

    def seen_open(self, connections: int) -> None:
        """The metadata service said so after the pool had made so many."""
        self._seen_open = max(self._seen_open, connections)

    def arises(self) -> bool:
        """A connection to the ensemble was made after the ledger was last seen open."""
        if any(channel.connection_number > self._seen_open for channel in self._channels):
            return True
        self.settled = self._pool.connections
        return False

    async def settle(self) -> None:
        """Look until there is no doubt. Raises what ends the writing."""
        loop = asyncio.get_running_loop()
        deadline, told = loop.time() + PATIENCE_SECONDS, False
        while self.arises():
            connections = self._pool.connections
            try:
                await self._look()
            except MetadataUnavailable as error:
                if loop.time() >= deadline:
                    raise
                if not told:
                    told = True
                    _log.warning("a bookie came back, and acknowledgements wait for the metadata", error=str(error))
                await asyncio.sleep(self._pause)
            else:
                self.seen_open(connections)
