"""Answers of one connection: which writes they make, what counts as held, and a client that does not take them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie_pod.server.tcp.answers import JOIN_MAX
from bookie_pod.server.tcp.connection import Connection
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig
from tests.support.virtual_loop import on_a_virtual_clock


class Noted(PaperTransport):
    """Tells its writes by their sizes; what is handed over piece by piece in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int | list[int]] = []

    def write(self, data: bytes) -> None:
        self.sizes.append(len(data))
        super().write(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.sizes.append([len(piece) for piece in pieces])
        super().writelines(pieces)


def connected(rig: ServerRig) -> tuple[Connection, Noted]:
    conn, transport = Connection(rig.clients), Noted()
    conn.connection_made(transport)  # type: ignore[arg-type]
    return conn, transport


def sent(conn: Connection, sizes: Sequence[int]) -> bytes:
    """Answers of these sizes, each of another byte."""
    answers = [bytes([place + 1]) * size for place, size in enumerate(sizes)]
    for answer in answers:
        conn.wire.send(answer)
    return b"".join(answers)


@pytest.mark.parametrize(
    ("sizes", "writes"),
    [
        ([10], [10]),
        ([10, 20], [30]),
        ([1, JOIN_MAX - 1], [JOIN_MAX]),
        ([2, JOIN_MAX - 1], [[2, JOIN_MAX - 1]]),
        ([JOIN_MAX + 1], [JOIN_MAX + 1]),
        ([], []),
    ],
)
async def test_answers_of_one_turn_are_one_write(
    rig: ServerRig, sizes: list[int], writes: list[int | list[int]]
) -> None:
    conn, transport = connected(rig)
    content = sent(conn, sizes)
    assert transport.sizes == []
    await asyncio.sleep(0)
    assert transport.sizes == writes
    assert b"".join(transport.writes) == content
    conn.wire.send(b"next")
    await asyncio.sleep(0)
    assert transport.sizes == [*writes, 4]


@pytest.mark.parametrize("more", [0, 1])
async def test_what_is_more_than_the_transport_takes_is_not_gathered(more: int) -> None:
    rig = ServerRig(production(write_buffer_high_water_mark_bytes=1000, write_buffer_low_water_mark_bytes=500))
    conn, transport = connected(rig)
    sent(conn, [600, 400 + more])
    assert transport.sizes == ([1001] if more else [])
    await asyncio.sleep(0)
    assert transport.sizes == [1000 + more]
    rig.close()


async def test_of_a_connection_that_breaks_while_it_is_written_to_nothing_is_kept(rig: ServerRig) -> None:
    conn, transport = connected(rig)

    class Breaks(Noted):
        def write(self, data: bytes) -> None:
            super().write(data)
            conn.pause_writing()
            conn.connection_lost(None)

    conn.wire.answers.transport = transport = Breaks()  # type: ignore[assignment]
    sent(conn, [JOIN_MAX + 1])
    await asyncio.sleep(0)
    assert transport.sizes == [JOIN_MAX + 1]
    assert conn.wire.answers.held(0.0) == 0
    assert rig.context.memory.total == 0


async def test_nothing_is_written_to_a_transport_that_closes(rig: ServerRig) -> None:
    conn, transport = connected(rig)
    sent(conn, [10])
    transport.closing = True
    await asyncio.sleep(0)
    conn.connection_lost(None)
    sent(conn, [10])
    await asyncio.sleep(0)
    assert transport.sizes == []
    assert conn.wire.answers.held(0.0) == 0


@pytest.mark.parametrize(("size", "held"), [(JOIN_MAX, 1), (JOIN_MAX + 1, JOIN_MAX + 1)])
async def test_of_a_large_answer_memory_holds_all_until_the_last_byte_is_taken(
    rig: ServerRig, size: int, held: int
) -> None:
    conn, transport = connected(rig)
    for taken in (False, True):
        sent(conn, [size])
        await asyncio.sleep(0)
        transport.unsent = 1
        assert conn.wire.answers.held(0.0) == held
        transport.unsent = 0
        assert conn.wire.answers.held(0.0) == 0, taken


async def test_a_client_is_stuck_since_it_took_something_last(rig: ServerRig) -> None:
    conn, transport = connected(rig)
    answers = conn.wire.answers
    sent(conn, [100])
    await asyncio.sleep(0)
    transport.unsent = 100
    since = []
    for now, more, unsent in ((1.0, 0, 100), (2.0, 0, 100), (3.0, 50, 150), (4.0, 0, 51), (5.0, 0, 50), (6.0, 0, 50)):
        sent(conn, [more] * bool(more))
        await asyncio.sleep(0)
        transport.unsent = unsent
        answers.held(now)
        since.append(answers.stuck_since)
    # What was written up to the last time that it had taken all it was waited for is waited for next.
    assert since == [1.0, 1.0, 1.0, 1.0, 5.0, 5.0]
    transport.unsent = 0
    answers.held(7.0)
    assert answers.stuck_since is None


def slow_client(timeout_ms: int, steps: Sequence[tuple[float, str]], *, close: bool = True) -> tuple[bool, list[bytes]]:
    """Whether a client was cut off, and what it was sent, when it did these things after so many seconds each; on a
    virtual clock."""

    async def main() -> tuple[bool, list[bytes]]:
        rig = ServerRig(
            production(response_backpressure_timeout_ms=timeout_ms, close_channel_on_response_timeout=close)
        )
        conn, transport = connected(rig)
        for seconds, step in steps:
            await asyncio.sleep(seconds)
            if step == "full":
                conn.pause_writing()
            elif step == "drained":
                conn.resume_writing()
            elif step == "gone":
                conn.connection_lost(None)
            else:
                conn.wire.send(step.encode())
        await asyncio.sleep(1)
        rig.close()
        return transport.aborted, transport.writes

    return on_a_virtual_clock(main())


@pytest.mark.parametrize(
    ("timeout_ms", "steps", "aborted"),
    [
        (500, [(0, "full"), (0.4, "drained")], False),
        (500, [(0, "full"), (0.4, "drained"), (0.05, "full"), (0.2, "drained")], False),
        (500, [(0, "full"), (0.4, "full"), (0.05, "a"), (0.1, "drained")], True),
        (500, [(0, "full"), (0.1, "gone")], False),
        (0, [(0, "full")], True),
        (-1, [(0, "full"), (3600, "a")], False),
    ],
)
def test_whoever_takes_nothing_for_too_long_is_cut_off(
    timeout_ms: int, steps: list[tuple[float, str]], aborted: bool
) -> None:
    assert slow_client(timeout_ms, steps)[0] == aborted


def test_or_what_it_does_not_take_is_dropped_until_it_takes_some() -> None:
    steps = [(0, "full"), (0.4, "early"), (0.2, "late"), (0.1, "drained"), (0, "served"), (0, "full"), (0.4, "again")]
    aborted, writes = slow_client(500, steps, close=False)
    assert (aborted, writes) == (False, [b"early", b"served", b"again"])
