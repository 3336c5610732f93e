"""Attacks on the embedded metadata service, by strangers: it demands a token, and they have none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import grpc

from benchmarks.attack_tools import Attack, Target, again, channel, many, send, takes_nothing
from benchmarks.attacks_unseen import bombs, call_headers, endless, flood, frame, no_text, short
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub

_CALL: Final = call_headers(b"/podkeeper.embedded_metadata.EmbeddedMetadata/Execute")
_DATA: Final = 3_900_000


async def header_bombs(target: Target) -> None:
    """z: the metadata service: HPACK bombs, from two connections."""
    await many(2, lambda: flood(target.grpc_port, bombs(_CALL)))


async def endless_headers(target: Target) -> None:
    """z: the metadata service: blocks of headers that do not end, from twelve connections."""
    await many(12, lambda: flood(target.grpc_port, endless(_CALL)))


async def short_headers(target: Target) -> None:
    """z: the metadata service: blocks of headers of five bytes that do not end, from two connections."""
    await many(2, lambda: flood(target.grpc_port, short(_CALL)))


async def headers_without_text(target: Target) -> None:
    """z: the metadata service: headers that are not UTF-8, 200 a call, 200 calls a second."""
    await again(lambda: flood(target.grpc_port, no_text(_CALL), 0.005))


def _resets() -> Iterator[bytes]:
    for stream in range(1, 1 << 30, 2):
        yield frame(1, 4, stream, _CALL) + frame(3, 0, stream, b"\0\0\0\x08")


async def resets(target: Target) -> None:
    """z: the metadata service: calls that are taken back in the moment in which they begin, from eight connections."""
    await many(8, lambda: flood(target.grpc_port, _resets()))


async def large_requests(target: Target) -> None:
    """z: the metadata service: 64 requests of 4 MB at a time from each of eight connections."""
    node = messages.NewNode(path="/x", data=bytes(_DATA))
    request = messages.ExecuteRequest(create=messages.Create(node=node))

    async def ask() -> None:
        async with channel(target) as over:
            stub: Any = EmbeddedMetadataStub(over)  # type: ignore[no-untyped-call]
            await asyncio.wait([asyncio.ensure_future(stub.Execute(request).code()) for _ in range(64)])

    await many(8, ask)


async def sessions(target: Target) -> None:
    """z: the metadata service: sessions, 100 calls at a time from each of eight connections, all refused."""

    async def ask() -> None:
        async with channel(target) as over:
            stub: Any = EmbeddedMetadataStub(over)  # type: ignore[no-untyped-call]
            request = messages.OpenSessionRequest(timeout_ms=600_000)
            calls: list[grpc.aio.UnaryUnaryCall] = [stub.OpenSession(request) for _ in range(100)]
            await asyncio.wait([asyncio.ensure_future(call.code()) for call in calls])

    await many(8, ask)


async def silent_connections(target: Target) -> None:
    """z: the metadata service: 2,000 connections that never say what they want."""
    await many(2000, lambda: send(target.grpc_port, b"", takes_nothing))


ATTACKS: Final[dict[str, Attack]] = {
    "meta-bomb": header_bombs,
    "meta-endless": endless_headers,
    "meta-short": short_headers,
    "meta-text": headers_without_text,
    "meta-resets": resets,
    "meta-large": large_requests,
    "meta-sessions": sessions,
    "meta-silent": silent_connections,
}
