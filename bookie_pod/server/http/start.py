"""Starting the HTTP server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.status import NodeStatus

if TYPE_CHECKING:
    from bookie_pod.server.http.admin.ports import AdminPorts
    from bookie_pod.server.http.server import HttpServer


async def start_http(
    config: HttpConfig,
    status: NodeStatus,
    registry: Registry,
    find_admin: Callable[[], AdminPorts | None] = lambda: None,
    *,
    has_bookie: bool = True,
) -> HttpServer | None:
    """The running HTTP server, or None if the configuration asks for none.

    `find_admin`: what the admin API reaches, None while the bookie does not serve. `has_bookie`: whether this process
    is a bookie; one that is none serves only what is about the cluster. `ServerStartFailed` if the port cannot be
    opened, `InvalidConfiguration` if a file of TLS or of tokens is no good.
    """
    listener = config.listener
    if listener is None:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.http.server")
    from bookie_pod.server.http.admin.routes import CLUSTER, RESOURCES
    from bookie_pod.server.http.server import HttpServer
    from bookie_pod.server.tokens import Tokens

    tokens = await Tokens.load("httpServerAuthTokenFile", config.auth_token_file)
    table = RESOURCES if has_bookie else CLUSTER
    server = HttpServer(listener, config, status, registry, find_admin=find_admin, tokens=tokens, table=table)
    await server.start()
    return server
