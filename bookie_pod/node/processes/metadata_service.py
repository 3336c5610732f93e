"""`bookie metadata-service`: the embedded metadata store as a process of its own; one process owns a directory.

Invariants
- Sessions outlive this process: each gets its full time-out once more after the next start.
- It makes no cluster: whoever wants one creates it (`bookie cluster init`).
- What clients make it hold is governed: `client_memory_mb` for requests and answers under way, half as much for
  watches.
- With a token, or certificates of clients, nobody gets an answer without; nothing of a stranger's request is received,
  and strangers hold no connections that others need.
- A session is renewed in room of its own: those who wait for the store, which may be slow, keep theirs meanwhile.
- A token is never waited for where others could read it on the way.
- A store that failed ends it, with a line that says why: only another start can tell what is on the disk.

Threads: the main thread runs the event loop; the store has a thread of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from bookie_pod.audit import Audit
from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.processes.memory import guard_memory
from bookie_pod.node.processes.service import ServiceProcess
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.roles import Role
from bookie_pod.server.access import Access
from bookie_pod.server.grpc.access import DemandRole, Strangers
from bookie_pod.server.grpc.receiving import GovernedCalls, bounds
from bookie_pod.server.grpc.tls import TlsFiles, renewed_credentials
from bookie_pod.server.http.start import start_http
from bookie_pod.server.tokens import Tokens
from bookie_protocol.addresses import is_loopback
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable, ServerStartFailed
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer, ServingBounds

ROLLOVER_S: Final = 60
CALLS: Final = 1024
"""Operations that run at a time; gRPC refuses more."""
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Four times what a ZooKeeper takes."""
MORE_CONNECTIONS: Final = 128
"""Than sessions."""
STRANGERS: Final = 64
"""Connections of which no call was let in, where not everybody is. Of more, the oldest go."""
STRANGER_S: Final = 30.0
"""So long there is one of them."""
RENEWALS_SHARE: Final = 8
"""Such a part of what clients may make it hold there is beside it for renewals of sessions."""
IDLE_MS: Final = 30_000
"""A connection without a call is closed after so long; every client has a stream of events."""
TOKEN_OPTION: Final = "--token-file"
_TLS_OPTIONS: Final = ("--tls-certificate", "--tls-key", "--tls-trust")
_MB: Final = 1024 * 1024
LOCK_FILE: Final = "LOCK"
"""RocksDB's; an error that names it tells of another owner."""

_SERVICE: Final = messages.DESCRIPTOR.services_by_name["EmbeddedMetadata"]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataProcessOptions:
    """`http_port` None: no probes. A port that is 0 is any free one. `client_memory_mb`: what clients may make it hold;
    `max_sessions`: theirs, of all of them. `token_file`: tokens, of which clients show one. `tls_trust`: demand a
    certificate from clients."""

    data: Path
    host: str
    port: int
    http_host: str
    http_port: int | None
    client_memory_mb: int
    max_sessions: int
    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_trust: str | None = None


