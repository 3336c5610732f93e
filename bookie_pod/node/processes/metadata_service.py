"""`bookie metadata-service`: the embedded metadata store as a process of its own; one process owns a directory.

Invariants
- Sessions outlive this process: each gets its full time-out once more after the next start.
- It makes no cluster: `bookie cluster init` does.
- What clients make it hold is governed: `client_memory_mb` for requests and answers under way, half as much for
  watches.
- With a token, or certificates of clients, no client gets an answer without one; a stranger's request is not received,
  and strangers hold no connections that others need.
- A session is renewed in room and in a place of its own: those who wait for the store, which may be slow, keep theirs
  meanwhile, and no streams or calls of others keep a renewal out.
- A stream has a place among streams. If there are too many, the oldest one of the connection ends that has most of
  them.
- A token is never waited for where others could read it on the way.
- Room is held for a start on a full disk, and held again when there is some. Only a start takes it, and only the one
  that may open the store.
- A store that failed ends it, with a line that says why: only another start can tell what is on the disk.

Threads: the main thread runs the event loop; the store has a thread of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from bookie_pod.audit import Audit
from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.keys import MIB
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.processes.memory import few_arenas, guard_memory, resident_bound
from bookie_pod.node.processes.service import ServiceProcess
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.roles import EVERYTHING, Role
from bookie_pod.server.access import Access
from bookie_pod.server.grpc.access import DemandRole, Strangers
from bookie_pod.server.grpc.places import Places
from bookie_pod.server.grpc.receiving import FEW_STREAMS, FewHeaders, GovernedCalls, bounds
from bookie_pod.server.grpc.tls import TlsFiles, renewed_credentials
from bookie_pod.server.http.start import start_http
from bookie_pod.server.tokens import Tokens
from bookie_pod.storage.disks import StartReserves, give_up_reserves
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.addresses import EVERY_ADDRESS, is_host, is_loopback
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable, ServerStartFailed
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.oxia_service import OxiaServing
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer, ServingBounds
from bookie_protocol.metadata_service.embedded.store import StoreFull, StoreIsOwned
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import CALLS as OXIA_CALLS
from bookie_protocol.metadata_service.oxia.wire import DEFAULT_NAMESPACE
from bookie_protocol.metadata_service.oxia.wire import methods as oxia_methods

ROLLOVER_S: Final = 60
UNSEEN_CALLS: Final = FEW_STREAMS
"""Calls that gRPC keeps until the server sees them: as many as one client may send. Each may cost a megabyte."""
CALLS: Final = 1024
"""Operations that run at a time; more are refused, unless one of these waits for its client."""
STREAMS: Final = 3
"""Streams of a client: one for events, or with Oxia's protocol one each for shards, writes and notifications."""
STREAMS_OF_ONE: Final = 64
"""Streams of a connection, at most: Oxia's protocol has one for each sequence that is followed."""
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Four times what a ZooKeeper takes."""
MORE_CONNECTIONS: Final = 128
"""The number of connections beyond sessions."""
STRANGERS: Final = 64
"""Connections of which no call was let in, where not everybody is. Of more, the oldest go."""
STRANGER_S: Final = 30.0
"""Seconds that a stranger's connection may last."""
RENEWALS_SHARE: Final = 8
"""Such a part of what clients may make it hold there is beside it for renewals of sessions."""
IDLE_MS: Final = 30_000
"""A connection without a call is closed after so long; every client has a stream of events."""
TOKEN_OPTION: Final = "--token-file"
ADDRESS_OPTION: Final = "--oxia-address"
_TLS_OPTIONS: Final = ("--tls-certificate", "--tls-key", "--tls-trust")
STORE_PART: Final = 4
"""A start holds at most this part of a small disk: opening the store writes out the table that its log is for."""
RESERVE_LOOK_S: Final = 60.0
"""The service looks this often whether that room is held."""

