"""`bookie gateway`: the process that serves health, reflection and `LedgerService` over gRPC.

It runs by itself, in the pod of a bookie, or as a child that a bookie started (`node.gateway_beside`). The memory that
strangers make gRPC hold is in this process, and in no bookie's.

Invariants
- It is a client of the cluster like any other, and reaches every bookie over its port.
- Its readiness is its own: whether the metadata service is there. A child is ready only while its bookie is, and serves
  health even where there is no gateway.
- A child stops when its standard input ends, which its bookie's end does too.
- Above a quarter more than its budget connections are reset, whatever its memory is made of (`resident_bound`).
- If its session cannot be renewed, it ends, so that its supervisor starts it again (`service`).
- HTTP serves probes and metrics only. At its end it takes no new calls, and closes ledgers that are being written.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.gateway_beside import BEAT_S, TOLD
from bookie_pod.node.processes.background import collect_cycles
from bookie_pod.node.processes.memory import few_arenas, guard_memory, resident_bound
from bookie_pod.node.processes.service import ClusterProcess, watch_session
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.node.start_errors import as_start_errors
from bookie_pod.server.grpc.server import GrpcServer
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.start import start_http
from bookie_pod.telemetry.start import own_name, start_telemetry
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.gateway.gateway import Gateway
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)


class GatewayProcess(ClusterProcess):
    """The gateway, its port, and its order of starting."""

    name = "gateway"

    def __init__(self, config: BookieConfig, *, beside: bool = False) -> None:
        """`beside`: as the child of a bookie. `InvalidConfiguration`: the configuration asks for no gateway."""
        if not beside:
            _check(config)
        super().__init__(config)
        self._beside = beside
        self._bookie: str | None = "the bookie starts" if beside else None
        """The reason why the bookie that started this process is not ready; None if it is."""
        self._memory = MemoryGovernor(config.client_memory_bytes)
        self._server: GrpcServer | None = None

    @property
    def grpc_port(self) -> int:
        """The port that is listened on, once it serves."""
        return 0 if self._server is None else self._server.port

    async def _start_http(self) -> HttpServer | None:
        return await start_http(self._config.http, self, self._registry, memory=self._memory)

    async def _start(self) -> None:
        if self._config.gateway.enabled:
            await super()._start()
        else:
            with as_start_errors(self._config):
                await self._start_in(None)

    async def _start_in(self, metadata: MetadataService | None) -> None:
        config, memory = self._config, self._memory

        wish = replace(config.telemetry, metrics_interval_s=0) if self._beside else config.telemetry
        telemetry = await start_telemetry(wish, self._registry, "podkeeper-gateway", own_name(config))
        if telemetry is not None:
            self._undo.push_async_callback(telemetry.stop)
        tracer = None if telemetry is None else telemetry.tracer
        inside = None if tracer is None else tracer.client

        async def gateway() -> Sequence[Gateway]:
            if metadata is None:
                return ()
            # What it needs takes long to load, which must not hold up the process.
            await asyncio.to_thread(importlib.import_module, "bookie_pod.gateway.gateway")
            from bookie_pod.gateway.gateway import Gateway

            made = Gateway(config, metadata, self._registry, memory, inside)
            await made.start()
            return (made,)

        callers = Callers(memory)
        server = await start_grpc(
            config.grpc,
            self,
            gateway,
            callers,
            registry=self._registry,
            rules=config.access,
            resident=partial(resident_bound, config.memory.budget_bytes, ends=True),
            tracer=tracer,
        )
        assert server is not None  # `_check`
        self._undo.push_async_callback(server.stop)
        guard = guard_memory(callers, config.memory.budget_bytes)
        for task in (lasting_task(collect_cycles(), "collection of cycles"), lasting_task(guard, "guard of memory")):
            self._undo.callback(task.cancel)
        self._server = server

    async def _serve(self) -> None:
        assert self._server is not None
        self._server.refresh()
        _log.info("gateway serves", port=self._server.port)
        if self._beside:
            print(self._server.port, flush=True)
            os.set_blocking(sys.stdout.fileno(), False)
            for task in (
                lasting_task(self._hear_the_bookie(), "standard input, from the bookie"),
                lasting_task(_beat(self._registry), "standard output, to the bookie"),
            ):
                self._undo.callback(task.cancel)
        if self._metadata is None:
            await asyncio.get_running_loop().create_future()
        else:
            await watch_session(self._config, self._metadata)

    async def _hear_the_bookie(self) -> None:
        """A line for each change of its readiness; its end is the end of this process too."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._bookie = line.decode("utf-8", "replace").strip() or None
            assert self._server is not None
            self._server.refresh()
        os.kill(os.getpid(), signal.SIGTERM)
        await loop.create_future()

    def unready_reason(self) -> str | None:
        own = super().unready_reason() if self._config.gateway.enabled or not self._serves else None
        return own or self._bookie


async def _beat(registry: Registry) -> None:
    """Show the bookie that the event loop turns, and send it the metrics. A suspended bookie must not hold up the loop,
    so a line may get lost. If the bookie is gone, the end of standard input ends this process."""
    while True:
        await asyncio.sleep(BEAT_S)
        line = msgspec.json.encode(registry.numbers(*TOLD)) + b"\n"
        assert len(line) <= select.PIPE_BUF, "a pipe may take a part of a longer one"
        with suppress(OSError):
            os.write(sys.stdout.fileno(), line)


def _check(config: BookieConfig) -> None:
    if not config.grpc.server_enabled:
        raise InvalidConfiguration("grpcServerEnabled=false: the gateway is served over gRPC; set it to true here")
    if not config.gateway.enabled:
        raise InvalidConfiguration(
            "gatewayEnabled=false: set it to true here. It is false by itself where bookies demand certificates and the"
            " gRPC port nothing: demand a token there (grpcServerAuthTokenFile) or a certificate"
            " (grpcServerTlsClientAuthentication)"
        )


def serve_gateway(config: BookieConfig, *, beside: bool = False) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    few_arenas()
    if beside:
        with suppress(OSError):  # this process goes before the bookie, if memory is short
            Path("/proc/self/oom_score_adj").write_text("1000")
    process = GatewayProcess(config, beside=beside)
    gc.disable()  # `collect_cycles` runs instead, when there is time: entries on their way make no cycles
    return run_until_signal(process.run)
