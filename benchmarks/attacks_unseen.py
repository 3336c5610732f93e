"""Attacks by what no message holds: headers, compressed bodies, very many small shares, entries of no size, and TLS.

Those whose name begins with `tls` need a bookie that offers TLS on its port.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Final

from benchmarks.attack_tools import (
    FRAME,
    STORED,
    Attack,
    Target,
    again,
    many,
    send,
    takes,
    takes_nothing,
    takes_one,
    takes_slowly,
)
from benchmarks.key_updates import KeyUpdates
from tests.support.frames import entry, v2_add, v2_batch, v3_list, v3_start_tls

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_GRPC: Final = b"application/grpc"


def call_headers(path: bytes) -> bytes:
    """The headers of a call, as HPACK has them."""
    return b"\x83\x86\x04%c%s\x01\x04here\x0f\x10%c%s\x00\x02te\x08trailers" % (len(path), path, len(_GRPC), _GRPC)


HEALTH_CALL: Final = call_headers(b"/grpc.health.v1.Health/Check")
_TINY: Final = 150_000
_LISTED: Final = 200_000
_RECORD: Final = 3


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


async def flood(port: int, pieces: Iterator[bytes], pause: float = 0.0) -> None:
    """Send them over HTTP/2 until the other end closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    taking = asyncio.create_task(takes(reader, writer))
    try:
        writer.write(PREFACE)
        for piece in pieces:
            if taking.done():
                break
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
    finally:
        taking.cancel()
        writer.transport.abort()


def bombs(call: bytes = HEALTH_CALL) -> Iterator[bytes]:
    """A header of 4,000 bytes into the connection's table, and 12,000 references to it of a byte each."""
    large = b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000
    return (frame(1, 5, stream, call + large + b"\xbe" * 12_000) for stream in range(1, 1 << 30, 2))


async def header_bombs(target: Target) -> None:
    """t: HPACK bombs, from two connections."""
    await many(2, lambda: flood(target.grpc_port, bombs()))


def endless(call: bytes = HEALTH_CALL) -> Iterator[bytes]:
    """One header after the other, without an end."""
    yield frame(1, 0, 1, call)
    while True:
        yield frame(9, 0, 1, b"\x00\x03abc\x7f\x81\x1f" + b"x" * 288) * 100


async def endless_headers(target: Target) -> None:
    """t: blocks of headers that do not end, from twelve connections."""
    await many(12, lambda: flood(target.grpc_port, endless()))


def short(call: bytes = HEALTH_CALL) -> Iterator[bytes]:
    """Headers of five bytes, without an end: gRPC takes twenty bytes for one."""
    yield frame(1, 0, 1, call)
    while True:
        yield frame(9, 0, 1, b"\x00\x01a\x01b" * 3000)


async def short_headers(target: Target) -> None:
    """t: blocks of headers of five bytes that do not end, from two connections."""
    await many(2, lambda: flood(target.grpc_port, short()))


def no_text(call: bytes = HEALTH_CALL) -> Iterator[bytes]:
    """Calls with headers that are not UTF-8."""
    yield frame(1, 5, 1, call + b"\x40\x01a\x01\xff" + b"\xbe" * 200)
    for stream in range(3, 1 << 30, 2):
        yield frame(1, 5, stream, call + b"\xbe" * 200)


async def headers_without_text(target: Target) -> None:
    """t: headers that are not UTF-8, 200 a call, 200 calls a second."""
    await again(lambda: flood(target.grpc_port, no_text(), 0.005))


async def small_shares(target: Target) -> None:
    """u: 6,000 connections with 60 KB of an add that does not end."""
    piece = v2_add(entry(5, 0, bytes(200_000)))[:60_000]
    await many(6000, lambda: send(target.port, piece, takes_nothing))


async def complete_adds(target: Target) -> None:
    """u: four complete adds of 60 KB in one write, from each of 400 connections, again and again."""
    ledgers = iter(range(30_000_000, 1 << 40))

    def adds() -> bytes:
        ledger = next(ledgers)
        return b"".join(v2_add(entry(ledger, entry_id, bytes(60_000))) for entry_id in range(4))

    await many(400, lambda: send(target.port, adds(), takes_one))


