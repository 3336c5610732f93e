"""What strangers do to a bookie, each for as long as it is told; `benchmarks.hostile` runs them as processes.

    python -m benchmarks.attacks NAME PORT GRPC_PORT HTTP_PORT SECONDS

An attacker whose connection is closed opens another one. Needs the ledger `STORED`, which `hostile` writes.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
from contextlib import suppress
from typing import Any, Final

import grpc

from benchmarks import attacks_metadata
from benchmarks import attacks_unseen as unseen
from benchmarks.attack_tools import (
    FRAME,
    MB,
    STORED,
    STORED_BYTES,
    STORED_ENTRIES,
    Attack,
    Target,
    again,
    channel,
    hangs_up,
    many,
    send,
    takes,
    takes_nothing,
    takes_one,
    takes_slowly,
)
from bookie_protocol.ledger_service import ledger_service_pb2 as messages
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from tests.support.frames import KEY, entry, v2_add, v2_batch, v2_read, v3_list, v3_poll, v3_start_tls, v3_write_lac

# --- a to j -------------------------------------------------------------------------------------------------------


async def batch_reads(target: Target) -> None:
    """a: 1,000 batch reads of a connection that takes no answers."""
    await again(lambda: send(target.port, v2_batch(STORED, 0, 0, 4 * MB) * 1000, takes_nothing))


async def slow_reader(target: Target) -> None:
    """a: 600 pipelined reads of 1 MB, taken at 10 MB/s."""
    reads = b"".join(v2_read(STORED, number % STORED_ENTRIES) for number in range(600))
    await again(lambda: send(target.port, reads, takes_slowly))


async def explicit_lacs(target: Target) -> None:
    """b: explicit LACs of nearly 5 MB, each of its own ledger."""
    request = v3.new_request(pb.WRITE_LAC, 1)
    request.writeLacRequest.lac = 1
    request.writeLacRequest.masterKey = KEY
    request.writeLacRequest.body = bytes(FRAME)
    ledgers = iter(range(1_000_000, 1 << 40))

    async def ask() -> None:
        request.writeLacRequest.ledgerId = next(ledgers)
        body = request.SerializeToString()
        await send(target.port, len(body).to_bytes(4) + body, takes)

    await many(8, ask)


async def unfinished_frames(target: Target) -> None:
    """c: 150 connections with a frame of 4.9 MB each that never ends."""
    whole = v2_add(entry(2, 0, bytes(FRAME)))
    await many(150, lambda: send(target.port, whole[:-10], takes_nothing))


async def long_polls(target: Target) -> None:
    """d: 200,000 long polls of one connection, then it hangs up."""
    polls = v3_poll(STORED, STORED_ENTRIES + 10, 600_000) * 200_000
    await again(lambda: send(target.port, polls, hangs_up))


async def appends(target: Target) -> None:
    """e: 60 Append streams of three messages of 15 MB, or as large as may be."""
    async with channel(target) as over:
        stub: Any = LedgerServiceStub(over)  # type: ignore[no-untyped-call]
        sizes = {"nbytes": 15_000_000}

        async def append() -> None:
            call = stub.Append()
            try:
                create = messages.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
                await call.write(messages.AppendRequest(create=create))
                batch = messages.AppendRequest(entries=[bytes(1_000_000)] * (sizes["nbytes"] // 1_000_000))
                for _ in range(3):
                    await call.write(batch)
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                if found := re.search(r"larger than max \(\d+ vs\. (\d+)\)", error.details() or ""):
                    sizes["nbytes"] = int(found[1]) - 100_000
                raise
            finally:
                call.cancel()

        await many(60, append)


async def sleeping_appends(target: Target) -> None:
    """e, from 200 connections: streams that are silent for a second, and then all send at once."""

    async def append() -> None:
        async with channel(target) as over:
            stub: Any = LedgerServiceStub(over)  # type: ignore[no-untyped-call]
            call = stub.Append()
            await asyncio.sleep(1)
            create = messages.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await call.write(messages.AppendRequest(create=create, entries=[bytes(1_000_000)] * 5))
            await call.read()

    await many(200, append)


async def untaken_reads(target: Target) -> None:
    """e: 100 Read streams that nobody takes, from four connections."""
    create = messages.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
    batch = messages.AppendRequest(entries=[bytes(STORED_BYTES)] * 2)
    async with channel(target) as over:
        written: Any = LedgerServiceStub(over)  # type: ignore[no-untyped-call]
        requests = [messages.AppendRequest(create=create), *[batch] * (STORED_ENTRIES // 2)]
        ledger_ids: list[int] = []
        while not ledger_ids:  # in a mixture others may be given the room for it
            with suppress(grpc.aio.AioRpcError):
                ledger_ids = [answer.ledger_id async for answer in written.Append(iter(requests))]
    ledger_id = ledger_ids[-1]

    async def read() -> None:
        async with channel(target) as over:
            stub: Any = LedgerServiceStub(over)  # type: ignore[no-untyped-call]
            calls = [stub.Read(messages.ReadRequest(ledger_id=ledger_id)) for _ in range(25)]
            await asyncio.wait([asyncio.ensure_future(call.code()) for call in calls])

    await many(4, read)


async def large_ensembles(target: Target) -> None:
    """e: `Create(ensemble_size=100000)`."""
    async with channel(target) as over:
        stub: Any = LedgerServiceStub(over)  # type: ignore[no-untyped-call]
        request = messages.CreateRequest(ensemble_size=100_000, write_quorum=100_000, ack_quorum=50_000)
        await many(16, lambda: stub.Create(request))


async def unknown_fields(target: Target) -> None:
    """f: frames of version 3 of 5 MB, made of unknown fields."""
    body = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=1).SerializeToString()
    whole = b"\x0a" + len(body).to_bytes(1) + body + b"\xa0\x06\x01" * (FRAME // 3)
    frame = len(whole).to_bytes(4) + whole
    await many(4, lambda: send(target.port, frame * 4, takes))


async def tailing_readers(target: Target) -> None:
    """g: 300 tailing readers whose polls end and begin again."""
    poll = v3_poll(STORED, STORED_ENTRIES + 10, 500)
    await many(300, lambda: send(target.port, poll, takes_one))


async def http_connections(target: Target) -> None:
    """h: 300 HTTP clients that keep their connections."""
    request = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"

    async def keep() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.http_port)
        try:
            for _ in range(1000):
                writer.write(request)
                await writer.drain()
                if not await reader.read(1 << 16):
                    return
                await asyncio.sleep(5)
        finally:
            writer.transport.abort()

    await many(300, keep)


async def health_watches(target: Target) -> None:
    """h: 1,200 `Health.Watch` streams, from twelve connections."""

    async def watch() -> None:
        async with channel(target) as over:
            call = over.unary_stream("/grpc.health.v1.Health/Watch")
            calls = [call(b"") for _ in range(100)]
            await asyncio.wait([asyncio.ensure_future(each.code()) for each in calls])

    await many(12, watch)


async def pending_adds(target: Target) -> None:
    """i: a connection with 20,000 adds under way, which takes no answers."""
    adds = b"".join(v2_add(entry(3, number, bytes(1000))) for number in range(20_000))
    await again(lambda: send(target.port, adds, takes_nothing))


async def bad_requests(target: Target) -> None:
    """j: what is no HTTP, and no frame."""
    await asyncio.gather(
        many(4, lambda: send(target.http_port or target.port, b"GET\x00 / HTTP/9\r\n\r\n" * 3, takes)),
        many(4, lambda: send(target.port, b"\xff" * 64, takes)),
    )


# --- and what nobody listed ---------------------------------------------------------------------------------------


async def silent_connections(target: Target) -> None:
    """k: 500 connections to each port that never say what they want, with long polls and explicit LACs beside."""
    ports = [port for port in (target.port, target.grpc_port, target.http_port) if port]
    lacs = b"".join(v3_write_lac(STORED, number) for number in range(1000))
    await asyncio.gather(
        *(many(500, lambda port=port: send(port, b"", takes_nothing)) for port in ports),  # type: ignore[misc]
        many(10, lambda: send(target.port, v3_poll(STORED, STORED_ENTRIES + 10) * 1000, takes_nothing)),
        many(4, lambda: send(target.port, lacs, takes_nothing)),
    )


async def metadata_headers(target: Target) -> None:
    """l: gRPC calls with metadata as large as may be, and requests of 5 MB for calls that want a few bytes."""
    headers = tuple((f"x-{number}", "x" * 1000) for number in range(7))

    async def call_many() -> None:
        async with channel(target) as over:
            check = over.unary_unary("/grpc.health.v1.Health/Check")
            junk = b"\xa2\x06" + b"\x80\x96\xb1\x02" + bytes(5_000_000)
            calls = [check(junk if number % 2 else b"", metadata=headers) for number in range(64)]
            await asyncio.wait([asyncio.ensure_future(each.code()) for each in calls])

    await many(16, call_many)


async def http_bodies(target: Target) -> None:
    """m: 256 HTTP requests with heads and chunked bodies that do not end."""
    heads = b"PUT /api/v1/config/server_config HTTP/1.1\r\nHost: here\r\n"
    chunked = heads + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"{" * 65536 + b"\r\n"
    large = heads + b"".join(b"X-%d: %s\r\n" % (number, b"x" * 8000) for number in range(200))
    await asyncio.gather(
        many(128, lambda: send(target.http_port, chunked, takes_nothing)),
        many(128, lambda: send(target.http_port, large, takes_nothing)),
    )


async def tiny_chunks(target: Target) -> None:
    """m: 256 HTTP requests with bodies in chunks of one byte, for what takes no body."""
    head = b"GET /metrics HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    await many(256, lambda: send(target.http_port, head + b"1\r\nx\r\n" * 80_000, takes_nothing))


async def tiny_headers(target: Target) -> None:
    """m: 256 HTTP requests with thousands of headers of a byte each, again and again."""
    head = b"GET /metrics HTTP/1.1\r\nHost: here\r\n" + b"a:b\r\n" * 6_000
    await many(256, lambda: send(target.http_port, head + b"\r\n", takes_nothing))


async def queued_requests(target: Target) -> None:
    """m: 256 HTTP clients that send 30 requests at once, each with a query and cookies of 7 KB."""
    parts = b"&a=1" * 1_900, b"a=b;" * 1_900
    request = b"GET /api/v1/ledger/list?%s HTTP/1.1\r\nHost: here\r\nCookie: %s\r\n\r\n" % parts
    await many(256, lambda: send(target.http_port, request * 30, takes_one))


async def slashes(target: Target) -> None:
    """m: 256 HTTP clients that ask for a path of 8,000 slashes."""
    request = b"GET /%s HTTP/1.1\r\nHost: here\r\n\r\n" % (b"/" * 8_000)
    await many(256, lambda: send(target.http_port, request * 2, takes_one))


async def many_ledgers(target: Target) -> None:
    """n: a client that writes one entry to each of very many ledgers, with a key of its own each."""
    ledgers = iter(range(10_000_000, 1 << 40))

    async def write() -> None:
        adds = b"".join(v2_add(entry(next(ledgers), 0, b""), bytes(20)) for _ in range(1000))

        async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            await reader.readexactly(28 * 1000)

        await send(target.port, adds, answers)

    await many(2, write)


async def huge_counts(target: Target) -> None:
    """o: batch reads of as many entries as an integer holds, taken slowly, from 20 connections."""
    batch = v2_batch(STORED, 0, 2**31 - 1, 2**31 - 1)
    await many(20, lambda: send(target.port, batch * 50, takes_slowly))


async def mixture(target: Target) -> None:
    """p: batch reads, unfinished frames, long polls, untaken Read and Append streams, and HTTP, all at once."""
    over_grpc: tuple[Attack, ...] = (untaken_reads, appends) if target.grpc_port else ()
    over_http: tuple[Attack, ...] = (http_connections,) if target.http_port else ()
    everybody = (batch_reads, unfinished_frames, long_polls, *over_grpc, *over_http)
    await asyncio.gather(*(each(target) for each in everybody))


async def cheap_questions(target: Target) -> None:
    """q: 200,000 questions for the bookie's space, for a ledger's entries and for TLS that it has not, of each of four
    connections."""
    info = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    info.getBookieInfoRequest.requested = 3
    body = info.SerializeToString()
    questions = (len(body).to_bytes(4) + body, v3_list(STORED), v3_start_tls())
    await asyncio.gather(
        *(many(4, lambda asked=asked: send(target.port, asked * 200_000, takes)) for asked in questions)  # type: ignore[misc]
    )


async def resets(target: Target) -> None:
    """r: gRPC calls that are taken back in the moment in which they begin, from eight connections."""
    head = unseen.HEALTH_CALL

    def call(stream: int) -> bytes:
        number = stream.to_bytes(4)
        return len(head).to_bytes(3) + b"\x01\x04" + number + head + b"\0\0\4\3\0" + number + b"\0\0\0\x08"

    async def reset() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.grpc_port)
        taking = asyncio.create_task(takes(reader, writer))
        try:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            for first in range(1, 1 << 24, 1000):
                writer.write(b"".join(map(call, range(first, first + 1000, 2))))
                await writer.drain()
        finally:
            taking.cancel()
            writer.transport.abort()

    await many(8, reset)


async def crowds(target: Target) -> None:
    """s: connections that come and go as fast as they can, to each port."""
    ports = [port for port in (target.port, target.grpc_port, target.http_port) if port]

    async def leaves(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.drain()

    await asyncio.gather(*(many(64, lambda port=port: send(port, b"\0", leaves)) for port in ports))  # type: ignore[misc]


ATTACKS: Final[dict[str, Attack]] = {
    "a": batch_reads,
    "a-slow": slow_reader,
    "b": explicit_lacs,
    "c": unfinished_frames,
    "d": long_polls,
    "e-append": appends,
    "e-sleep": sleeping_appends,
    "e-read": untaken_reads,
    "e-create": large_ensembles,
    "f": unknown_fields,
    "g": tailing_readers,
    "h-http": http_connections,
    "h-watch": health_watches,
    "i": pending_adds,
    "j": bad_requests,
    "k": silent_connections,
    "l": metadata_headers,
    "m": http_bodies,
    "m-chunks": tiny_chunks,
    "m-headers": tiny_headers,
    "m-queued": queued_requests,
    "m-slashes": slashes,
    "n": many_ledgers,
    "o": huge_counts,
    "p": mixture,
    "q": cheap_questions,
    "r": resets,
    "s": crowds,
    **unseen.ATTACKS,
    **attacks_metadata.ATTACKS,
}
OVER_TCP: Final = ("a", "a-slow", "b", "c", "d", "f", "g", "i", "n", "o", "p", "q", "s")
"""Those that the reference's bookie can be shown too."""


async def _run(name: str, target: Target, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ATTACKS[name](target)


if __name__ == "__main__":
    given, *numbers = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(10)  # strangers have processors of their own, and leave the bookie and its clients theirs
    own, over_grpc, over_http, duration = (float(number) for number in numbers)
    asyncio.run(_run(given, Target(int(own), int(over_grpc), int(over_http)), duration))
