"""Starting the gRPC server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from bookie_pod.callers import Callers
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.server.status import NodeStatus
from bookie_pod.server.tokens import Tokens

if TYPE_CHECKING:
    from bookie_pod.server.grpc.server import GrpcServer, GrpcService


MakeServices = Callable[[], Awaitable[Sequence["GrpcService"]]]
"""Starts what else is served; called once grpc is loaded."""


async def start_grpc(
    config: GrpcConfig,
    status: NodeStatus,
    make_services: MakeServices | None = None,
    callers: Callers | None = None,
) -> GrpcServer | None:
    """The running gRPC server, or None if the configuration asks for none; `ServerStartFailed` if the port
    cannot be opened, `InvalidConfiguration` if a file of TLS or of tokens is no good."""
    if not config.server_enabled:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.grpc.server")
    from bookie_pod.server.grpc.server import GrpcServer

    tokens = await Tokens.load("grpcServerAuthTokenFile", config.auth_token_file)
    server = GrpcServer(config, status, await make_services() if make_services else (), tokens, callers)
    try:
        await server.start()
    except BaseException:
        await server.stop()
        raise
    return server
