"""Starting the HTTP server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.api.context import FindAdmin
from bookie_pod.server.status import NodeStatus
from bookie_protocol.addresses import is_loopback

if TYPE_CHECKING:
    from bookie_pod.server.http.api.table import Resource
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)
_STRICT: Final = AccessConfig()
_TOKEN_KEY: Final = "httpServerAuthTokenFile"


async def start_http(
    config: HttpConfig,
    status: NodeStatus,
    registry: Registry,
    find_admin: FindAdmin = lambda: None,
    *,
    table: Sequence[Resource] = (),
    pages: Sequence[Resource] = (),
    memory: MemoryGovernor | None = None,
    rules: AccessConfig = _STRICT,
) -> HttpServer | None:
    """The running HTTP server, or None if the configuration asks for none.

    `find_admin`: the rooms of the admin API, None while the bookie does not serve. `table`: the admin API;
    empty: nothing but probes and metrics, whatever the configuration says. `pages`: the console.
    `memory`: of the clients of this process.
    `rules`: who may what.
    `ServerStartFailed` if the port cannot be opened, `InvalidConfiguration` if a file of TLS or of tokens is no good.
    """
    listener = config.listener
    if listener is None:
        return None
    if not table:
        listener = listener._replace(admin=False)
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.http.server")
    from bookie_pod.audit import Audit
    from bookie_pod.server.access import Access
    from bookie_pod.server.http.server import HttpServer
    from bookie_pod.server.tokens import Tokens

    tokens = await Tokens.load(_TOKEN_KEY, config.auth_token_file)
    access = Access(rules, _TOKEN_KEY, tokens, certificates=_demands_certificates(config))
    server = HttpServer(
        listener,
        config,
        status,
        registry,
        find_admin=find_admin,
        access=access,
        audit=Audit("http", registry, rules.audit_log_file),
        table=table,
        pages=pages,
        memory=memory,
    )
    await server.start()
    if listener.admin and access.knows_nobody and not is_loopback(listener.host):
        everybody = "everybody who reaches the admin API may read and delete ledgers"
        _log.warning(
            everybody if rules.allow_insecure else "the admin API takes changes from this machine alone",
            host=listener.host,
            port=server.port,
            remedy="set httpServerAuthTokenFile, or httpServerTlsEnable with httpServerTrustStorePath,"
            " or httpServerHost=127.0.0.1",
        )
    return server


def _demands_certificates(config: HttpConfig) -> bool:
    """Return whether only clients are served whose certificate the trust store signs."""
    return config.tls_enable and config.tls_client_authentication
