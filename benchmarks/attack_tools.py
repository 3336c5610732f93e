"""What the attackers of `benchmarks.attacks` are made of: connections that send, and take or do not take."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import grpc

STORED: Final = 1
STORED_ENTRIES: Final = 64
STORED_BYTES: Final = 1_000_000
MB: Final = 1 << 20
FRAME: Final = 4_900_000
PAUSE_S: Final = 0.05
_ESTABLISHED: Final = 1
"""Of the kernel's states of a TCP connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """Ports of one bookie on the loopback interface; 0: it has none."""

    port: int
    grpc_port: int
    http_port: int


Attack = Callable[[Target], Awaitable[object]]


async def again(work: Callable[[], Awaitable[object]]) -> NoReturn:
    while True:
        with suppress(OSError, EOFError, grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the last: over meanwhile
            await work()
        await asyncio.sleep(PAUSE_S)


async def many(count: int, work: Callable[[], Awaitable[object]]) -> None:
    await asyncio.gather(*(again(work) for _ in range(count)))


Then = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


async def send(port: int, data: bytes, then: Then) -> None:
    """Send, go on with `then`, and hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(data)
        await then(reader, writer)
    finally:
        writer.transport.abort()


async def takes_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As long as the bookie bears it: whoever does not read is told by the state of the socket alone."""
    connection = writer.get_extra_info("socket")
    while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_S)


async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    while await reader.read(1 << 16):
        pass


async def takes_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """10 MB/s."""
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    while await reader.read(MB // 4):  # noqa: ASYNC110
        await asyncio.sleep(0.025)


async def takes_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    await reader.read(1 << 16)


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.sleep(1)


def channel(target: Target) -> grpc.aio.Channel:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    return grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}", options=options)
