"""Calls of which nothing comes, or whose answer is not taken, keep no others out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.server.grpc import receiving
from bookie_pod.server.grpc.places import Places
from bookie_pod.server.grpc.server import CHECK, PLACES_OF_ONE, REFLECT, WATCH, GrpcServer
from bookie_pod.server.grpc.start import start_grpc
from bookie_protocol.errors import TooManyRequests
from tests.unit.bookie_pod.server.grpc.frames import http2
from tests.unit.bookie_pod.server.nodes import FakeNode

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    started = await start_grpc(GrpcConfig(server_port=0, server_host="127.0.0.1"), FakeNode())
    assert started is not None
    yield started
    await started.stop()


@asynccontextmanager
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    """With a connection of its own."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=own) as made:
        yield made


async def is_served(server: GrpcServer) -> bool:
    async with channel(server) as other:
        stub = health_pb2_grpc.HealthStub(other)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=10)
        return bool(answer.status == SERVING)


@pytest.mark.parametrize("method", [CHECK, WATCH, REFLECT])
async def test_silent_calls_do_not_keep_a_probe_out(server: GrpcServer, method: str) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            silent = await stack.enter_async_context(channel(server))
            for _ in range(4):  # few at a time: gRPC itself refuses some of many that come at once
                for _ in range(25):
                    silent.stream_stream(method)()
                assert await is_served(server)


@pytest.mark.parametrize("method", [CHECK, WATCH, REFLECT])
async def test_a_call_whose_request_does_not_come_ends(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(receiving, "SILENT_S", 0.01)
    async with channel(server) as silent, asyncio.timeout(10):
        assert await silent.stream_stream(method)().code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_answers_that_are_not_taken_do_not_keep_a_probe_out(server: GrpcServer) -> None:
    """HTTP/2 lets a client say that it has room for no byte of an answer."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": CHECK,
        ":authority": "b",
        "content-type": "application/grpc",
    }
    pairs = [(name.encode(), value.encode()) for name, value in (fields | {"te": "trailers"}).items()]
    head = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)
    calls = [http2(1, 4, number, head) + http2(0, 1, number, bytes(5)) for number in range(1, 200, 2)]
    deaf = []
    for _ in range(4):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        deaf.append(writer)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"\0\4\0\0\0\0"))
        for first in range(0, len(calls), 25):
            writer.write(b"".join(calls[first : first + 25]))
            assert await is_served(server)
    for writer in deaf:
        writer.close()


async def test_watchers_of_one_connection_leave_places_to_others(server: GrpcServer) -> None:
    async with channel(server) as many, channel(server) as other:
        stub = health_pb2_grpc.HealthStub(many)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service="bookie")) for _ in range(PLACES_OF_ONE + 1)]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        async with asyncio.timeout(10):
            codes = [asyncio.create_task(watch.code()) for watch in watches]
            (ended,), _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
            assert ended.result() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watch = health_pb2_grpc.HealthStub(other).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING
        assert server._watches.taken == PLACES_OF_ONE + 1


class Running:
    """Calls that run until they are ended."""

    def __init__(self, places: Places) -> None:
        self.callers = Callers(MemoryGovernor(1 << 20))
        self.places = places
        self.ended: list[str] = []

    async def begin(self, name: str, peer: str, *, waits: bool = False) -> asyncio.Task[None]:
        began = asyncio.Event()

        async def run() -> None:
            with self.callers.call(peer) as call:
                if waits:
                    call.waits_since = time.perf_counter() - 1
                try:
                    with self.places.place(call):
                        began.set()
                        await asyncio.Event().wait()
                finally:
                    self.ended.append(name)

        running = asyncio.create_task(run())
        waiting = asyncio.create_task(began.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.sleep(0)
        return running


async def test_a_call_that_waits_for_its_client_makes_way_and_others_are_refused() -> None:
    calls = Running(Places(2))
    tasks = [await calls.begin("works", "a"), await calls.begin("waits", "b", waits=True)]
    tasks.append(await calls.begin("comes", "a"))
    assert calls.ended == ["waits"]
    refused = await calls.begin("too many", "c")
    assert isinstance(refused.exception(), TooManyRequests)
    assert calls.places.taken == 2
    for task in tasks:
        task.cancel()


async def test_the_oldest_call_of_the_connection_that_has_most_makes_way() -> None:
    calls = Running(Places(4, of_one=3, brief=True))
    begun = [("1", "a"), ("2", "b"), ("3", "b"), ("4", "b"), ("5", "b"), ("6", "c")]
    tasks = [await calls.begin(name, peer) for name, peer in begun]
    assert calls.ended == ["2", "3"]
    for task in tasks:
        task.cancel()


async def test_the_oldest_of_calls_that_are_answered_at_once_makes_way_whosever_it_is() -> None:
    """A proxy has many clients on one connection, and no call of them is in the way for long."""
    calls = Running(Places(4, at_once=True))
    begun = [("1", "one"), ("2", "proxy"), ("3", "proxy"), ("4", "two"), ("5", "proxy"), ("6", "three")]
    tasks = [await calls.begin(name, peer) for name, peer in begun]
    assert calls.ended == ["1", "2"]
    for task in tasks:
        task.cancel()
