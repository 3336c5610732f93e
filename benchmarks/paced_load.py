"""A load of adds and reads on one connection, in version 2 of the protocol: as fast as a window allows, or on a fixed
schedule with the latency of every request.

Latency counts from the moment when a request was due, so a stall is charged to everything that waited for it. Nothing
of a client's work (quorums, verifying) is in it: it is the bookie that is measured. Entries have the digest that the
ledgers of `ledger` name, because bookies look at it.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple, cast

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import OpCode
from tests.support.v2_frames import encode_add_request

KEY: Final = bytes(range(1, 21))
WINDOW: Final = 2000
"""Adds in flight while a bookie is filled; the Java bookie refuses more than 10,000."""
_DIGEST: Final = digest_manager(DigestType.CRC32C, b"")
_TICK_S: Final = 0.001
_ANSWER_S: Final = 60.0


def ledger(ledger_id: int, bookie_id: str, entries: int, entry_bytes: int) -> LedgerMetadata:
    """Metadata of a closed ledger of one bookie."""
    return LedgerMetadata(
        ledger_id,
        1,
        1,
        1,
        {0: (bookie_id,)},
        LedgerState.CLOSED,
        entries - 1,
        entries * entry_bytes,
        _DIGEST.type,
        b"",
    )


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """An entry as a bookie stores it."""
    return _DIGEST.encode(ledger_id, entry_id, entry_id - 1, (entry_id + 1) * len(payload), payload)


class RefusedError(RuntimeError):
    """The bookie refused a request, or closed the connection."""


class Timed(NamedTuple):
    """One request of a schedule; seconds."""

    due: float
    latency: float


class BookieConnection(asyncio.Protocol):
    """Answers come back in any order; every one is matched to its request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._waiting: dict[tuple[int, int, int], Callable[[bytes], None]] = {}
        self._changed = asyncio.Event()
        self._error: RefusedError | None = None

    @classmethod
    async def open(cls, port: int) -> BookieConnection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the bookie closed the connection: {error}")

    def data_received(self, data: bytes) -> None:
        data, start = self._rest + data, 0
        while len(data) - start >= 4:
            end = start + 4 + int.from_bytes(data[start : start + 4])
            if end > len(data):
                break
            self._answered(data[start + 4 : end])
            start = end
        self._rest = data[start:]
        self._changed.set()

    def _answered(self, body: bytes) -> None:
        response = v2.decode_response(body)
        assert isinstance(response, v2.Response)
        done = self._waiting.pop((int(response.opcode), response.ledger_id, response.entry_id), None)
        if response.code != 0:
            self._fail(f"{response.opcode.name} of {response.ledger_id}:{response.entry_id}: code {response.code}")
        elif done is not None:
            done(response.entry)

    def _fail(self, reason: str) -> None:
        self._error = self._error or RefusedError(reason)
        self._changed.set()

    def add(self, stored: bytes, done: Callable[[bytes], None]) -> None:
        """`stored`: what `entry` made. `done` gets nothing."""
        ledger_id, entry_id = int.from_bytes(stored[:8]), int.from_bytes(stored[8:16])
        self._send(OpCode.ADDENTRY, ledger_id, entry_id, encode_add_request(KEY, stored), done)

    def read(self, ledger_id: int, entry_id: int, done: Callable[[bytes], None]) -> None:
        """`done` gets the entry."""
        frame = v2.encode_read_request(ledger_id, entry_id)
        self._send(OpCode.READENTRY, ledger_id, entry_id, frame, done)

    def reads(self, ledger_id: int, entry_id: int) -> bool:
        """Whether this entry is being read: answers could not be told apart."""
        return (int(OpCode.READENTRY), ledger_id, entry_id) in self._waiting

    def _send(self, opcode: int, ledger_id: int, entry_id: int, frame: bytes, done: Callable[[bytes], None]) -> None:
        assert self._transport is not None
        self._waiting[(int(opcode), ledger_id, entry_id)] = done
        self._transport.write(frame)

    async def until(self, at_most: int) -> None:
        """Wait until no more than so many requests are in flight. `RefusedError`, `TimeoutError`."""
        while self._error is None and len(self._waiting) > at_most:
            self._changed.clear()
            async with asyncio.timeout(_ANSWER_S):
                await self._changed.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def fill(port: int, ledger_ids: Sequence[int], entries: int, payload: bytes) -> None:
    """Every ledger gets its first entry, then every ledger its second, ...: their entries lie side by side."""
    connection = await BookieConnection.open(port)
    try:
        for entry_id in range(entries):
            for ledger_id in ledger_ids:
                connection.add(entry(ledger_id, entry_id, payload), _nothing)
                await connection.until(WINDOW)
        await connection.until(0)
    finally:
        connection.close()


