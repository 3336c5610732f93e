"""Starting the gRPC server without holding up the bookie."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.callers import Callers
from bookie_pod.config.sections.service import AccessConfig, GrpcConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.status import NodeStatus
from bookie_protocol.addresses import is_loopback

if TYPE_CHECKING:
    from bookie_pod.server.grpc.resident import MakeBound
    from bookie_pod.server.grpc.server import GrpcServer, GrpcService
    from bookie_pod.telemetry.otlp import Tracer


_log = structlog.get_logger(__name__)
_STRICT: Final = AccessConfig()
_TOKEN_KEY: Final = "grpcServerAuthTokenFile"

MakeServices = Callable[[], Awaitable[Sequence["GrpcService"]]]
"""Starts what else is served; called once grpc is loaded."""


async def start_grpc(
    config: GrpcConfig,
    status: NodeStatus,
    make_services: MakeServices | None = None,
    callers: Callers | None = None,
    *,
    registry: Registry | None = None,
    rules: AccessConfig = _STRICT,
    resident: MakeBound | None = None,
    tracer: Tracer | None = None,
) -> GrpcServer | None:
    """The running gRPC server, or None if the configuration asks for none; `ServerStartFailed` if the port
    cannot be opened, `InvalidConfiguration` if a file of TLS or of tokens is no good. `rules`: who may what.
    `resident`, `tracer`: as for `GrpcServer`."""
    if not config.server_enabled:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.server.grpc.server")
    from bookie_pod.audit import Audit
    from bookie_pod.server.access import Access
    from bookie_pod.server.grpc.server import GrpcServer
    from bookie_pod.server.tokens import Tokens

    tokens = await Tokens.load(_TOKEN_KEY, config.auth_token_file)
    access = Access(rules, _TOKEN_KEY, tokens, certificates=config.tls_enable and config.client_authentication)
    audit = Audit("grpc", registry or Registry(), rules.audit_log_file)
    services = await make_services() if make_services else ()
    server = GrpcServer(config, status, services, callers, access=access, audit=audit, resident=resident, tracer=tracer)
    try:
        await server.start()
    except BaseException:
        await server.stop()
        raise
    if services and access.knows_nobody and not is_loopback(config.server_host):
        everybody = "everybody who reaches the gRPC port may read and delete ledgers"
        _log.warning(
            everybody if rules.allow_insecure else "the gRPC port serves ledgers to this machine alone",
            host=config.server_host,
            port=server.port,
            remedy="set grpcServerAuthTokenFile, or grpcServerTlsClientAuthentication",
        )
    return server
