"""What is counted of work on a lane: before it is done, when it turns out larger, and when it is answered.

One read, and many plain ones together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.ledgers.state import LedgerState
from bookie_pod.server.tcp import lane_reads
from bookie_pod.server.tcp.lane_reads import HEADER_BYTES, LENGTH_BYTES, WORTH_BYTES
from bookie_pod.server.tcp.request_log import RequestLog
from bookie_pod.server.tcp.requests import Reply
from bookie_protocol.errors import BookieUnavailable, NoSuchEntry, TooManyRequests


class Lanes:
    """Does at once what it is given, unless it is full."""

    def __init__(self) -> None:
        self.full = False
        self.given: list[int] = []

    def run(self, ledger_id: int, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        if self.full:
            raise TooManyRequests("full")
        self.given.append(ledger_id)
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


class Client(Reply):
    """Has so much room, and writes down what is counted."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.log: list[tuple[str, int]] = []
        self.is_gone = self.waits = False
        self.later: list[Callable[[], None]] = []

    @property
    def gone(self) -> bool:
        return self.is_gone

    @property
    def must_wait(self) -> bool:
        return self.waits

    def take(self, nbytes: int) -> bool:
        if nbytes > self.room:
            return False
        if nbytes:
            self.log.append(("taken", nbytes))
        self.room -= nbytes
        return True

    def making(self, nbytes: int) -> None:
        self.log.append(("making", nbytes))

    def made(self, nbytes: int) -> None:
        self.log.append(("made", nbytes))

    def postpone(self, again: Callable[[], None], nbytes: int) -> None:
        self.log.append(("postponed", nbytes))
        self.later.append(again)


class Work:
    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.told: list[tuple[Any, type[BaseException] | None]] = []

    def __call__(self) -> Any:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def done(self, result: Any, error: BaseException | None) -> None:
        self.told.append((result, None if error is None else type(error)))


def run(work: Work, client: Client, most: int = 0, lanes: Lanes | None = None) -> None:
    its: Any = lanes or Lanes()
    lane_reads.run(its, 7, work, work.done, client, most)


def entry_of(nbytes: int) -> bytes:
    """Whose answer has so many bytes."""
    return bytes(nbytes - HEADER_BYTES)


@pytest.mark.parametrize(
    ("result", "nbytes"),
    [
        (entry_of(5000), 5000),
        ((entry_of(5000), 3), 5000),
        ([bytes(3000), bytes(2000)], HEADER_BYTES + 5000 + 2 * LENGTH_BYTES),
        (17, 0),
        ((None, entry_of(5000)), 0),
    ],
    ids=["an entry", "an entry and its LAC", "entries", "no entry", "none"],
)
def test_what_an_answer_takes(result: Any, nbytes: int) -> None:
    client, work = Client(), Work(result)
    run(work, client)
    assert client.log == [("taken", nbytes), ("made", nbytes)] * bool(nbytes)
    assert work.told == [(result, None)]


@pytest.mark.parametrize("nbytes", [WORTH_BYTES - 1, WORTH_BYTES])
def test_little_is_not_counted(nbytes: int) -> None:
    client = Client()
    run(Work(entry_of(nbytes)), client)
    assert client.log == ([] if nbytes < WORTH_BYTES else [("taken", nbytes), ("made", nbytes)])
    known = Client()
    run(Work(entry_of(200)), known, nbytes)
    assert known.log == ([] if nbytes < WORTH_BYTES else [("taken", nbytes), ("making", -nbytes)])


@pytest.mark.parametrize(
    ("nbytes", "log"),
    [
        (6000, [("taken", 6000), ("made", 6000)]),
        (7000, [("taken", 6000), ("taken", 1000), ("made", 7000)]),
        (5000, [("taken", 6000), ("making", -1000), ("made", 5000)]),
    ],
)
def test_what_is_known_is_taken_before_and_the_rest_then(nbytes: int, log: list[tuple[str, int]]) -> None:
    client = Client()
    run(Work(entry_of(nbytes)), client, 6000)
    assert client.log == log


def test_what_turns_out_larger_than_there_is_room_for_is_read_again() -> None:
    lanes, client, work = Lanes(), Client(room=4999), Work(entry_of(5000), entry_of(5000))
    run(work, client, lanes=lanes)
    assert (client.log, work.told) == ([("postponed", 5000)], [])
    client.later.pop()()  # so many bytes were taken for it
    assert client.log == [("postponed", 5000), ("made", 5000)]
    assert (work.told, lanes.given) == ([(entry_of(5000), None)], [7, 7])


def test_of_what_was_taken_before_nothing_is_kept_meanwhile() -> None:
    client, work = Client(room=6500), Work(entry_of(7000))
    run(work, client, 6000)
    assert client.log == [("taken", 6000), ("made", 6000), ("postponed", 7000)]


