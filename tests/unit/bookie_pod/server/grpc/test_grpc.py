"""gRPC health and reflection."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from benchmarks import attacks_unseen
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.server.grpc.access import Strangers
from bookie_pod.server.grpc.server import MAX_CONCURRENT_RPCS, MAX_WATCHES, GrpcServer
from bookie_pod.server.grpc.start import start_grpc
from bookie_protocol.errors import ServerStartFailed
from tests.support.garbage import left_in_cycles
from tests.support.until import until
from tests.unit.bookie_pod.server.grpc.frames import http2
from tests.unit.bookie_pod.server.nodes import FakeNode

LOCAL = GrpcConfig(server_port=0, server_host="127.0.0.1")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def server(node: FakeNode) -> AsyncIterator[GrpcServer]:
    started = await start_grpc(LOCAL, node)
    assert started is not None
    yield started
    await started.stop()


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        yield opened


async def check(channel: grpc.aio.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


@pytest.mark.parametrize("service", ["", "bookie"])
async def test_health_follows_readiness(
    server: GrpcServer, channel: grpc.aio.Channel, node: FakeNode, service: str
) -> None:
    assert await check(channel, service) == SERVING
    node.unready = "shutting down"
    server.refresh()
    assert await check(channel, service) == NOT_SERVING
    node.unready = None
    server.refresh()
    assert await check(channel, service) == SERVING


async def test_a_watcher_sees_changes_that_nobody_announced(channel: grpc.aio.Channel, node: FakeNode) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="bookie"))
    assert (await watch.read()).status == SERVING
    node.unready = "read cache lost"
    assert (await asyncio.wait_for(watch.read(), 5)).status == NOT_SERVING
    watch.cancel()


async def test_unknown_service(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await check(channel, "other")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_call_that_is_refused_leaves_no_frames_behind(channel: grpc.aio.Channel) -> None:
    """The collector of cycles runs now and then, and thousands of calls come in between."""
    stub = health_pb2_grpc.HealthStub(channel)

    async def refused() -> None:
        with suppress(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))

    await refused()
    with left_in_cycles() as left:
        for _ in range(5):
            await refused()
    assert not left & {"RPCState", "_ServicerContext", "Call", "frame"}


async def test_a_call_with_too_many_headers_ends_its_connection_and_no_other(server: GrpcServer) -> None:
    """A header of 4,000 bytes, which the frame names 12,000 times more by a byte each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(attacks_unseen.PREFACE + next(attacks_unseen.bombs()))
    async with asyncio.timeout(10):
        while await reader.read(1 << 16):
            pass
    writer.close()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert await check(channel, "") == SERVING


async def test_headers_that_are_not_text_leave_no_line(server: GrpcServer, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(attacks_unseen.PREFACE + next(attacks_unseen.no_text()))
    await reader.read(1 << 16)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert await check(channel, "") == SERVING
    writer.close()
    assert caplog.records == []


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    await call.done_writing()


@pytest.mark.parametrize(("bound", "value"), [("MAX_CONNECTIONS", 3), ("side_connections", lambda: 3)])
async def test_connections_are_bounded_whatever_they_say(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, bound: str, value: object
) -> None:
    """Those that say nothing count too, as one whose TLS handshake never ends does."""
    monkeypatch.setattr(f"bookie_pod.server.grpc.server.{bound}", value)

    async def guard(strangers: Strangers, port: int) -> None:
        """In its time it sends away more of those who say nothing."""
        await asyncio.Event().wait()

    monkeypatch.setattr(Strangers, "guard", guard)
    server = await start_grpc(LOCAL, node)
    assert server is not None
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]

    async def to_its_end(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(100):
                pass  # the settings of HTTP/2

    reading = [asyncio.create_task(to_its_end(reader)) for reader, _ in opened]
    await until(lambda: sum(task.done() for task in reading) == 5)
    _, left = await asyncio.wait(reading, timeout=0.3)
    assert len(left) == 3
    for _, writer in opened:
        writer.close()
    await asyncio.wait(reading)
    await server.stop()


async def test_a_stream_sends_little_for_which_nobody_waits(server: GrpcServer) -> None:
    """What there is of it is seen by no governor: as many streams as a connection may have, and bytes of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    async with asyncio.timeout(20):
        size, kind = struct.unpack(">xHB5x", await reader.readexactly(9))
        settings = dict(struct.iter_unpack(">HI", await reader.readexactly(size)))
    assert kind == 4
    assert settings[3] * settings[4] <= MAX_CONCURRENT_RPCS * 16 * 1024
    writer.close()


async def test_a_port_in_use_names_port_and_key(server: GrpcServer, node: FakeNode) -> None:
    with pytest.raises(ServerStartFailed, match=rf"port {server.port} on 127\.0\.0\.1 .*grpcServerPort"):
        await start_grpc(GrpcConfig(server_port=server.port, server_host="127.0.0.1"), node)


async def test_stopping_says_not_serving_and_may_be_repeated(server: GrpcServer, channel: grpc.aio.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
    assert (await watch.read()).status == SERVING
    stopping = asyncio.create_task(server.stop())
    assert (await asyncio.wait_for(watch.read(), 5)).status == NOT_SERVING
    watch.cancel()
    await asyncio.wait_for(stopping, 5)
    await server.stop()


async def test_switched_off(node: FakeNode) -> None:
    assert await start_grpc(GrpcConfig(server_enabled=False), node) is None


def test_grpc_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, bookie_pod.server.grpc.start; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0


async def test_those_who_watch_do_not_keep_others_out(server: GrpcServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(service=f"made up {number}")) for number in range(MAX_WATCHES)]
    for watch in watches:
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert await check(channel, "") == SERVING
    for watch in watches:
        watch.cancel()
    await until(lambda: not server._watches.taken)
    assert not [name for name in server._health._statuses if name.startswith("made up")]
    again = stub.Watch(health_pb2.HealthCheckRequest(service=""))
    assert (await again.read()).status == SERVING
    again.cancel()


async def test_one_who_watches_and_receives_nothing_holds_nobody_up(
    node: FakeNode, server: GrpcServer, channel: grpc.aio.Channel
) -> None:
    """HTTP/2 lets a client say that it has room for no byte of an answer."""
    async with asyncio.timeout(10):
        _, deaf = await asyncio.open_connection("127.0.0.1", server.port)
        deaf.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"\0\4\0\0\0\0"))
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/grpc.health.v1.Health/Watch",
            ":authority": "bookie",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
        head = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)
        message = health_pb2.HealthCheckRequest(service="bookie").SerializeToString()
        body = b"\0" + len(message).to_bytes(4) + message
        deaf.write(http2(1, 4, 1, head) + http2(0, 1, 1, body))
        await until(lambda: server._watches.taken)
        node.unready = "stopping"
        server.refresh()
        assert await check(channel, "bookie") == NOT_SERVING
        await server.stop()
        deaf.close()
