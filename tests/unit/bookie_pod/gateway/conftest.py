"""A gateway over model bookies, and a stub for it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import grpc
import pytest

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.gateway import GatewayConfig
from bookie_pod.config.sections.service import AccessConfig, GrpcConfig
from bookie_pod.gateway.gateway import Gateway
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.grpc.start import start_grpc
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.unit.bookie_client.conftest import ModelCluster
from tests.unit.bookie_pod.server.nodes import FakeNode


class ServedGateway:
    def __init__(self, cluster, gateway, server, registry, memory):
        self.memory = memory
        self.cluster = cluster
        self.gateway = gateway
        self.server = server
        self.registry = registry
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        self.stub = LedgerServiceStub(self.channel)

    def level(self, name):
        """The value of a metric."""
        (line,) = [line for line in self.registry.render().splitlines() if line.startswith(f"bookie_gateway_{name} ")]
        return float(line.split()[1])

    @property
    def writers(self):
        return self.level("OPEN_WRITERS")


@asynccontextmanager
async def serve(cluster, memory_bytes=512 << 20, *, port=None, rules=None, tracer=None, **keys):
    """`port`: more of its `GrpcConfig`. `rules`: an `AccessConfig`."""
    config, registry = BookieConfig(gateway=GatewayConfig(**keys)), Registry()
    memory = MemoryGovernor(memory_bytes)

    async def services():
        gateway = Gateway(config, cluster.metadata, registry, memory, None if tracer is None else tracer.client)
        await gateway.start()
        made.append(gateway)
        return made

    made = []
    local = GrpcConfig(server_port=0, server_host="127.0.0.1", **(port or {}))
    rules = rules or AccessConfig()
    server = await start_grpc(
        local, FakeNode(), services, Callers(memory), registry=registry, rules=rules, tracer=tracer
    )
    served = ServedGateway(cluster, made[0], server, registry, memory)
    try:
        yield served
    finally:
        await served.channel.close()
        await server.stop()


@pytest.fixture
async def cluster():
    cluster = ModelCluster()
    for name in ("b1", "b2", "b3"):
        await cluster.add_bookie(name)
    yield cluster
    await cluster.stop()


@pytest.fixture
async def served(cluster):
    async with serve(cluster) as served:
        yield served


@pytest.fixture
def stub(served):
    return served.stub