_OXIA_STREAMS: Final = ("GetShardAssignments", "WriteStream", "GetSequenceUpdates", "GetNotifications")
_SERVICE: Final = messages.DESCRIPTOR.services_by_name["EmbeddedMetadata"]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataProcessOptions:
    """`http_port` None: no probes. A port that is 0 is any free one. `client_memory_mb`: what clients may make it hold;
    `max_sessions`: theirs, of all of them. `token_file`: tokens, of which clients show one. `tls_trust`: demand a
    certificate from clients. `oxia_namespaces`: beside the default one. `oxia_address`: host:port at which clients of
    Oxia reach it."""

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
    oxia_namespaces: tuple[str, ...] = ()
    oxia_address: str | None = None


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
        memory = MemoryGovernor(options.client_memory_mb * MIB)
        http = self._stops(await start_http(config, self, self._registry, memory=memory))
        self._phase = "opening the store"
        owner = self._owner = await self._open_store(OwnerLimits(options.max_sessions, memory.limit // 2))
        callers = Callers(memory, Callers(MemoryGovernor(memory.limit // RENEWALS_SHARE)))
        strangers = Strangers(STRANGERS, STRANGER_S)
        served = await guarded(serving_bounds(callers, options.max_sessions), options, self._registry, strangers)
        server = EmbeddedMetadataServer(owner, options.host, options.port, served, _oxia(options))
        await server.start()
        self._undo.push_async_callback(server.stop)
        is_judged = options.token_file is not None or options.tls_trust is not None
        if is_judged:
            self._undo.callback(lasting_task(strangers.guard(server.port), "guard of connections").cancel)
        self._undo.callback(lasting_task(guard_memory(callers, 2 * memory.limit), "guard of memory").cancel)
        bound = resident_bound(2 * memory.limit, (lambda: strangers.known) if is_judged else None)
        bound.start(server.port)
        self._undo.callback(bound.stop)
        _log.info(
            "metadata service serves",
            uri=server.uri(),
            http_port=http.port if http is not None else None,
            data=str(options.data),
        )

    async def _open_store(self, limits: OwnerLimits) -> EmbeddedOwner:
        data = self._options.data
        try:
            return await self._undo.enter_async_context(opened_store(data, limits))
        except StoreIsOwned as error:
            raise ServerStartFailed(
                f"another process owns the metadata store in {data}: stop that one, or use another directory"
            ) from error
        except MetadataUnavailable as error:
            raise ServerStartFailed(str(error)) from error

    async def _serve(self) -> None:
        assert self._owner is not None
        raise ServerStartFailed(await self._owner.wait_broken())

    def unhealthy_reason(self) -> str | None:
        return None if self._owner is None else self._owner.broken


def _oxia(options: MetadataProcessOptions) -> OxiaServing:
    if (address := options.oxia_address) is not None:
        host, _, port = address.rpartition(":")
        if not (is_host(host.strip("[]")) and port.isdecimal()):
            raise InvalidConfiguration(f"{ADDRESS_OPTION}={address}: HOST:PORT is needed")
    name = socket.gethostname() if options.host in EVERY_ADDRESS else None
    return OxiaServing((DEFAULT_NAMESPACE, *options.oxia_namespaces), host=name, leader=address)


def serving_bounds(callers: Callers, max_sessions: int) -> ServingBounds:
    """Return the bounds of a server whose clients have so many sessions at most; `callers` have renewals `apart`."""
    renewals = (f"/{_SERVICE.full_name}/Heartbeat", *oxia_methods("KeepAlive"))
    streams = (f"/{_SERVICE.full_name}/Events", *oxia_methods(*_OXIA_STREAMS))
    calls = (STREAMS + 1) * max_sessions + CALLS
    governed = GovernedCalls(
        callers,
        MAX_REQUEST_BYTES,
        Places(CALLS),
        own=dict.fromkeys(renewals, Places(max_sessions, at_once=True))
        | dict.fromkeys(streams, Places(STREAMS * max_sessions, of_one=STREAMS_OF_ONE, brief=True)),
        only=MAX_REQUEST_BYTES,
        large_answers=_is_read,
        apart=renewals,
    )
    return ServingBounds(
        interceptors=(FewHeaders(), governed),
        options=(
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            *bounds(calls, UNSEEN_CALLS, max_sessions + MORE_CONNECTIONS),
        ),
        calls=calls + UNSEEN_CALLS,
    )


def _is_read(request: object) -> bool:
    if isinstance(request, messages.ExecuteRequest):
        return request.WhichOneof("operation") in ("get", "children")
    return isinstance(request, oxia.ReadRequest | oxia.ListRequest | oxia.RangeScanRequest)


async def guarded(
    served: ServingBounds, options: MetadataProcessOptions, registry: Registry, strangers: Strangers
) -> ServingBounds:
    """Return the bounds with the options' demands on clients. Raises `InvalidConfiguration`.

    `strangers` is called for each client that is known.
    """
    certificate, key, trust = options.tls_certificate, options.tls_key, options.tls_trust
    if (certificate is None) != (key is None) or (trust is not None and certificate is None):
        raise InvalidConfiguration(
            "--tls-certificate and --tls-key go together, and --tls-trust with both: TLS takes both of them"
        )
    away = not is_loopback(options.host)
    if certificate is None and options.token_file is not None and away:
        raise InvalidConfiguration(
            f"{TOKEN_OPTION}={options.token_file}: an eavesdropper could read the token; set"
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
    every_certificate = AccessConfig(certificate_roles=(Role.ADMIN.value,))  # --tls-trust signs for these clients alone
    access = Access(every_certificate, TOKEN_OPTION, tokens, certificates=trust is not None, of_other_names=EVERYTHING)
    ours = [f"/{_SERVICE.full_name}/{call.name}" for call in _SERVICE.methods]
    roles = dict.fromkeys((*ours, *oxia_methods(*OXIA_CALLS)), Role.ADMIN)
    asks = DemandRole(access, Audit("metadata", registry), roles, frozenset(), strangers.let_in)
    first, *others = served.interceptors
    return replace(served, interceptors=(first, asks, *others))


@asynccontextmanager
async def opened_store(data: Path, limits: OwnerLimits) -> AsyncIterator[EmbeddedOwner]:
    """Open the store, or make it, until the block ends, and hold room for the next start on a full disk. A start on one
    takes what is held, but not before it knows that no other process has the store open. Raises
    `MetadataUnavailable`."""
    files, folder = PosixFiles(), str(data)

    async def give_up() -> None:
        await asyncio.to_thread(give_up_reserves, files, [folder], STORE_PART)

    try:
        owner = await EmbeddedOwner.open(folder, limits, keep_notices=True)
    except StoreFull:
        await give_up()
        owner = await EmbeddedOwner.open(folder, limits, keep_notices=True)
    try:
        await give_up()  # it could be opened, and is written next
        holding = lasting_task(_hold_reserve(files, folder), "room for a start")
        try:
            yield owner
        finally:
            holding.cancel()
    finally:
        await owner.close()


async def _hold_reserve(files: PosixFiles, folder: str) -> None:
    reserves, warn = StartReserves(files, STORE_PART), DisksConfig().usage_warn_threshold
    while True:
        with suppress(OSError):  # the disk cannot be looked at
            usage = await asyncio.to_thread(files.usage, folder)
            await asyncio.to_thread(reserves.hold, folder, usage, warn)
        await asyncio.sleep(RESERVE_LOOK_S)


def serve_metadata(options: MetadataProcessOptions) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    few_arenas()
    return run_until_signal(lambda: MetadataProcess(options).run())
