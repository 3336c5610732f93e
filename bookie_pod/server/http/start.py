"""Starting the HTTP server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.status import NodeStatus

if TYPE_CHECKING:
    from bookie_pod.server.http.admin.ports import AdminPorts
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)


async def start_http(
    config: HttpConfig,
    status: NodeStatus,
    registry: Registry,
    find_admin: Callable[[], AdminPorts | None] = lambda: None,
    *,
    has_bookie: bool = True,
    admin: bool = True,
    memory: MemoryGovernor | None = None,
) -> HttpServer | None:
    """The running HTTP server, or None if the configuration asks for none.

    `find_admin`: what the admin API reaches, None while the bookie does not serve. `has_bookie`: whether this process
    is a bookie; one that is none serves only what is about the cluster. `admin` False: nothing but probes and metrics,
    whatever the configuration says. `memory`: of the clients of this process. `ServerStartFailed` if the port cannot be
    opened, `InvalidConfiguration` if a file of TLS or of tokens is no good.
    """
    listener = config.listener
    if listener is None:
        return None
    if not admin:
        listener = listener._replace(admin=False)
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.http.server")
    from bookie_pod.server.http.admin.routes import CLUSTER, RESOURCES
    from bookie_pod.server.http.server import HttpServer
    from bookie_pod.server.tokens import Tokens

    tokens = await Tokens.load("httpServerAuthTokenFile", config.auth_token_file)
    table = RESOURCES if has_bookie else CLUSTER
    server = HttpServer(
        listener, config, status, registry, find_admin=find_admin, tokens=tokens, table=table, memory=memory
    )
    await server.start()
    if listener.admin and tokens is None and not _demands_certificates(config) and not _is_loopback(listener.host):
        _log.warning(
            "everybody who reaches the admin API may read and delete ledgers",
            host=listener.host,
            port=server.port,
            remedy="set httpServerAuthTokenFile, or httpServerTlsEnable with httpServerTrustStorePath,"
            " or httpServerHost=127.0.0.1",
        )
    return server


def _demands_certificates(config: HttpConfig) -> bool:
    """Whether only clients are served whose certificate the trust store signs."""
    return config.tls_enable and config.tls_client_authentication


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that binds to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