class MetadataProcess(ServiceProcess):
    """The store, its server, and their order of starting."""

    name = "metadata service"
    stop_s = None  # a store that is not closed may lose what it took

    def __init__(self, options: MetadataProcessOptions) -> None:
        super().__init__(ROLLOVER_S)
        self._options = options
        self._owner: EmbeddedOwner | None = None

    async def _start(self) -> None:
        options = self._options
        config = HttpConfig(
            server_enabled=False,
            stats_enable=options.http_port is not None,
            stats_address=options.http_host,
            stats_port=options.http_port or 0,
        )
        memory = MemoryGovernor(options.client_memory_mb * _MB)
        http = self._stops(await start_http(config, self, self._registry, memory=memory))
        self._phase = "opening the store"
        owner = self._owner = await _open(options.data, OwnerLimits(options.max_sessions, memory.limit // 2))
        self._undo.push_async_callback(owner.close)
        callers = Callers(memory, Callers(MemoryGovernor(memory.limit // RENEWALS_SHARE)))
        strangers = Strangers(STRANGERS, STRANGER_S)
        served = await guarded(serving_bounds(callers, options.max_sessions), options, self._registry, strangers)
        server = EmbeddedMetadataServer(owner, options.host, options.port, served)
        await server.start()
        self._undo.push_async_callback(server.stop)
        if options.token_file is not None or options.tls_trust is not None:
            self._undo.callback(lasting_task(strangers.guard(server.port), "guard of connections").cancel)
        self._undo.callback(lasting_task(guard_memory(callers, 2 * memory.limit), "guard of memory").cancel)
        _log.info(
            "metadata service serves",
            uri=server.uri(),
            http_port=http.port if http is not None else None,
            data=str(options.data),
        )

    async def _serve(self) -> None:
        assert self._owner is not None
        raise ServerStartFailed(await self._owner.wait_broken())

    def unhealthy_reason(self) -> str | None:
        return None if self._owner is None else self._owner.broken


def serving_bounds(callers: Callers, max_sessions: int) -> ServingBounds:
    """The bounds of a server whose clients have so many sessions at most; `callers` have renewals `apart`."""
    calls = max_sessions + CALLS  # each session has a stream of events
    governed = GovernedCalls(
        callers,
        MAX_REQUEST_BYTES,
        only=MAX_REQUEST_BYTES,
        large_answers=_is_read,
        apart=(f"/{_SERVICE.full_name}/Heartbeat",),
    )
    return ServingBounds(
        interceptors=(governed,),
        options=(
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            *bounds(calls, max_sessions + MORE_CONNECTIONS),
        ),
        calls=calls,
    )


def _is_read(request: object) -> bool:
    return isinstance(request, messages.ExecuteRequest) and request.WhichOneof("operation") in ("get", "children")


async def guarded(
    served: ServingBounds, options: MetadataProcessOptions, registry: Registry, strangers: Strangers
) -> ServingBounds:
    """With what the options demand of clients; `strangers` is told who is none. Raises `InvalidConfiguration`."""
    certificate, key, trust = options.tls_certificate, options.tls_key, options.tls_trust
    if (certificate is None) != (key is None) or (trust is not None and certificate is None):
        raise InvalidConfiguration(
            "--tls-certificate and --tls-key go together, and --tls-trust with both: TLS takes both of them"
        )
    away = not is_loopback(options.host)
    if certificate is None and options.token_file is not None and away:
        raise InvalidConfiguration(
            f"{TOKEN_OPTION}={options.token_file}: whoever listens on the way could read the token; give"
            " --tls-certificate and --tls-key, or --host 127.0.0.1"
        )
    tokens = await Tokens.load(TOKEN_OPTION, options.token_file)
    if certificate is not None and key is not None:
        files = TlsFiles(certificate, key, trust, _TLS_OPTIONS)
        served = replace(served, credentials=await asyncio.to_thread(renewed_credentials, files))
    if tokens is None and trust is None:
        if away:
            _log.warning(
                "everybody who reaches the metadata service may change all of it",
                host=options.host,
                remedy=f"give {TOKEN_OPTION}, or --tls-trust",
            )
        return served
    access = Access(AccessConfig(), TOKEN_OPTION, tokens, certificates=trust is not None)
    roles = {f"/{_SERVICE.full_name}/{call.name}": Role.ADMIN for call in _SERVICE.methods}
    asks = DemandRole(access, Audit("metadata", registry), roles, frozenset(), strangers.let_in)
    return replace(served, interceptors=(asks, *served.interceptors))


async def _open(data: Path, limits: OwnerLimits) -> EmbeddedOwner:
    try:
        return await EmbeddedOwner.open(str(data), limits)
    except MetadataUnavailable as error:
        if LOCK_FILE in str(error):
            raise ServerStartFailed(
                f"another process owns the metadata store in {data}: stop that one, or use another directory"
            ) from error
        raise ServerStartFailed(str(error)) from error


def serve_metadata(options: MetadataProcessOptions) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    return run_until_signal(lambda: MetadataProcess(options).run())
