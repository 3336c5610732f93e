"""The gateway as the node composes it.

Invariants
- It shares the process's metadata service, and has connections of its own to the bookies.
- Stopping refuses new calls, closes the ledgers that are being written, and ends within `STOP_SECONDS`.

Event loop only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import grpc

from bookie_client import Client
from bookie_client.writing.window import Window
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.client_options import client_options, client_placement
from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.reading import LARGEST_WINDOW_BYTES
from bookie_pod.gateway.service import GatewayParts, LedgerService
from bookie_pod.gateway.writers import OpenWriters
from bookie_pod.metrics.gateway import GatewayMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Role
from bookie_protocol.ledger_service.ledger_service_pb2 import DESCRIPTOR
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import add_LedgerServiceServicer_to_server
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SERVICE_NAME: Final[str] = DESCRIPTOR.services_by_name["LedgerService"].full_name
ROLES: Final = {
    "Create": Role.WRITER,
    "Append": Role.WRITER,
    "Close": Role.WRITER,
    "Recover": Role.WRITER,
    "Read": Role.READER,
    "Tail": Role.READER,
    "List": Role.READER,
    "GetMetadata": Role.READER,
    "Delete": Role.ADMIN,
}
"""Role that each call needs."""
STOP_SECONDS: Final = 5.0
UNARY_CALLS: Final = 128
"""Calls with one answer that run at a time; gRPC refuses more."""


class Gateway:
    """`start` before use; it can be stopped once."""

    names: Final = (SERVICE_NAME,)
    roles: Final[Mapping[str, Role]] = {f"/{SERVICE_NAME}/{call}": role for call, role in ROLES.items()}

    def __init__(
        self,
        config: BookieConfig,
        metadata: MetadataService,
        registry: Registry,
        memory: MemoryGovernor,
        tracer: Tracer | None = None,
    ) -> None:
        """`tracer`: of its client."""
        gateway = config.gateway
        self.max_message_bytes = gateway.max_message_bytes
        self.max_calls = gateway.max_streams + UNARY_CALLS
        patience = gateway.add_quorum_timeout_seconds
        options = client_options(
            config,
            read_window_bytes=LARGEST_WINDOW_BYTES,
            add_quorum_timeout=float(patience) if patience > 0 else None,
            enforce_fault_domains=gateway.enforce_fault_domains,
            tracer=tracer,
        )
        self._client = Client(metadata, options, placement=client_placement(config))
        self._writers = OpenWriters(
            self._client,
            memory,
            max_open=gateway.max_open_writers,
            idle_seconds=gateway.idle_writer_seconds,
        )
        budget = Window(sys.maxsize, gateway.max_pending_bytes, 0)
        metrics = self._metrics = GatewayMetrics(registry)
        self._service = LedgerService(GatewayParts(self._client, self._writers, budget, gateway, metrics, memory))
        self._pending = budget

    async def start(self) -> None:
        """Open the client."""
        await self._client.start()
        self._writers.start()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve the calls there, and export levels: only now, since one that cannot be served is made again."""
        add_LedgerServiceServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        self._metrics.bind_levels(
            writers=lambda: self._writers.count,
            streams=lambda: self._service.streams,
            pending_bytes=lambda: self._pending.nbytes,
        )

    async def stop(self) -> None:
        """Close the ledgers that are being written, then the client."""
        self._service.is_stopping = True
        await self._writers.stop(STOP_SECONDS)
        await self._client.close()
