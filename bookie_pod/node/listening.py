"""Taking the ports: the addresses that the configuration names, before anything else is begun. Event loop.

The gRPC server is loaded and started when the bookie serves, so that it delays no client; its port is held until then.
A bookie that finds a port taken has not been registered, and no client has seen it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from contextlib import ExitStack

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.node.identity.bookie_id import derive_host
from bookie_pod.server.tcp.listener import TcpListener
from bookie_protocol.addresses import host_and_port, resolving
from bookie_protocol.errors import ServerStartFailed

_log = structlog.get_logger(__name__)


async def bind_listener(config: BookieConfig) -> TcpListener:
    """Bound; connections are dropped until it serves. Raises what the address or the port does not allow."""
    network = config.network
    host = None
    if network.listening_interface:
        host = await asyncio.to_thread(derive_host, network)
    listener = TcpListener(asyncio.get_running_loop(), host, network.bookie_port)
    await listener.bind()
    return listener


async def hold_grpc_port(config: GrpcConfig, *, asked_for: bool = True) -> ExitStack | None:
    """Hold the port of the gRPC server until the stack is closed: connections are refused until that server listens.
    None: another process has the port, and gRPC was not `asked_for`.

    On Linux it can listen on a port that is held, because both sides set SO_REUSEADDR; elsewhere the port is only
    looked at. Of a name with several addresses one is enough, as for gRPC. Raises `ServerStartFailed`.
    """
    held = ExitStack()
    if not config.server_enabled or not config.server_port:
        return held
    host, port = config.server_host, config.server_port
    refused: OSError | None = None
    try:
        with resolving():
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            holder = held.enter_context(socket.socket(family, kind, protocol))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(address)
            except OSError as error:
                refused = error
            else:
                break
        else:
            raise refused or OSError(errno.EADDRNOTAVAIL, "there is no such address")
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            if not asked_for:
                _log.warning("gRPC is not served, because its port is in use: set grpcServerPort", port=port, host=host)
                return None
            message = f"gRPC port {port} on {host} is in use: stop what uses it or choose another grpcServerPort"
        else:
            message = (
                f"gRPC server cannot listen on {host_and_port(host, port)} (grpcServerHost): {error.strerror or error}"
            )
        raise ServerStartFailed(message) from error
    if sys.platform != "linux":
        held.close()
    return held
