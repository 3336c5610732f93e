"""Adds that a client of the same process hands over: stored and answered as if their frames had come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.server.tcp import connection as module
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.context import TcpOptions
from bookie_protocol.errors import V3Status
from bookie_protocol.wire import v3
from bookie_protocol.wire.add_frames import AddFrames
from tests.support.add_frames import add_frames
from tests.support.auth import TwoTokens
from tests.support.frames import KEY, OTHER_KEY, entry, v2_read, v3_add, v3_fence
from tests.support.server_rig import PaperTransport, ServerRig, answers

LEDGER = 7
WARM = v3_add(entry(LEDGER, 0), txn=1)
"""The first add of a ledger, behind which it is hot."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether adds were taken as they are, each time somebody asked."""
    asked: list[bool] = []
    take = module.take_handed_adds

    def watched(conn: Connection, adds: AddFrames) -> bool:
        asked.append(take(conn, adds))
        return asked[-1]

    monkeypatch.setattr(module, "take_handed_adds", watched)
    return asked


@dataclass
class Outcome:
    answers: list[bytes]
    journaled: list[bytes]
    cached: dict[int, bytes]
    lac: int
    counted: list[tuple[int, int, int]]


@asynccontextmanager
async def warm(options: TcpOptions | None = None) -> AsyncIterator[tuple[ServerRig, Connection, PaperTransport]]:
    """A connection to a server where the ledger is hot."""
    rig = ServerRig(options or TcpOptions())
    conn, transport = rig.connect()
    try:
        conn.data_received(WARM)
        await answers(rig, transport, 1)
        yield rig, conn, transport
    finally:
        rig.close()


async def outcome(
    adds: AddFrames, count: int, *, handed: bool, prepare: Callable[[Connection], None] = lambda _: None
) -> Outcome:
    """What comes of the adds behind the warm-up, with `count` answers to both."""
    async with warm() as (rig, conn, transport):
        counted: list[tuple[int, int, int]] = []
        account = rig.context.account

        def counting(ledger_id: int, nbytes: int, entries: int) -> None:
            counted.append((ledger_id, nbytes, entries))
            account(ledger_id, nbytes, entries)

        rig.context.account = counting  # type: ignore[method-assign]
        prepare(conn)
        if handed:
            conn.adds_received(adds)
        else:
            conn.data_received(adds.frames)
        found = await answers(rig, transport, count)
        return Outcome(
            found,
            [body for batch in rig.journal.batches for body in batch.pieces[1::2]],
            dict(rig.storage.active_entries(LEDGER)),
            rig.ledgers.states[LEDGER].lac,
            counted,
        )


@given(
    bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=80)
    | st.integers(1, 80).map(lambda count: [b"x" * 20] * count),
    first=st.integers(1, 200),
    lac=st.integers(-3, 300),
)
async def test_they_are_handled_like_their_frames(bodies: list[bytes], first: int, lac: int) -> None:
    adds = add_frames(LEDGER, KEY, first, bodies, lac=lac, txn=100)
    handed = await outcome(adds, len(bodies) + 1, handed=True)
    assert handed == await outcome(adds, len(bodies) + 1, handed=False)
    assert len(handed.cached) == len(bodies) + 1


