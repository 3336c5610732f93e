"""The real network: names to addresses, and connections.

Invariants
- A name is resolved at every attempt, and each of its addresses is tried in turn, so a bookie that moved, or
  one of whose addresses is dead, is found.
- Connections are kept alive by the kernel, which notices peers that vanished while nothing is sent.

`Connector` is the seam that simulations replace: whatever calls `connection_made` on the protocol with an
`asyncio.Transport` will do. With TLS or authentication the transport must know `set_protocol`, and with TLS the loop
must know `start_tls`. A transport whose `takes_adds` is true is given `AddFrames` as they are, among bytes.

Event loop only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

Connector = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[object]]
"""(protocol factory, host, port): opens a connection and binds the protocol. Raises OSError."""

NEXT_ADDRESS_SECONDS: Final = 3.0
"""How long one address may take while there are others to try."""


async def tcp_connector(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
    """Connect over TCP. Raises OSError: the failure of the last address."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
