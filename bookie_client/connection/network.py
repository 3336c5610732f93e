"""The network of a client: addresses of bookies, TCP connections, and the settings that all channels share.

Invariants
- A name is resolved at every attempt, and each of its addresses is tried in turn, so a bookie that moved, or
  one of whose addresses is dead, is found.
- Connections are kept alive by the kernel, which notices peers that vanished while nothing is sent.

Event loop only.

Sources: docs/internals/client-protocol.md, section 18; docs/internals/metadata-layout.md, section 4.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import ceil
from typing import Final

from bookie_client.connection.connection import TICKS_PER_TIMEOUT
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
"""(protocol factory, host, port): opens a connection and binds the protocol. Raises OSError.

It is the seam that simulations replace: whatever calls `connection_made` on the protocol with an `asyncio.Transport`
will do. With TLS or authentication the transport must know `set_protocol`, and with TLS the loop must know `start_tls`.
"""
Address = tuple[str, int]
"""Host and port."""
Resolver = Callable[[str], Awaitable[Address]]
"""Bookie id -> address. Raises a `MetadataError`."""
NEXT_ADDRESS_SECONDS: Final = 3.0
"""Seconds for one address while there are others to try."""
LOOK_UP_SECONDS: Final = 2.0
"""Seconds that the metadata service has to answer if a last known address exists."""
REFRESH_SECONDS: Final = 60.0
"""Time between looks for bookies whose address is not known, while the set of bookies does not change."""
SILENT_TIMEOUTS: Final = 2
"""A connection on which requests time out is given up when nothing was heard for this many time-outs more."""


class Network:
    """The settings and counters that the channels of one client share. A simulation replaces `connector`."""

    def __init__(
        self, resolve: Resolver, options: ClientOptions, connector: Connector, health: BookieHealth | None = None
    ) -> None:
        self.addresses = AddressBook(resolve)
        self.options = options
        self.connector = connector
        self.health = health or BookieHealth(options, asyncio.get_running_loop().time)
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
        """Number of connections made so far, to any bookie."""

    def closed_error(self, bookie_id: str) -> PodkeeperError:
        return BookieUnavailable(f"bookie {bookie_id}: this client is closed")


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


class AddressBook:
    """The address of each bookie: looked up at every connect, and remembered for when the metadata service does not
    answer.

    Invariants
    - An address comes from the metadata service at every attempt to connect, so a bookie that moved is found. Only
      while the service cannot tell is the last known one used.
    - A bookie that is not registered has no address: it is forgotten.
    - Addresses of registered bookies are also looked up ahead, one after the other, so that a bookie can be reached
      for the first time while the metadata service is out of reach.

    Host names are not resolved here: that happens at every attempt, in the connector.

    Bounded by the number of bookies that were ever registered or asked for. Event loop only.

    `look_up` asks the metadata service."""

    def __init__(self, look_up: Resolver) -> None:
        self._look_up = look_up
        self._known: dict[str, Address] = {}
        self._task: asyncio.Task[None] | None = None

    async def resolve(self, bookie: str) -> Address:
        """Return the address of a bookie.

        Raises `MetadataNotFound` if it is not registered, another `MetadataError` if the service does not answer and no
        address is known."""
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
