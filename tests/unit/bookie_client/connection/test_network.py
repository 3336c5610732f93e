"""Names, and their addresses, one after the other."""

import asyncio
import socket

import pytest

from bookie_client.connection import network
from bookie_client.connection.network import tcp_connector


class Accepts(asyncio.Protocol):
    def connection_made(self, transport):
        transport.close()


@pytest.fixture
async def port():
    server = await asyncio.get_running_loop().create_server(Accepts, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


def _patched(monkeypatch):
    """The addresses of the name `bookie`, and how often it was asked for."""
    known, asked = [], []
    loop = asyncio.get_running_loop()
    really = loop.getaddrinfo

    async def getaddrinfo(host, port, **kwargs):
        if host != "bookie":
            return await really(host, port, **kwargs)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return known, asked


async def connect(port, host="bookie"):
    transport = await tcp_connector(asyncio.Protocol, host, port)
    address = transport.get_extra_info("peername")[0]
    alive = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.abort()
    await asyncio.sleep(0)
    assert alive
    return address


async def test_a_name_is_resolved_at_every_attempt(port, monkeypatch):
    known, asked = _patched(monkeypatch)
    known[:] = ["127.0.0.9"]
    with pytest.raises(OSError, match="Connect"):
        await connect(port)
    known[:] = ["127.0.0.1"]
    assert await connect(port) == "127.0.0.1"
    assert asked == ["bookie"] * 2


async def test_an_address_is_not_resolved(port, monkeypatch):
    async def getaddrinfo(host, *_, **__):
        pytest.fail(f"{host} was asked for")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await connect(port, "127.0.0.1") == "127.0.0.1"


async def test_each_address_is_tried(port, monkeypatch):
    known, _ = _patched(monkeypatch)
    known[:] = ["127.0.0.8", "127.0.0.9", "127.0.0.1"]
    assert await connect(port) == "127.0.0.1"


async def test_an_address_that_swallows_everything_does_not_hold_up_the_next(port, monkeypatch):
    known, _ = _patched(monkeypatch)
    monkeypatch.setattr(network, "NEXT_ADDRESS_SECONDS", 0.02)
    really = network._connect

    async def connect_or_hang(factory, host, number):
        if host == "127.0.0.8":
            await asyncio.Event().wait()
        return await really(factory, host, number)

    monkeypatch.setattr(network, "_connect", connect_or_hang)
    known[:] = ["127.0.0.8", "127.0.0.1"]
    assert await connect(port) == "127.0.0.1"


async def test_a_name_without_addresses(port, monkeypatch):
    _patched(monkeypatch)
    with pytest.raises(OSError, match=r"bookie .*address"):
        await connect(port)


@pytest.mark.parametrize("name", ["a..b", "x" * 70])
async def test_a_name_that_no_host_can_have_is_one_that_nobody_has(name):
    with pytest.raises(OSError, match="name"):
        await tcp_connector(Accepts, name, 1)
