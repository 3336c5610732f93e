"""The channels of one client: one per bookie, protocol version and `channels_per_bookie` share of the ledgers.

Event loop only.

Source: docs/internals/client-protocol.md, section 18.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from bookie_client.connection.channel import Channel
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.network import Connector, Network, Resolver, tcp_connector
from bookie_client.options import ClientOptions
from bookie_protocol.errors import BookieUnavailable

PROBE_SECONDS: Final = 2.0
"""Seconds that a spare bookie has to accept a connection before another one is chosen."""
_APART: Final = -1


class ChannelPool(Network):
    """The channels of one client, and the network that they share."""

    def __init__(
        self,
        resolve: Resolver,
        options: ClientOptions,
        connector: Connector = tcp_connector,
        health: BookieHealth | None = None,
    ) -> None:
        super().__init__(resolve, options, connector, health)
        self.dialect = dialect(options.protocol_version)
        self._channels: dict[tuple[str, int, int], Channel] = {}

    def channel(
        self, bookie_id: str, ledger_id: int = 0, version: int | None = None, *, apart: bool = False
    ) -> Channel:
        """Return the one channel to this bookie for this ledger, in the client's protocol version or the one given;
        nothing is connected before something is sent. `apart`: one that adds and plain reads never use."""
        options = self.options
        share = _APART if apart else ledger_id % options.channels_per_bookie
        place = (bookie_id, version or options.protocol_version, share)
        channel = self._channels.get(place)
        if channel is None:
            speaks = self.dialect if place[1] == options.protocol_version else dialect(place[1])
            channel = self._channels[place] = Channel(self, bookie_id, speaks)
        return channel

    def down(self) -> frozenset[str]:
        """Bookies that could not be reached lately; for `max_reconnect_delay` after the last failure."""
        return self.health.failed_lately()

    async def reachable(self, bookie_id: str) -> bool:
        """Return True if there is a connection, or one can be made within `PROBE_SECONDS`."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.channel(bookie_id).connect()
        except (BookieUnavailable, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Close every connection; outstanding requests fail. Calling it again is fine."""
        self.is_closed = True
        await self.addresses.close()
        closing = map(partial(self._close_channel), list(self._channels.values()))
        await asyncio.gather(*closing)

    async def _close_channel(self, channel: Channel) -> None:
        await channel.close(self.closed_error(channel.bookie_id))


def dialect(version: int) -> Dialect:
    """Return the dialect of protocol version 2 or 3."""
    return V3Dialect() if version == 3 else V2Dialect()
