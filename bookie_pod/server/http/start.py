"""Starting the HTTP server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.status import NodeStatus

if TYPE_CHECKING:
    from bookie_pod.server.http.server import HttpServer


async def start_http(config: HttpConfig, status: NodeStatus, registry: Registry) -> HttpServer | None:
    """The running HTTP server, or None if the configuration asks for none.

    `ServerStartFailed` if the port cannot be opened, `InvalidConfiguration` if a TLS file is no good.
    """
    listener = config.listener
    if listener is None:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.http.server")
    from bookie_pod.server.http.server import HttpServer

    server = HttpServer(listener, config, status, registry)
    await server.start()
    return server
