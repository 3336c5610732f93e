"""Adds that wait for room: order, deadlines, bounds, and that each gets exactly one answer."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from bookie_pod.server.tcp import parked_adds
from bookie_pod.server.tcp.parked_adds import ParkedAdds
from bookie_pod.server.tcp.requests import AddRequest, Reply
from bookie_protocol.errors import BookieReadOnly, TooManyRequests
from tests.support.frames import KEY, entry
from tests.support.server_rig import HeldJournal, ServerRig
from tests.support.until import until
from tests.support.virtual_loop import on_a_virtual_clock


class Told(Reply):
    """What an add was answered; None if it was admitted."""

    def __init__(self, name: tuple[int, int], log: list[tuple[tuple[int, int], type[BaseException] | None]]) -> None:
        self.name = name
        self.log = log

    def error(self, error: BaseException) -> None:
        self.log.append((self.name, type(error)))


class Parking:
    """`ParkedAdds` over a rig with two directories and two journals; admitting only writes down."""

    def __init__(self, rig: ServerRig, *, adds_max: int = 1000, timeout_ms: int = 60_000) -> None:
        self.rig = rig
        self.log: list[tuple[tuple[int, int], type[BaseException] | None]] = []
        self.stops: list[bool] = []
        self.waits: list[tuple[int, float, bool, bool]] = []
        self.submitted = self.held = 0
        self.is_short = False
        self.parked = ParkedAdds(
            rig.admission,
            asyncio.get_running_loop(),
            adds_max=adds_max,
            timeout_ms=timeout_ms,
            admit=lambda request, reply: self.log.append(((request.ledger_id, request.entry_id), None)),
            refuse=lambda error, reply: reply.error(error),
            waited=lambda *told: self.waits.append(told),
            on_change=self.stops.append,
            on_admitted=self._submit,
            hold=self._hold,
            is_short=lambda: self.is_short,
        )

    def _submit(self) -> None:
        self.submitted += 1

    def _hold(self, nbytes: int) -> None:
        self.held += nbytes

    def park(self, ledger_id: int, entry_id: int, size: int = 10, *, priority: bool = False) -> None:
        stored = entry(ledger_id, entry_id, bytes(size))
        request = AddRequest(ledger_id, entry_id, -1, KEY, stored, high_priority=priority)
        self.parked.park(request, Told((ledger_id, entry_id), self.log))

    @property
    def admitted(self) -> list[tuple[int, int]]:
        return [name for name, error in self.log if error is None]


def two_of_each() -> ServerRig:
    return ServerRig(journals=[HeldJournal(), HeldJournal()], half_bytes=4096, directories=2)


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = two_of_each()
    yield made
    made.close()


def fill(rig: ServerRig, ledger_id: int) -> None:
    rig.storage.active_entries(ledger_id)[0] = bytes(5000)
    rig.storage.account(ledger_id, 5000, 1)
    rig.admission.filled(ledger_id)


async def test_room_admits_everything_in_order(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig)
    for entry_id in range(3):
        parking.park(2, entry_id)
        parking.park(4, entry_id)
    assert len(parking.parked) == rig.admission.parked_adds == 6
    assert parking.held == rig.admission.parked_bytes > 0
    assert parking.parked.holds(2)
    assert parking.parked.holds(6)  # it would wait at the same place, so it may not overtake
    assert not parking.parked.holds(7)
    rig.storage.flush()
    for ledger_id in (2, 4):
        assert [name for name in parking.admitted if name[0] == ledger_id] == [(ledger_id, e) for e in range(3)]
    assert len(parking.parked) == rig.admission.parked_adds == rig.admission.parked_bytes == parking.held == 0
    assert parking.submitted == 1
    assert not parking.parked.holds(2)


async def test_a_full_directory_does_not_hold_up_the_other(rig: ServerRig) -> None:
    fill(rig, 0)
    rig.journals[1].full = True
    parking = Parking(rig)
    parking.park(2, 0)
    parking.park(3, 0)
    assert not rig.admission.has_room(3)
    rig.journals[1].full = False
    rig.admission.refresh()
    assert parking.admitted == [(3, 0)]
    rig.storage.flush()
    assert parking.admitted == [(3, 0), (2, 0)]


async def test_past_the_deadline_the_cache_full_adds_are_rejected(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig, timeout_ms=20)
    parking.park(2, 0)
    parking.park(2, 1)
    await until(lambda: len(parking.log) == 2)
    assert parking.log == [((2, 0), TooManyRequests), ((2, 1), TooManyRequests)]
    assert rig.admission.parked_adds == 0
    assert [(ledger, for_cache, in_vain) for ledger, _, for_cache, in_vain in parking.waits] == [(2, True, True)] * 2
    assert all(seconds >= 0.02 for _, seconds, _, _ in parking.waits)
    rig.storage.flush()
    assert len(parking.log) == 2


def two_on_a_virtual_clock(main: Callable[[ServerRig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        rig = two_of_each()
        await main(rig)
        rig.close()

    on_a_virtual_clock(run())


def test_deadlines_are_each_adds_own() -> None:
    async def main(rig: ServerRig) -> None:
        fill(rig, 0)
        parking = Parking(rig, timeout_ms=150)
        parking.park(2, 0)
        await asyncio.sleep(0.1)
        parking.park(2, 1)
        await asyncio.sleep(0.1)
        assert parking.log == [((2, 0), TooManyRequests)]
        rig.storage.flush()
        assert parking.log[1:] == [((2, 1), None)]

    two_on_a_virtual_clock(main)


async def test_who_waits_for_a_journal_has_no_deadline(rig: ServerRig) -> None:
    """A slow journal adds latency and nothing else."""
    rig.journal.full = True
    parking = Parking(rig, timeout_ms=10)
    parking.park(2, 0)
    await asyncio.sleep(0.05)  # several deadlines
    assert parking.log == []
    assert not rig.admission.has_room(2)
    rig.journal.full = False
    rig.admission.refresh()
    assert parking.admitted == [(2, 0)]
    ((ledger, seconds, for_cache, in_vain),) = parking.waits
    assert (ledger, for_cache, in_vain) == (2, False, False)
    assert seconds >= 0.05


async def test_too_many_over_all_connections(rig: ServerRig) -> None:
    fill(rig, 0)
    first, second = Parking(rig, adds_max=3), Parking(rig, adds_max=3)
    first.park(2, 0)
    second.park(2, 1)
    first.park(2, 2)
    for parking in (first, second):
        with pytest.raises(TooManyRequests):
            parking.park(2, 3)
    first.parked.drop_all()
    second.park(2, 3)
    second.parked.drop_all()
    assert rig.admission.parked_adds == rig.admission.parked_bytes == 0


async def test_without_a_limit_any_number_waits(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig, adds_max=0)
    for entry_id in range(100):
        parking.park(2, entry_id)
    assert parking.stops == []
    rig.storage.flush()
    assert len(parking.admitted) == 100


async def test_nobody_parks_more_than_is_left_for_the_others(rig: ServerRig) -> None:
    """They stop reading before they are refused, and begin again when they hold a half of what is left."""
    fill(rig, 0)
    first, second = Parking(rig, adds_max=30), Parking(rig, adds_max=30)
    for entry_id in range(15):
        first.park(2, entry_id)
        assert first.stops == [True] * (entry_id == 14)
    for entry_id in range(8):
        second.park(4, entry_id)
        assert second.stops == [True] * (entry_id == 7)
    assert rig.admission.parked_adds == 23
    rig.storage.flush()
    assert (first.stops[-1], second.stops[-1]) == (False, False)


async def test_connections_take_turns(rig: ServerRig) -> None:
    rig.journal.full = True
    greedy, modest = Parking(rig), Parking(rig)
    for entry_id in range(3):
        greedy.park(2, entry_id, parked_adds.TURN_BYTES)
    modest.park(4, 0)
    order = modest.log = greedy.log
    rig.journal.full = False
    rig.admission.refresh()
    assert [name for name, _ in order] == [(2, 0), (4, 0), (2, 1), (2, 2)]


async def test_bytes_stop_the_connection_until_half_of_them_are_gone(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig)
    half = parked_adds.CONNECTION_BYTES_MAX // 2
    parking.park(2, 0, half)
    assert parking.stops == []
    parking.park(3, 0, half)
    assert parking.stops == [True]
    rig.admission.set_mode(read_only=False, high_priority_writes=True)  # a look: directory 1 has room
    assert parking.admitted == [(3, 0)]
    assert parking.stops[-1] is True  # 32 bytes of header above one half
    rig.storage.flush()
    assert parking.stops[-1] is False


async def test_bytes_over_all_connections_stop_whoever_comes_last(
    rig: ServerRig,
) -> None:
    rig.admission.parked_bytes_max = 1000
    fill(rig, 0)
    first, second = Parking(rig), Parking(rig)
    first.park(2, 0, 900)
    second.park(2, 1, 900)
    assert (first.stops, second.stops) == ([], [True])
    rig.storage.flush()
    assert second.stops[-1] is False


async def test_whoever_comes_behind_the_last_is_refused_if_memory_is_short(rig: ServerRig) -> None:
    rig.admission.parked_bytes_max = 1000
    fill(rig, 0)
    first, second = Parking(rig), Parking(rig)
    first.is_short = second.is_short = True
    first.park(2, 0, 1000)
    with pytest.raises(TooManyRequests):
        second.park(2, 1, 10)
    assert (second.stops, second.held, rig.admission.parked_adds) == ([], 0, 1)
    first.parked.drop_all()
    second.park(2, 1, 10)
    assert rig.admission.parked_adds == 1


async def test_a_bookie_that_turns_read_only_refuses_what_waits(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig)
    parking.park(2, 0)
    parking.park(2, 1, priority=True)
    rig.admission.set_mode(read_only=True, high_priority_writes=True)
    assert parking.log == [((2, 0), BookieReadOnly)]
    assert len(parking.parked) == 1
    rig.storage.flush()
    assert parking.log[1:] == [((2, 1), None)]
    assert [(for_cache, in_vain) for _, _, for_cache, in_vain in parking.waits] == [(True, True), (True, False)]


async def test_of_those_who_are_refused_so_nobody_waits_and_the_others_keep_their_order(rig: ServerRig) -> None:
    fill(rig, 0)
    fill(rig, 1)
    parking = Parking(rig)
    parking.park(3, 0)
    for entry_id in range(6):
        parking.park(2, entry_id, priority=entry_id % 2 == 0)
    rig.admission.set_mode(read_only=True, high_priority_writes=True)
    assert parking.log == [(name, BookieReadOnly) for name in ((3, 0), (2, 1), (2, 3), (2, 5))]
    assert set(rig.admission._waiting) == {0}
    rig.storage.flush()
    assert parking.admitted == [(2, 0), (2, 2), (2, 4)]
    assert rig.admission._waiting == {}


async def test_a_closed_connection_answers_nothing(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig, timeout_ms=10)
    parking.park(2, 0)
    parking.park(3, 0)
    parking.parked.drop_all()
    parking.parked.drop_all()
    held = weakref.ref(parking.parked)
    del parking.parked
    assert held() is None  # though no directory has had room since
    rig.storage.flush()
    await asyncio.sleep(0.03)
    assert parking.log == []


@pytest.mark.parametrize("seed", range(6))
async def test_each_add_is_answered_exactly_once_and_in_its_ledgers_order(rig: ServerRig, seed: int) -> None:
    rng = random.Random(seed)
    parking = Parking(rig)
    counts = dict.fromkeys(range(6), 0)
    for _ in range(200):
        step = rng.randrange(6)
        if step < 3:
            ledger_id = rng.randrange(6)
            if not rig.admission.has_room(ledger_id) or parking.parked.holds(ledger_id):
                parking.park(ledger_id, counts[ledger_id])
            else:
                parking.log.append(((ledger_id, counts[ledger_id]), None))
            counts[ledger_id] += 1
        elif step == 3:
            fill(rig, rng.randrange(2))
        elif step == 4:
            rng.choice(rig.journals).full = rng.random() < 0.5
            rig.admission.refresh()
        else:
            rig.storage.flush()
    for journal in rig.journals:
        journal.full = False
    rig.storage.flush()
    rig.admission.refresh()
    for ledger_id, count in counts.items():
        assert [e for (ledger, e), _ in parking.log if ledger == ledger_id] == list(range(count))
    assert rig.admission.parked_adds == rig.admission.parked_bytes == 0


async def test_an_add_that_may_not_wait_for_the_cache_waits_for_the_journal_in_peace(rig: ServerRig) -> None:
    """With `dbStorage_maxThrottleTimeMs=0`."""
    rig.journals[1].full = True
    parking = Parking(rig, timeout_ms=0)
    looked = 0
    expire = parking.parked._expire

    def look() -> None:
        nonlocal looked
        looked += 1
        expire()

    parking.parked._expire = look  # type: ignore[method-assign]
    parking.park(1, 0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert looked <= 1
    parking.parked.drop_all()


def test_the_earliest_of_those_who_wait_is_looked_for_at_its_deadline() -> None:
    """Whatever was admitted, refused or parked meanwhile; and nothing is, where nobody waits."""

    async def main(rig: ServerRig) -> None:
        looks: list[float] = []
        parking = Parking(rig, timeout_ms=1000)
        expire = parking.parked._expire
        loop = asyncio.get_running_loop()
        parking.parked._expire = lambda: looks.append(loop.time()) or expire()  # type: ignore[method-assign, func-returns-value]
        began = loop.time()
        fill(rig, 0)
        fill(rig, 1)
        parking.park(2, 0)
        await asyncio.sleep(0.25)
        parking.park(3, 0)
        await asyncio.sleep(0.25)
        parking.park(2, 1)
        await asyncio.sleep(1.25)
        assert [round(at - began, 3) for at in looks] == [1.0, 1.25, 1.5]
        assert [name for name, _ in parking.log] == [(2, 0), (3, 0), (2, 1)]
        assert [round(seconds, 3) for _, seconds, _, _ in parking.waits] == [1.0, 1.0, 1.0]
        assert parking.parked._timer is None
        parking.park(2, 2)
        rig.storage.flush()
        assert parking.admitted == [(2, 2)]
        await asyncio.sleep(5)
        assert len(looks) == 3

    two_on_a_virtual_clock(main)


@pytest.mark.parametrize(("timeout_ms", "looks_at"), [(1000, [1.0, 2.0, 3.0]), (50, [0.05, 0.15, 0.25])])
def test_whoever_waits_for_a_journal_is_looked_at_again_now_and_then(timeout_ms: int, looks_at: list[float]) -> None:
    async def main(rig: ServerRig) -> None:
        looks: list[float] = []
        parking = Parking(rig, timeout_ms=timeout_ms)
        expire = parking.parked._expire
        loop = asyncio.get_running_loop()
        parking.parked._expire = lambda: looks.append(loop.time()) or expire()  # type: ignore[method-assign, func-returns-value]
        began = loop.time()
        rig.journal.full = True
        parking.park(2, 0)
        await asyncio.sleep(looks_at[-1] + 0.01)
        assert [round(at - began, 3) for at in looks] == looks_at
        assert (parking.log, len(parking.parked)) == ([], 1)
        parking.parked.drop_all()
        assert parking.parked._timer is None

    two_on_a_virtual_clock(main)


async def test_one_turn_hands_over_so_many_bytes_and_small_adds_count_too(rig: ServerRig) -> None:
    rig.journal.full = True
    parking = Parking(rig)
    size = len(entry(2, 0, bytes(10)))
    turn = -(-parked_adds.TURN_BYTES // (size + 256))
    for entry_id in range(turn + 1):
        parking.park(2, entry_id)
    rig.journal.full = False
    assert parking.parked.admit_some(0)
    assert len(parking.admitted) == turn
    assert not parking.parked.admit_some(0)
    assert len(parking.admitted) == turn + 1
    assert parking.submitted == 2


async def test_a_turn_ends_where_the_room_does(rig: ServerRig) -> None:
    rig.journal.full = True
    parking = Parking(rig)
    for entry_id in range(2):
        parking.park(2, entry_id)
    rig.journal.full = False
    admit = parking.parked._admit

    def last(request: AddRequest, reply: Reply) -> None:
        rig.journal.full = True
        admit(request, reply)

    parking.parked._admit = last
    assert parking.parked.admit_some(0)
    assert (parking.admitted, len(parking.parked)) == ([(2, 0)], 1)


@pytest.mark.parametrize("more", [0, 1])
async def test_bytes_of_a_connection_and_of_all_stop_it_when_they_are_passed(rig: ServerRig, more: int) -> None:
    fill(rig, 0)
    parking = Parking(rig)
    parking.park(2, 0, parked_adds.CONNECTION_BYTES_MAX - 32 + more)
    assert parking.stops == [True] * more
    parking.parked.drop_all()
    rig.admission.parked_bytes_max = 132
    others = Parking(rig)
    others.park(2, 0, 100 + more)
    assert others.stops == [True] * more


@pytest.mark.parametrize("more", [0, 1])
async def test_a_connection_goes_on_when_a_half_of_its_bytes_is_gone(rig: ServerRig, more: int) -> None:
    fill(rig, 0)
    fill(rig, 1)
    parking = Parking(rig)
    parking.park(2, 0, parked_adds.CONNECTION_BYTES_MAX // 2 - 32 + more)
    parking.park(3, 0)
    parking.parked.mode_changed()
    assert parking.stops == []
    rig.storage.account = lambda *account: False  # type: ignore[method-assign]
    parking.parked._take(1, in_vain=False)
    parking.parked._after_change()
    assert parking.stops == [False] * (not more)


async def test_reading_goes_on_when_a_connection_parks_half_of_what_is_left(rig: ServerRig) -> None:
    fill(rig, 0)
    parking = Parking(rig, adds_max=12)
    for entry_id in range(6):
        parking.park(2, entry_id)
    assert parking.stops == [True]
    for left in (5, 4):
        parking.parked._take(0, in_vain=False)
        parking.parked._after_change()
        assert (len(parking.parked), parking.stops) == (left, [True] + [False] * (left == 4))
