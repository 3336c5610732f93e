"""Ports kept free for other processes."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator

import grpc
import pytest

from bookie_pod.node.standalone.cluster import ReservedPorts

LOOPBACK = "127.0.0.1"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a reserved port cannot be listened on")


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    made = ReservedPorts(LOOPBACK)
    yield made
    made.close()


def test_nobody_else_gets_a_reserved_port(ports: ReservedPorts) -> None:
    mine = {ports.take() for _ in range(50)}
    assert len(mine) == 50
    other = ReservedPorts(LOOPBACK)
    assert not mine & {other.take() for _ in range(2000)}
    other.close()
    for port in mine:
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind((LOOPBACK, port))


async def test_who_was_told_of_it_listens_there_again_and_again(ports: ReservedPorts) -> None:
    port = ports.take()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOOPBACK, port)
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, LOOPBACK, port, reuse_address=True)
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()


async def test_grpc_listens_on_a_reserved_port(ports: ReservedPorts) -> None:
    port = ports.take()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    assert server.add_insecure_port(f"{LOOPBACK}:{port}") == port
    await server.start()
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.close()
    await writer.wait_closed()
    await server.stop(None)


def test_given_back(ports: ReservedPorts) -> None:
    one, port = ports.take(), ports.take()
    ports.give_back(one)
    with socket.socket() as probe:
        probe.bind((LOOPBACK, one))
    ports.close()
    with socket.socket() as probe:
        probe.bind((LOOPBACK, port))
