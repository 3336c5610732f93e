"""How clients inside a bookie's process reach bookies: this one without the kernel between, others over TCP.

It goes by the published address, as connecting over TCP would, so it is never another bookie that is reached. With TLS
it is TCP throughout, because the handshake needs a socket.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.config.model import BookieConfig
from bookie_pod.server.tcp.listener import TcpListener

if TYPE_CHECKING:
    from bookie_client.connection.network import Connector


def own_connector(
    config: BookieConfig, listener: TcpListener, published: Callable[[], tuple[str, int] | None]
) -> Connector:
    """`published`: host and port of this bookie as other clients find them; None while it is not registered."""
    # Here, because the client takes a while to load, and a bookie without a gateway needs none.
    from bookie_client.connection.network import tcp_connector
    from bookie_pod.client_options import tls_options

    if tls_options(config.tls) is not None:
        return tcp_connector

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
        if (host, port) == published():
            return listener.connect(factory)
        return await tcp_connector(factory, host, port)

    return connect
