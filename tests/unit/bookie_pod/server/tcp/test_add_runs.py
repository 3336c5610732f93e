"""Long runs of adds of one shape, with all that may break a run: each is stored and answered as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.journal.format import RecordKind
from bookie_protocol.wire import add_runs
from bookie_protocol.wire.v2 import Flag
from tests.support.frames import KEY, OTHER_KEY, entry, v2_add, v2_read, v3_add, v3_read_lac
from tests.support.server_rig import ServerRig, answers

LEDGER = 7
OTHER_LEDGER = 8
FIRST = 200
"""Ids and transaction ids from here to 16,383 have one width."""

Frame = Callable[[int, bytes, bytes, bool], bytes]


def _v2(_: int, stored: bytes, key: bytes, recovery: bool) -> bytes:
    return v2_add(stored, key, Flag.RECOVERY_ADD if recovery else 0)


def _v3(txn: int, stored: bytes, key: bytes, recovery: bool) -> bytes:
    return v3_add(stored, key, txn=txn, recovery=recovery)


VERSIONS = pytest.mark.parametrize("frame", [_v2, _v3], ids=["v2", "v3"])


@dataclass(frozen=True)
class Odd:
    """What is odd about one frame in a long run."""

    ledger: int = LEDGER
    key: bytes = KEY
    recovery: bool = False
    size: int = 20
    entry_id: int | None = None
    lac: int | None = None


_ODD = st.sampled_from(
    [
        Odd(ledger=OTHER_LEDGER),
        Odd(key=OTHER_KEY),
        Odd(recovery=True),
        Odd(size=21),
        Odd(entry_id=-5),
        Odd(entry_id=FIRST),
        Odd(entry_id=1 << 40),
        Odd(lac=1 << 50),
        Odd(lac=-(1 << 63)),
        Odd(lac=FIRST + 2),
    ]
)


@dataclass
class Outcome:
    answers: list[bytes]
    journaled: list[bytes]
    cached: dict[int, dict[int, bytes]]
    lacs: dict[int, int]
    counted: dict[int, tuple[int, int]]


async def _outcome(chunks: list[bytes], count: int) -> Outcome:
    rig = ServerRig()
    conn, transport = rig.connect()
    counted: dict[int, tuple[int, int]] = {}
    account = rig.context.account

    def counting(ledger_id: int, nbytes: int, entries: int) -> None:
        before = counted.get(ledger_id, (0, 0))
        counted[ledger_id] = (before[0] + nbytes, before[1] + entries)
        account(ledger_id, nbytes, entries)

    rig.context.account = counting  # type: ignore[method-assign]
    try:
        for chunk in chunks:
            conn.data_received(chunk)
        async with asyncio.timeout(10):
            while len(transport.frames) < count:
                rig.journal.acknowledge()
                await rig.settle()
        states = rig.ledgers.states
        return Outcome(
            transport.frames,
            [body for batch in rig.journal.batches for body in batch.pieces[1::2]],
            {ledger: dict(rig.storage.active_entries(ledger)) for ledger in states},
            {ledger: state.lac for ledger, state in states.items()},
            counted,
        )
    finally:
        rig.close()


async def _warm(frame: Frame, frames: list[bytes]) -> tuple[Outcome, Outcome]:
    """What comes of the frames in one buffer, and of each in a buffer of its own; both ledgers are hot."""
    warm = [frame(txn, entry(ledger, 0), KEY, False) for txn, ledger in ((1, LEDGER), (2, OTHER_LEDGER))]
    count = len(warm) + len(frames)
    return await _outcome([*warm, b"".join(frames)], count), await _outcome([*warm, *frames], count)


@VERSIONS
@given(
    count=st.integers(add_runs.SHORTEST_RUN - 2, 3 * add_runs.SHORTEST_RUN),
    odd=st.dictionaries(st.integers(0, 3 * add_runs.SHORTEST_RUN), _ODD, max_size=4),
)
async def test_a_long_run_is_handled_like_single_adds(frame: Frame, count: int, odd: dict[int, Odd]) -> None:
    frames = []
    for index in range(count):
        how = odd.get(index, Odd())
        entry_id = FIRST + index if how.entry_id is None else how.entry_id
        stored = entry(how.ledger, entry_id, bytes([index]) * how.size, how.lac)
        frames.append(frame(FIRST + index, stored, how.key, how.recovery))
    together, alone = await _warm(frame, frames)
    together.answers.sort()
    alone.answers.sort()
    assert together == alone


@VERSIONS
async def test_answers_of_a_run_keep_the_order_of_its_adds(frame: Frame) -> None:
    frames = [frame(FIRST + i, entry(LEDGER, FIRST + i), KEY, False) for i in range(100)]
    together, alone = await _warm(frame, frames)
    assert together.answers == alone.answers
    assert together.journaled == alone.journaled


@VERSIONS
async def test_a_run_is_taken_apart_together(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = add_runs.take_add_run

    def watched(data: bytes, start: int, shape: add_runs.RunShape, *limit: int) -> add_runs.AddRun | None:
        run = take(data, start, shape, *limit)
        taken.append(0 if run is None else len(run.entries))
        return run

    monkeypatch.setattr("bookie_pod.server.tcp.ingest.take_add_run", watched)
    ledgers = [LEDGER] * 300 + [OTHER_LEDGER] * 50 + [LEDGER] * (add_runs.SHORTEST_RUN - 1)
    frames = [frame(FIRST + i, entry(ledger, FIRST + i), KEY, False) for i, ledger in enumerate(ledgers)]
    await _warm(frame, frames)
    assert [length for length in taken if length] == [add_runs.LONGEST_RUN, 300 - add_runs.LONGEST_RUN, 50]


@VERSIONS
async def test_mixed_adds_are_looked_at_ever_more_rarely(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    frames = [frame(FIRST + i, entry((LEDGER, OTHER_LEDGER)[i % 2], FIRST + i), KEY, False) for i in range(1000)]

    def none(data: bytes, start: int, shape: add_runs.RunShape, *limit: int) -> None:
        if len(data) > len(frames[0]):
            looks.append(start)

    monkeypatch.setattr("bookie_pod.server.tcp.ingest.take_add_run", none)
    await _warm(frame, frames)
    assert len(looks) == 6  # before frames 0, 32, 96, 224, 480 and 992


@VERSIONS
async def test_an_entry_id_that_the_engine_cannot_store_is_refused_in_a_run_and_alone(frame: Frame) -> None:
    rig = ServerRig()
    try:
        rig.storage.max_entry_id = FIRST + 99
        conn, transport = rig.connect()
        frames = [frame(FIRST + i, entry(LEDGER, FIRST + i), KEY, False) for i in range(200)]
        conn.data_received(frames[0])
        conn.data_received(b"".join(frames))
        conn.data_received(frames[150])
        await answers(rig, transport, 202)
        assert list(rig.storage.entry_ids(LEDGER)) == list(range(FIRST, FIRST + 100))
        assert rig.journal.records.count((RecordKind.ENTRY, LEDGER)) == 101
    finally:
        rig.close()


async def test_what_stands_behind_the_entry_ends_a_run() -> None:
    """Equal lengths, but from one frame on the write flags ask for deferred sync."""
    late = [v3_add(entry(LEDGER, FIRST + i), txn=FIRST + i, sync=False) for i in range(100)]
    assert all(frame.endswith(b"\x28\x01") for frame in late)
    frames = [frame[:-1] + b"\0" if i < 50 else frame for i, frame in enumerate(late)]
    warm = [v3_add(entry(LEDGER, 0))]
    rig = ServerRig()
    conn, _ = rig.connect()
    try:
        conn.data_received(warm[0])
        conn.data_received(b"".join(frames))
        synced = [batch.sync for batch in rig.journal.batches for _ in batch.pieces[::2]]
    finally:
        rig.close()
    assert synced[-100:] == [True] * 50 + [False] * 50


@VERSIONS
@pytest.mark.parametrize("behind", [1, 2, 100])
async def test_adds_behind_what_swapped_the_write_cache_go_into_the_new_half(
    frame: Frame, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of what one read of the socket brought."""
    rig = ServerRig()
    conn, transport = rig.connect()
    frames = [frame(FIRST + i, entry(LEDGER, FIRST + i), KEY, False) for i in range(5 + behind)]
    asks = v2_read(LEDGER, 0, Flag.HIGH_PRIORITY) if frame is _v2 else v3_read_lac(LEDGER)
    monkeypatch.setattr(rig.handlers, "read", lambda *request: rig.storage.flush())
    monkeypatch.setattr(rig.handlers, "read_lac", lambda *request: rig.storage.flush())
    try:
        conn.data_received(frames[0])
        conn.data_received(b"".join(frames[1:5]) + asks + b"".join(frames[5:]))
        await answers(rig, transport, len(frames))
        assert list(rig.storage.active_entries(LEDGER)) == [FIRST + 5 + i for i in range(behind)]
        assert list(rig.storage.entry_ids(LEDGER)) == [FIRST + i for i in range(5 + behind)]
        assert rig.journal.records.count((RecordKind.ENTRY, LEDGER)) == len(frames)
    finally:
        rig.close()


@VERSIONS
@pytest.mark.parametrize("count", [3, add_runs.SHORTEST_RUN + 3])
async def test_what_was_put_into_the_write_cache_is_told_it_to_the_byte(frame: Frame, count: int) -> None:
    """By ledger, in turn; single adds, runs, and those behind a run."""
    stored = [entry(LEDGER, 0), *(entry(LEDGER, FIRST + i, bytes(10)) for i in range(count))]
    stored += [entry(OTHER_LEDGER, each, bytes(each)) for each in range(3)]
    frames = [frame(FIRST + i, each, KEY, False) for i, each in enumerate(stored)]
    outcome = await _outcome([frames[0], b"".join(frames[1:])], len(frames))
    hot = stored[1 : 1 + count]
    assert outcome.counted[LEDGER] == (sum(map(len, hot)), count)
    assert outcome.counted[OTHER_LEDGER] == (sum(map(len, stored[2 + count :])), 2), "the first one went another way"