@pytest.mark.parametrize("how", ["it must wait", "there is no room"])
def test_what_cannot_be_held_is_not_begun(how: str) -> None:
    client, work = Client(room=5999 if how == "there is no room" else 10_000), Work(entry_of(6000))
    client.waits = how == "it must wait"
    run(work, client, 6000)
    assert (client.log, work.told, len(work.results)) == ([("postponed", 6000)], [], 1)


def test_for_whom_is_gone_nothing_is_done() -> None:
    client, work = Client(), Work(entry_of(6000))
    client.is_gone = True
    run(work, client, 6000)
    assert (client.log, work.told, len(work.results)) == ([], [(None, BookieUnavailable)], 1)


def test_what_fails_holds_nothing() -> None:
    client, work = Client(), Work(NoSuchEntry("none"))
    run(work, client, 6000)
    assert client.log == [("taken", 6000), ("made", 6000)]
    assert work.told == [(None, NoSuchEntry)]


def test_what_finds_no_place_when_its_turn_has_come_is_told_and_holds_nothing() -> None:
    lanes, client, work = Lanes(), Client(room=0), Work(entry_of(6000))
    run(work, client, 6000, lanes)
    lanes.full = True
    client.later.pop()()
    assert client.log == [("postponed", 6000), ("made", 6000)]
    assert work.told == [(None, TooManyRequests)]


def test_who_cannot_be_answered_holds_nothing_either() -> None:
    client, work = Client(), Work(entry_of(6000))

    def broken(result: Any, error: BaseException | None) -> None:
        raise ZeroDivisionError

    work.done = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        run(work, client)
    assert client.log == [("taken", 6000), ("made", 6000)]


def test_what_finds_no_place_at_once_is_refused() -> None:
    lanes = Lanes()
    lanes.full = True
    with pytest.raises(TooManyRequests):
        run(Work(), Client(), lanes=lanes)


# --- plain reads together ---------------------------------------------------------------------------------------


class Asker:
    """The part of a connection that plain reads need."""

    def __init__(self) -> None:
        self.closed = self.must_wait = False
        self.share = SimpleNamespace(make=lambda nbytes: self.log.append(("making", nbytes)))
        self.log: list[tuple[str, int]] = []
        self.sent: list[bytes] = []
        self.finished: list[tuple[int, int]] = []
        self.later: list[Callable[[], None]] = []
        self.counts: list[tuple[str, int, int]] = []
        metrics = SimpleNamespace(
            reads_done=lambda entries, nbytes, ms: self.counts.append(("read", entries, nbytes)),
            read_done=lambda kind, ms, success: self.counts.append((kind, -1, int(success))),
            read_rejected=lambda: self.counts.append(("rejected", 1, 0)),
        )
        loop = SimpleNamespace(call_soon_threadsafe=lambda call, *args: call(*args))
        self.context = SimpleNamespace(metrics=metrics, loop=loop, request_log=RequestLog(0))
        self.peer = "192.0.2.1:40000"

    def made(self, nbytes: int) -> None:
        self.log.append(("made", nbytes))

    def postpone(self, again: Callable[[], None]) -> None:
        self.later.append(again)

    def read_finished(self, reserved: int, size: int) -> None:
        self.finished.append((reserved, size))

    def send(self, answer: bytes) -> None:
        self.sent.append(answer)


class RunLanes(Lanes):
    def __init__(self, room: int = 100) -> None:
        super().__init__()
        self.left = room
        self.wanted: list[int] = []

    def room(self, ledger_id: int, wanted: int) -> int:
        return min(self.left, wanted)

    def run(  # type: ignore[override]
        self, ledger_id: int, work: Callable[[], Any], done: Callable[[Any, Any], None], reads: int
    ) -> None:
        self.wanted.append(reads)
        super().run(ledger_id, work, done)


def dialect() -> lane_reads.ReadDialect:
    return lane_reads.ReadDialect(
        lambda echo, entry, state: (echo, entry),
        lambda echo, error: echo + type(error).__name__.encode(),
        False,
        lambda echo: None,
    )


def reads(
    asker: Asker, found: list[bytes | Exception], lanes: RunLanes | None = None, on_read: Callable[[int], None] = abs
) -> list[list[int]]:
    """Begin reads of entries 0, 1, ...; which entries the storage was asked for, each time."""
    asked: list[list[int]] = []

    def read_each(ledger_id: int, entry_ids: Sequence[int]) -> Iterator[bytes | Exception]:
        asked.append(list(entry_ids))
        for entry_id in entry_ids:
            on_read(entry_id)
            yield found[entry_id]

    conn: Any = asker
    its: Any = lanes or RunLanes()
    plain = [(each, b"<%d>" % each, 100 + each) for each in range(len(found))]
    lane_reads.LaneReads(conn, its, read_each, dialect(), LedgerState(7, b"", 0), plain).begin()
    return asked


