"""Random and mutated frames at a live bookie: it answers or closes, never dies, and serves everybody else all along."""

from __future__ import annotations

import asyncio
import random
import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire import v2, v3
from tests.fuzz.damaged_frames import FRAMES, damaged
from tests.support.frames import entry, v2_add, v2_code, v2_read
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.until import until

SETTINGS = {"maxReadsInProgressLimit": "50", "maxAddsInProgressLimit": "200"}
WITNESS = 1_000_000
"""A ledger that the fuzz never names."""
FRAME_BYTES = 5 * 1024 * 1024


def is_an_answer(frame: bytes) -> bool:
    """Of either version: a damaged version byte 10 comes back as the first byte of a version 2 answer."""
    for parse in (v3.parse_response, v2.decode_response):
        try:
            parse(frame[4:])
        except ProtocolViolation:
            continue
        return True
    return False


async def bombard(bookie: ServedBookie, rng: random.Random, frames: int) -> None:
    """One connection that sends damaged frames in pieces of any size; what comes back has to be answers."""
    client = await RawClient.connect(bookie.port)
    stream = b"".join(damaged(rng, rng.choice(FRAMES)) for _ in range(frames))

    async def read() -> None:
        try:
            while True:
                assert is_an_answer(await client.frame(2))
        except (EOFError, TimeoutError):
            return

    reading = asyncio.create_task(read())
    while stream and not reading.done():
        cut = rng.choice((1, 3, 17, 200, 4096, 70_000))
        client.send(stream[:cut])
        stream = stream[cut:]
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    if rng.random() < 0.5:
        client.writer.transport.abort()
    else:
        with suppress(OSError):  # the bookie has closed it
            client.writer.write_eof()
    await reading
    await client.close()


async def serves(bookie: ServedBookie, entry_id: int) -> None:
    async with await RawClient.connect(bookie.port) as client:
        assert v2_code(await client.ask(v2_add(entry(WITNESS, entry_id)))) == 0
        assert v2_code(await client.ask(v2_read(WITNESS, entry_id))) == 0


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_frames(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bookie = ServedBookie(tmp_path, SETTINGS)
    await bookie.start()
    unexpected: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unexpected.append(context))
    with capture_logs() as logs:
        for round_number in range(5):
            await asyncio.gather(*(bombard(bookie, rng, 40) for _ in range(8)), serves(bookie, round_number))
    assert [line for line in logs if "unexpected" in line["event"] or line["log_level"] == "error"] == []
    context = bookie.server.context
    await until(lambda: not bookie.server.clients.connections and not context.busy)
    assert context.reads_in_progress.count == 0
    assert context.admission.parked_adds == 0
    await bookie.checkpoint()
    # ... and the disk is one that the next process starts from.
    await bookie.crash()
    await bookie.start()
    async with await RawClient.connect(bookie.port) as client:
        for entry_id in range(5):
            assert v2_code(await client.ask(v2_read(WITNESS, entry_id))) == 0
    await bookie.stop()
    assert unexpected == []
    assert bookie.failures == []


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with ServedBookie(tmp_path) as bookie:
        for _ in range(150):
            client = await RawClient.connect(bookie.port)
            client.send(rng.randbytes(rng.randrange(1, 400)))
            client.writer.write_eof()
            try:
                while True:
                    assert is_an_answer(await client.frame(2))
            except EOFError:
                pass
            await client.close()
        await serves(bookie, 0)


@pytest.mark.parametrize("length", [0, 1, 3, 2**31 - 1, 2**31, 2**32 - 1, FRAME_BYTES + 128 - 3])
@pytest.mark.parametrize("after", [b"", v2_add(entry(1, 0))], ids=["first", "after an add"])
async def test_lengths_that_no_frame_has(tmp_path: Path, length: int, after: bytes) -> None:
    settings = {"nettyMaxFrameSizeBytes": str(FRAME_BYTES)}
    async with ServedBookie(tmp_path, settings) as bookie, await RawClient.connect(bookie.port) as client:
        client.send(after + struct.pack(">I", length) + bytes(min(length, 100)))
        if after:
            # What came before the frame that closes it may or may not be answered first.
            with pytest.raises(EOFError):
                for _ in range(2):
                    await client.frame(5)
        else:
            assert await client.closed()
        await serves(bookie, 0)
        if after:
            async with await RawClient.connect(bookie.port) as other:
                assert v2_code(await other.ask(v2_read(1, 0))) == 0


async def test_half_a_frame_then_silence(tmp_path: Path) -> None:
    async with ServedBookie(tmp_path) as bookie:
        frame = v2_add(entry(1, 0, bytes(1000)))
        silent = []
        for size in (1, 3, 4, 5, 30, 500, len(frame) - 1):
            client = await RawClient.connect(bookie.port)
            client.send(frame[:size])
            silent.append((client, size))
        await serves(bookie, 0)
        assert len(bookie.server.clients.connections) >= len(silent)
        for client, size in silent:
            client.send(frame[size:])
            assert v2_code(await client.frame()) == 0
            await client.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_thousand_idle_connections(tmp_path: Path, many_files: None) -> None:
    async with ServedBookie(tmp_path) as bookie:
        idle = [await RawClient.connect(bookie.port) for _ in range(1000)]
        for number, client in enumerate(idle):
            if number % 3 == 0:
                client.send(b"\x00\x00")  # the begin of a frame
        await until(lambda: len(bookie.server.clients.connections) == 1000)
        async with await RawClient.connect(bookie.port) as client:
            client.send(*(v2_add(entry(1, e)) for e in range(2000)))
            for _ in range(2000):
                assert v2_code(await client.frame()) == 0
        for client in idle:
            client.writer.transport.abort()
        await until(lambda: not bookie.server.clients.connections)
