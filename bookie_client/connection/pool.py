"""The channels of one client: to each bookie one for each protocol version it is spoken to in, and for each of
`channels_per_bookie` share of the ledgers.

`Connector` is the seam that simulations replace: whatever calls `connection_made` on the protocol with an
`asyncio.Transport` will do. With TLS or authentication the transport must know `set_protocol`, and with TLS the loop
must know `start_tls`. A transport whose `takes_adds` is true is given `AddFrames` as they are, among bytes.

Invariants
- A name is resolved at every attempt, and each of its addresses is tried in turn, so a bookie that moved, or
  one of whose addresses is dead, is found.
- Connections are kept alive by the kernel, which notices peers that vanished while nothing is sent.

Event loop only.

Sources: reference client protocol, section 18; reference metadata layout, section 4.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Final

from bookie_client.connection.channel import Channel
from bookie_client.connection.connection import TICKS_PER_TIMEOUT
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.latency import Ticker
from bookie_client.options import ClientOptions
from bookie_protocol.addresses import is_address, resolving
from bookie_protocol.errors import (
    BookieUnavailable,
    MetadataError,
    MetadataNotFound,
    MetadataUnavailable,
    PodkeeperError,
)

Connector = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[object]]
"""(protocol factory, host, port): opens a connection and binds the protocol. Raises OSError."""

NEXT_ADDRESS_SECONDS: Final = 3.0
"""How long one address may take while there are others to try."""


async def tcp_connector(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
    """Connect over TCP. Raises OSError: the failure of the last address."""
    if is_address(host):  # resolving it would take a turn in a thread
        return await _connect(factory, host, port)
    with resolving():
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    if not addresses:
        raise OSError(f"the name {host} has no address")
    for _, address in addresses[:-1]:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(NEXT_ADDRESS_SECONDS):
                return await _connect(factory, *address[:2])
    return await _connect(factory, *addresses[-1][1][:2])


async def _connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
    transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport


Address = tuple[str, int]
"""Host and port."""
Resolver = Callable[[str], Awaitable[Address]]
"""Bookie id -> address. Raises a `MetadataError`."""

LOOK_UP_SECONDS: Final = 2.0
"""How long the metadata service may take when there is a last known address."""
REFRESH_SECONDS: Final = 60.0
"""Time between looks for bookies whose address is not known, while the set of bookies does not change."""


class AddressBook:
    """Where each bookie listens: asked at every connect, and remembered for when nobody answers.

    Invariants
    - An address comes from the metadata service at every attempt to connect, so a bookie that moved is found. Only
      while the service cannot tell is the last known one used.
    - A bookie that is not registered has no address: it is forgotten.
    - Addresses of registered bookies are also looked up ahead, one after the other, so that a bookie can be reached
      for the first time while the metadata service is out of reach.

    Host names are not resolved here: that happens at every attempt, in the connector.

    Bounded by the number of bookies that were ever registered or asked for. Event loop only.

    `look_up` asks the metadata service.
    """

    def __init__(self, look_up: Resolver) -> None:
        self._look_up = look_up
        self._known: dict[str, Address] = {}
        self._task: asyncio.Task[None] | None = None

    async def resolve(self, bookie: str) -> Address:
        """The address of a bookie. Raises `MetadataNotFound` when it is not registered, another
        `MetadataError` when nobody can tell and nobody ever could."""
        known = self._known.get(bookie)
        try:
            async with asyncio.timeout(None if known is None else LOOK_UP_SECONDS):
                address = await self._look_up(bookie)
        except MetadataNotFound:
            self._known.pop(bookie, None)
            raise
        except (MetadataError, TimeoutError):
            if known is None:
                raise
            return known
        self._known[bookie] = address
        return address

    def start(self, registered: Callable[[], frozenset[str]], changed: Callable[[float], Awaitable[None]]) -> None:
        """Begin to look ahead. `registered`: the bookies known now; `changed`: returns when they change, or
        after the given seconds."""
        self._task = asyncio.get_running_loop().create_task(
            self._look_ahead(registered, changed), name="bookie addresses"
        )

    async def close(self) -> None:
        """Stop looking ahead. Calling it again is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look_ahead(
        self, registered: Callable[[], frozenset[str]], changed: Callable[[float], Awaitable[None]]
    ) -> None:
        while True:
            for bookie in sorted(registered() - self._known.keys()):
                try:
                    await self.resolve(bookie)
                except MetadataUnavailable:
                    break
                except MetadataError:
                    continue
            await changed(REFRESH_SECONDS)


__all__ = ["Channel", "ChannelPool", "Connector", "Resolver", "tcp_connector"]

PROBE_SECONDS: Final = 2.0
"""How long a spare bookie may take to accept a connection before another one is chosen."""
SILENT_TIMEOUTS: Final = 2
"""A connection on which requests time out is given up when nothing was heard for this many time-outs more."""
_APART: Final = -1


class ChannelPool:
    """The channels of one client. `connector` is the network, which a simulation replaces."""

    def __init__(
        self,
        resolve: Resolver,
        options: ClientOptions,
        connector: Connector = tcp_connector,
        health: BookieHealth | None = None,
    ) -> None:
        self.addresses = AddressBook(resolve)
        self.options = options
        self.connector = connector
        self.health = health or BookieHealth(options, asyncio.get_running_loop().time)
        self.dialect = dialect(options.protocol_version)
        shortest = min(options.add_timeout, options.read_timeout)
        if options.adaptive_timeouts:
            shortest = min(shortest, options.min_adaptive_timeout)
        self.ticker = Ticker(shortest / TICKS_PER_TIMEOUT)
        # One tick more, because a request may be sent just before one.
        self.add_ticks = ceil(options.add_timeout / self.ticker.seconds) + 1
        self.read_ticks = ceil(options.read_timeout / self.ticker.seconds) + 1
        self.silence_ticks = SILENT_TIMEOUTS * max(self.add_ticks, self.read_ticks)
        self.is_closed = False
        self.connections = 0
        """So many were made so far, to any bookie."""
        self._channels: dict[tuple[str, int, int], Channel] = {}

    def channel(
        self, bookie_id: str, ledger_id: int = 0, version: int | None = None, *, apart: bool = False
    ) -> Channel:
        """The one channel to this bookie for this ledger, in the client's protocol version or the one given;
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
        """Whether there is a connection, or one can be made within `PROBE_SECONDS`."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.channel(bookie_id).connect()
        except (BookieUnavailable, TimeoutError):
            return False
        return True

    def closed_error(self, bookie_id: str) -> PodkeeperError:
        return BookieUnavailable(f"bookie {bookie_id}: this client is closed")

    async def close(self) -> None:
        """Close every connection; outstanding requests fail. Calling it again is fine."""
        self.is_closed = True
        await self.addresses.close()
        closing = map(partial(self._close_channel), list(self._channels.values()))
        await asyncio.gather(*closing)

    async def _close_channel(self, channel: Channel) -> None:
        await channel.close(self.closed_error(channel.bookie_id))


def dialect(version: int) -> Dialect:
    """The dialect of protocol version 2 or 3."""
    return V3Dialect() if version == 3 else V2Dialect()