async def test_hot_ones_are_taken_as_they_are(taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    adds = add_frames(LEDGER, KEY, 1, [b"one", b"two"])
    monkeypatch.setattr(AddFrames, "frames", property(lambda _: pytest.fail("frames were asked for")))
    found = await outcome(adds, 3, handed=True)
    assert taken == [True]
    assert adds.common is not None
    assert found.journaled[-2:] == adds.entries(adds.common)


def fenced(conn: Connection) -> None:
    conn.data_received(v3_fence(LEDGER, txn=2))


async def test_of_a_fenced_ledger_they_are_refused(taken: list[bool]) -> None:
    adds = add_frames(LEDGER, KEY, 1, [b"one", b"two"], txn=3)
    handed = await outcome(adds, 4, handed=True, prepare=fenced)
    assert taken == [False]
    assert handed == await outcome(adds, 4, handed=False, prepare=fenced)
    statuses = sorted(v3.parse_response(frame[4:]).status for frame in handed.answers)
    assert statuses == [V3Status.EOK, V3Status.EOK, V3Status.EFENCED, V3Status.EFENCED]
    assert [*handed.cached] == [0]


@pytest.mark.parametrize(
    ("ledger", "key"), [(LEDGER, OTHER_KEY), (LEDGER + 1, KEY)], ids=["another key", "a ledger that is not hot"]
)
async def test_what_needs_a_closer_look_is_decided_by_the_frames(taken: list[bool], ledger: int, key: bytes) -> None:
    adds = add_frames(ledger, key, 1, [b"one", b"two"], txn=3)
    handed = await outcome(adds, 3, handed=True)
    assert taken == [False]
    assert handed == await outcome(adds, 3, handed=False)


@pytest.mark.parametrize(("last", "taken_so"), [(2, True), (1, False)])
async def test_ids_that_the_engine_cannot_store_are_decided_by_the_frames(
    taken: list[bool], last: int, taken_so: bool
) -> None:
    adds = add_frames(LEDGER, KEY, 1, [b"one", b"two"], txn=3)

    def limited(conn: Connection) -> None:
        conn.context.storage.max_entry_id = last

    handed = await outcome(adds, 3, handed=True, prepare=limited)
    assert taken == [taken_so]
    assert [*handed.cached] == [*range(last + 1)]


async def test_one_that_is_too_long_for_a_frame_closes_the_connection(taken: list[bool]) -> None:
    async with warm(TcpOptions(max_frame_bytes=500)) as (rig, conn, transport):
        conn.adds_received(add_frames(LEDGER, KEY, 1, [b"short", bytes(600)]))
        assert taken == [False]
        assert transport.closing
        assert 2 not in rig.storage.active_entries(LEDGER)


async def test_they_wait_with_the_connection_that_reads_nothing_now(taken: list[bool]) -> None:
    async with warm() as (rig, conn, transport):
        conn.stall(Stall.READS_LIMIT)
        conn.adds_received(add_frames(LEDGER, KEY, 1, [b"one"], txn=2))
        conn.adds_received(add_frames(LEDGER, KEY, 2, [b"two"], txn=3))
        await rig.settle()
        assert [*rig.storage.active_entries(LEDGER)] == [0]
        conn.unstall(Stall.READS_LIMIT)
        found = await answers(rig, transport, 3)
        assert taken == [False, False]
        assert [v3.parse_response(frame[4:]).header.txnId for frame in found] == [1, 2, 3]


async def test_behind_a_part_of_a_frame_they_wait_for_the_rest_of_it(taken: list[bool]) -> None:
    frame = v3_add(entry(LEDGER, 1), txn=2)
    async with warm() as (rig, conn, _):
        conn.data_received(frame[:10])
        conn.adds_received(add_frames(LEDGER, KEY, 2, [b"two"], txn=3))
        assert taken == [False]
        assert 2 not in rig.storage.active_entries(LEDGER)


async def test_while_the_journal_has_no_room_they_are_parked_in_their_order(taken: list[bool]) -> None:
    async with warm() as (rig, conn, transport):
        rig.journal.full = True
        rig.admission.refresh()
        conn.adds_received(add_frames(LEDGER, KEY, 1, [b"one", b"two"], txn=2))
        rig.journal.full = False
        rig.admission.hot = True  # as behind an add that was admitted; those that wait still go first
        conn.adds_received(add_frames(LEDGER, KEY, 3, [b"three"], txn=4))
        assert [*rig.storage.active_entries(LEDGER)] == [0]
        rig.admission.refresh()
        found = await answers(rig, transport, 4)
        assert taken == [False, False]
        assert [v3.parse_response(frame[4:]).header.txnId for frame in found] == [1, 2, 3, 4]
        assert [*rig.storage.active_entries(LEDGER)] == [0, 1, 2, 3]


async def test_a_defect_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("planted")

    monkeypatch.setattr(module, "take_handed_adds", broken)
    async with warm() as (_, conn, transport):
        conn.adds_received(add_frames(LEDGER, KEY, 1, [b"one"]))
        assert transport.closing


@pytest.mark.parametrize("who", ["a stranger", "one of version 2"])
async def test_of_who_may_not_send_them_they_are_not_taken_as_they_are(taken: list[bool], who: str) -> None:
    async with warm() as (rig, _, _):
        rig.context.auth = TwoTokens() if who == "a stranger" else None
        conn, transport = rig.connect()
        if who == "one of version 2":
            conn.data_received(v2_read(LEDGER, 0))
        conn.adds_received(add_frames(LEDGER, KEY, 1, [b"one"], txn=2))
        assert taken == [False]
        assert 1 not in rig.storage.active_entries(LEDGER)
        if who == "a stranger":
            assert [v3.parse_response(frame[4:]).status for frame in transport.frames] == [V3Status.EUA]
        else:
            assert transport.closing