def test_each_read_has_its_answer_and_all_leave_together() -> None:
    asker = Asker()
    asked = reads(asker, [b"one", NoSuchEntry("none"), b"three", TooManyRequests("full")])
    assert asked == [[0, 1, 2, 3]]
    assert asker.sent == [b"<0>one<1>NoSuchEntry<2>three<3>TooManyRequests"]
    assert asker.finished == [(100, 3), (101, 0), (102, 5), (103, 0)]
    assert asker.counts == [("read", -1, 0), ("read", -1, 0), ("rejected", 1, 0), ("read", 2, 8)]
    assert (asker.log, asker.later) == ([], [])


@pytest.mark.parametrize(("size", "sends"), [(lane_reads.PIECE_BYTES // 2, 2), (lane_reads.PIECE_BYTES // 2 - 1, 1)])
def test_answers_are_joined_up_to_so_many_bytes(size: int, sends: int) -> None:
    asker = Asker()
    reads(asker, [bytes(size), bytes(size), b"end"])
    assert len(asker.sent) == sends
    assert b"".join(asker.sent) == b"<0>" + bytes(size) + b"<1>" + bytes(size) + b"<2>end"


def test_what_is_read_counts_once_it_is_worth_it() -> None:
    asker = Asker()
    half = WORTH_BYTES // 2
    reads(asker, [bytes(half), bytes(half), NoSuchEntry("none"), bytes(WORTH_BYTES - 1)])
    assert asker.log == [("making", WORTH_BYTES), ("made", WORTH_BYTES)]


def test_where_there_is_no_room_the_rest_is_put_aside_and_begun_later() -> None:
    asker = Asker()

    def fills_up(entry_id: int) -> None:
        asker.must_wait = entry_id == 1

    asked = reads(asker, [b"0", b"1", b"2", b"3"], on_read=fills_up)
    assert (asker.sent, len(asker.later)) == ([b"<0>0<1>1"], 1)
    asker.must_wait = False
    asker.later.pop()()
    assert asker.sent == [b"<0>0<1>1", b"<2>2<3>3"]
    assert (asked, asker.later) == ([[0, 1, 2, 3], [2, 3]], [])


def test_for_a_client_that_goes_meanwhile_no_more_is_read() -> None:
    asker = Asker()
    read: list[int] = []

    def goes(entry_id: int) -> None:
        read.append(entry_id)
        asker.closed = True

    reads(asker, [b"0", b"1", b"2"], on_read=goes)
    assert (read, asker.finished) == ([0], [(100, 1), (101, 0), (102, 0)])


def test_for_those_the_lane_has_no_place_for_nothing_is_read() -> None:
    asker, lanes = Asker(), RunLanes(room=2)
    asked = reads(asker, [b"0", b"1", b"2"], lanes)
    assert (asked, lanes.wanted) == ([[0, 1]], [2])
    assert asker.sent == [b"<0>0<1>1", b"<2>TooManyRequests"]
    assert asker.finished == [(100, 1), (101, 1), (102, 0)]
    full, none = Asker(), RunLanes(room=0)
    assert reads(full, [b"0"], none) == []
    assert (full.sent, none.wanted) == ([b"<0>TooManyRequests"], [])


def test_a_defect_on_the_lane_is_told_all_who_wait() -> None:
    asker = Asker()

    def breaks(entry_id: int) -> None:
        if entry_id == 1:
            raise ZeroDivisionError

    reads(asker, [bytes(WORTH_BYTES), b"1"], on_read=breaks)
    assert asker.sent == [b"<0>ZeroDivisionError<1>ZeroDivisionError"]
    assert asker.log == [("making", WORTH_BYTES), ("made", WORTH_BYTES)]
    assert asker.later == []


@pytest.mark.parametrize(("long_s", "sends"), [(0.0, 3), (3600.0, 1)])
def test_a_slow_disk_holds_up_no_answer_that_is_there(
    monkeypatch: pytest.MonkeyPatch, long_s: float, sends: int
) -> None:
    monkeypatch.setattr(lane_reads, "LONG_S", long_s)
    asker = Asker()
    reads(asker, [bytes(WORTH_BYTES), b"", bytes(WORTH_BYTES)])
    assert len(asker.sent) == sends
    made = [("making", WORTH_BYTES), ("made", WORTH_BYTES)]
    assert asker.log == (made * 2 if sends > 1 else [made[0], made[0], ("made", 2 * WORTH_BYTES)])
