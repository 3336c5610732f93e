"""Taking the port: the address that the configuration names, before anything else is begun. Event loop."""

from __future__ import annotations

import asyncio

from bookie_pod.config.model import BookieConfig
from bookie_pod.node import options
from bookie_pod.node.bookie_id import derive_host
from bookie_pod.server.tcp.listener import TcpListener


async def bind_listener(config: BookieConfig) -> TcpListener:
    """Bound; connections are dropped until it serves. Raises what the address or the port does not allow."""
    network = config.network
    host = None
    if network.listening_interface:
        host = await asyncio.to_thread(derive_host, options.address_options(config, network.bookie_port))
    listener = TcpListener(asyncio.get_running_loop(), host, network.bookie_port)
    await listener.bind()
    return listener