async def check(port: int, places: Iterable[tuple[int, int]], payload: bytes) -> int:
    """Read these entries; how many there were. `RefusedError` if one is missing or is another one."""
    connection = await BookieConnection.open(port)
    wrong: list[tuple[int, int]] = []
    count = 0
    try:
        for ledger_id, entry_id in places:
            place, expected = (ledger_id, entry_id), entry(ledger_id, entry_id, payload)
            connection.read(*place, partial(_compare, wrong, place, expected))
            await connection.until(100)
            count += 1
        await connection.until(0)
    finally:
        connection.close()
    if wrong:
        raise RefusedError(f"other bytes than were stored: {wrong[:3]}")
    return count


class PacedLoad:
    """Adds to ledgers of its own and reads of `places` at random, both on a schedule, until `stop`."""

    def __init__(
        self,
        port: int,
        ledger_ids: Sequence[int],
        places: Sequence[tuple[int, int]],
        payload: bytes,
        *,
        adds_per_second: float,
        reads_per_second: float,
        seed: int = 1,
    ) -> None:
        self.adds: list[Timed] = []
        self.reads: list[Timed] = []
        self._port = port
        self._ledger_ids = ledger_ids
        self._places = places
        self._payload = payload
        self._rates = adds_per_second, reads_per_second
        self._random = Random(seed)
        self._added = 0
        self._stopping = False

    async def run(self, seconds: float | None = None) -> None:
        """Until the time is up, or `stop`. Raises what the connection raises."""
        connection = await BookieConnection.open(self._port)
        began, self._stopping = time.perf_counter(), False
        sent = [0, 0]
        try:
            while not self._stopping:
                now = time.perf_counter()
                if seconds is not None and now >= began + seconds:
                    break
                for kind, (rate, send) in enumerate(zip(self._rates, (self._add, self._read), strict=True)):
                    while sent[kind] < (now - began) * rate:
                        send(connection, began + sent[kind] / rate)
                        sent[kind] += 1
                await connection.until(WINDOW)
                await asyncio.sleep(_TICK_S)
            await connection.until(0)
        finally:
            connection.close()

    def stop(self) -> None:
        self._stopping = True

    def _add(self, connection: BookieConnection, due: float) -> None:
        ledger_id = self._ledger_ids[self._added % len(self._ledger_ids)]
        stored = entry(ledger_id, self._added // len(self._ledger_ids), self._payload)
        self._added += 1
        connection.add(stored, lambda _: self.adds.append(Timed(due, time.perf_counter() - due)))

    def _read(self, connection: BookieConnection, due: float) -> None:
        place = self._random.choice(self._places)
        while connection.reads(*place):
            place = self._random.choice(self._places)
        connection.read(*place, lambda _: self.reads.append(Timed(due, time.perf_counter() - due)))


def quantile_ms(found: Iterable[Timed], share: float, since: float = 0.0) -> float | None:
    """A quantile of the latencies of what was due since then, in ms; None: nothing was."""
    ordered = sorted(each.latency for each in found if since <= each.due)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else None


def _compare(wrong: list[tuple[int, int]], place: tuple[int, int], expected: bytes, found: bytes) -> None:
    if found != expected:
        wrong.append(place)


def _nothing(answer: bytes) -> None:
    """An add was acknowledged."""