async def compressed_bodies(target: Target) -> None:
    """v: bodies of 300 MB that are 300 KB on the way, from four connections."""
    body = gzip.compress(bytes(300_000_000), 9)
    head = b"PUT /api/v1/config/server_config HTTP/1.1\r\nHost: here\r\n"
    head += b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    await many(4, lambda: send(target.http_port, head + body, takes))


async def _write(target: Target, ledger: int, ids: list[int]) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(28 * 2000)

    for at in range(0, len(ids), 2000):
        adds = b"".join(v2_add(entry(ledger, each, b"", lac=-1)) for each in ids[at : at + 2000])
        await send(target.port, adds, answers)


async def entry_lists(target: Target) -> None:
    """w: lists of a ledger with 200,000 entries and gaps of any size between them, from 16 connections."""
    chosen = random.Random(1)
    ids = [0]
    while len(ids) < _LISTED:
        ids.append(ids[-1] + 2 + chosen.randrange(60))
    await _write(target, 700, ids)
    await many(16, lambda: send(target.port, v3_list(700) * 4, takes))


async def tiny_entries(target: Target) -> None:
    """x: batch reads of 150,000 entries without a payload, taken slowly, from 20 connections."""
    await _write(target, 800, list(range(_TINY)))
    batch = v2_batch(800, 0, 2**31 - 1, 2**31 - 1)
    await many(20, lambda: send(target.port, batch * 30, takes_slowly))


# --- over TLS -----------------------------------------------------------------------------------------------------


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _start_tls(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the bookie waits for a handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1 << 16)
    writer.write(v3_start_tls())
    await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    return reader, writer


async def _over_tls(target: Target, context: ssl.SSLContext, data: bytes, *, slowly: bool = False) -> None:
    reader, writer = await _start_tls(target)
    try:
        await writer.start_tls(context)
        writer.write(data)
        while await reader.read(1 << 16):
            if slowly:
                await asyncio.sleep(_RECORD / 100)
    finally:
        writer.transport.abort()


async def large_adds_over_tls(target: Target) -> None:
    """y: 200 TLS clients with one add of 1 MB each, which stay."""
    context, ledgers = _any_certificate(), iter(range(20_000_000, 1 << 40))

    def add() -> bytes:
        return v2_add(entry(next(ledgers), 0, bytes(1_000_000)))

    await many(200, lambda: _over_tls(target, context, add()))


async def unfinished_frames_over_tls(target: Target) -> None:
    """y: 150 TLS clients with a frame of 4.9 MB that does not end."""
    context, whole = _any_certificate(), v2_add(entry(2, 0, bytes(FRAME)))
    await many(150, lambda: _over_tls(target, context, whole[:-10]))


async def slow_readers_over_tls(target: Target) -> None:
    """y: 60 TLS clients with 200 batch reads each, which take 2 MB/s."""
    context = _any_certificate()
    reads = v2_batch(STORED, 0, 0, 4 << 20) * 200
    await many(60, partial(_over_tls, target, context, reads, slowly=True))


async def half_handshakes(target: Target) -> None:
    """y: 600 connections that begin TLS and send no more than the beginning of a handshake."""

    async def ask() -> None:
        reader, writer = await _start_tls(target)
        try:
            writer.write(b"\x16\x03\x01\x20\x00")
            await takes_nothing(reader, writer)
        finally:
            writer.transport.abort()

    await many(600, ask)


async def new_keys(target: Target) -> None:
    """y: 4 TLS clients that ask for new keys, again and again."""

    async def ask() -> None:
        reader, writer = await _start_tls(target)
        updates = KeyUpdates(reader, writer)
        try:
            await updates.shake_hands()
            await updates.flood()
        finally:
            writer.transport.abort()
            updates.free()

    await many(4, ask)


ATTACKS: Final[dict[str, Attack]] = {
    "t-bomb": header_bombs,
    "t-endless": endless_headers,
    "t-short": short_headers,
    "t-text": headers_without_text,
    "u": small_shares,
    "u-adds": complete_adds,
    "v": compressed_bodies,
    "w": entry_lists,
    "x": tiny_entries,
    "tls-add": large_adds_over_tls,
    "tls-frame": unfinished_frames_over_tls,
    "tls-slow": slow_readers_over_tls,
    "tls-half": half_handshakes,
    "tls-keys": new_keys,
}
