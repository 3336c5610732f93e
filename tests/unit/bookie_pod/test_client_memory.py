"""Who may make the process hold how much, and who has to go."""

from __future__ import annotations

import asyncio
import time

import pytest

from bookie_pod.client_memory import LONG_S, SMALL, MemoryGovernor, Share
from tests.support.until import until

MB = 1 << 20


class Client:
    def __init__(self, governor: MemoryGovernor) -> None:
        self.cut_off = 0
        self.share: Share = governor.share(self._end)

    def _end(self) -> None:
        self.cut_off += 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> MemoryGovernor:
    for name in ("URGE_S", "STUCK_S", "LONG_S"):
        monkeypatch.setattr(f"bookie_pod.client_memory.{name}", 0.001)
    return MemoryGovernor(10 * MB)


def test_nobody_has_more_than_is_left_for_the_others() -> None:
    governor = MemoryGovernor(12 * MB)
    first, second, modest = (Client(governor) for _ in range(3))
    for client, part in ((first, 6), (second, 3)):
        while not client.share.is_full:
            client.share.make(MB // 4)
        assert part * MB <= client.share.making <= (part + 1) * MB
    assert not modest.share.is_full
    modest.share.hold(SMALL)
    first.share.make(12 * MB)
    assert not modest.share.is_full  # so much is left to everybody
    first.share.make(-first.share.making)
    assert not second.share.is_full
    assert governor.total == second.share.making + SMALL


def test_those_go_first_for_whom_nothing_moved_for_longest() -> None:
    governor = MemoryGovernor(10 * MB)
    clients = [Client(governor) for _ in range(5)]
    for age, client in enumerate(clients):
        client.share.hold(3 * MB)
        client.share.stuck_since = float(10 - age)
    clients[4].share.stuck_since = None  # does its part
    small = Client(governor)
    small.share.hold(SMALL)
    small.share.stuck_since = 1.0
    governor.relieve(10.0)
    assert [client.cut_off for client in clients] == [0, 0, 1, 1, 0]
    assert small.cut_off == 0
    assert governor.total <= governor.limit
    assert governor.cut_off == 2
    governor.relieve(10.0)
    assert governor.cut_off == 2


def test_many_who_hold_little_go_before_one_who_sends() -> None:
    governor = MemoryGovernor(10 * MB)
    many = [Client(governor) for _ in range(200)]
    for client in many:
        client.share.hold(SMALL)
        client.share.stuck_since = 0.0
    sender = Client(governor)
    sender.share.hold(MB)
    sender.share.stuck_since = LONG_S
    governor.relieve(LONG_S + 1)
    assert sender.cut_off == 0
    assert governor.total <= governor.limit
    assert sum(client.cut_off for client in many) == governor.cut_off == 56


def test_very_many_who_hold_little_are_bounded_in_sum_and_the_oldest_go() -> None:
    governor = MemoryGovernor(10 * MB)
    clients = [Client(governor) for _ in range(400)]
    for age, client in enumerate(clients):
        client.share.hold(SMALL)
        client.share.stuck_since = age / 1000  # all of them a moment ago
        governor.relieve(1.0)
        assert governor.total <= governor.limit
    ended = [client.cut_off for client in clients]
    assert ended == sorted(ended, reverse=True)
    assert sum(ended) >= 400 - 10 * MB // SMALL


def test_a_few_who_hold_little_do_not_go_for_one_who_holds_much() -> None:
    governor = MemoryGovernor(10 * MB)
    greedy, modest = Client(governor), Client(governor)
    modest.share.hold(SMALL)
    modest.share.stuck_since = 0.0
    greedy.share.make(20 * MB)
    governor.relieve(1.0)
    assert modest.cut_off == 0


def test_who_holds_much_goes_before_one_with_some_bytes_however_late_something_moved() -> None:
    governor = MemoryGovernor(32 * MB)
    greedy, modest = [Client(governor) for _ in range(17)], Client(governor)
    for client in greedy:
        client.share.hold(2 * MB)
        client.share.stuck_since = 3.0  # when its bytes were counted again, which was after the look had begun
    modest.share.hold(28)
    modest.share.stuck_since = 2.0
    governor.relieve(1.0)
    assert governor.total <= governor.limit
    assert (modest.cut_off, any(client.cut_off for client in greedy)) == (0, True)


def test_what_is_kept_back_is_bounded_in_sum_and_goes_before_what_others_send() -> None:
    """The end of others would not help. Of those whose data is kept back the newest go."""
    governor = MemoryGovernor(16 * MB)
    sender, modest = Client(governor), Client(governor)
    sender.share.hold(MB)
    sender.share.stuck_since = 0.0
    modest.share.hold(28)
    modest.share.is_kept_back = True
    clients = [Client(governor) for _ in range(40)]
    for client in clients:
        client.share.hold(MB)
        client.share.is_kept_back = True
    served = Client(governor)
    served.share.hold(MB)  # for no reason of ours, and it does its part
    governor.relieve(1.0)
    assert (sender.cut_off, modest.cut_off, served.cut_off) == (0, 0, 0)
    assert 11 * MB <= governor.total - 2 * MB <= 12 * MB + 28
    ended = [client.cut_off for client in clients]
    assert ended == sorted(ended)


def test_what_is_kept_back_stays_as_long_as_it_is_no_more_than_its_part() -> None:
    governor = MemoryGovernor(16 * MB)
    client, sender = Client(governor), Client(governor)
    client.share.hold(12 * MB)
    client.share.is_kept_back = True
    sender.share.hold(5 * MB)
    sender.share.stuck_since = 0.0
    governor.relieve(1.0)
    assert (client.cut_off, sender.cut_off) == (0, 1)


def test_what_is_kept_back_and_those_who_hold_little_are_bounded_together() -> None:
    """Each of them has less than its part."""
    governor = MemoryGovernor(16 * MB)
    clients = [Client(governor) for _ in range(500)]
    for place, client in enumerate(clients):
        client.share.hold(SMALL // 2)
        client.share.is_kept_back = place % 3 > 0
        client.share.stuck_since = None if client.share.is_kept_back else 1.0
        governor.relieve(1.0)
        assert governor.total <= governor.limit
    for client in clients[:2]:
        client.share.hold(12 * MB)
    governor.relieve(1.0)
    assert (governor.total <= governor.limit, clients[0].cut_off) == (True, 1)


def test_who_is_gone_holds_nothing_and_hears_it_once() -> None:
    governor = MemoryGovernor(MB)
    client = Client(governor)
    client.share.hold(2 * MB)
    client.share.stuck_since = 0.0
    client.share.end()
    client.share.end()
    governor.relieve(1.0)
    assert (governor.total, client.cut_off) == (0, 1)


def test_who_waits_for_little_gets_it_whatever_others_hold() -> None:
    governor = MemoryGovernor(10 * MB)
    greedy, modest = Client(governor), Client(governor)
    greedy.share.hold(20 * MB)
    assert modest.share.fits(SMALL)
    assert not modest.share.fits(SMALL + 1)
    modest.share.make(SMALL)
    assert not modest.share.fits(1)


class Waiting:
    """Who waits for room, and goes on with it."""

    def __init__(self, client: Client, nbytes: int, *, has_begun: bool = False) -> None:
        self.went_on = False
        self.waiter = client.share.wait(nbytes, self._go_on, has_begun=has_begun)

    def _go_on(self) -> None:
        self.went_on = True


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_nobody_makes_way_for_what_would_not_fit_even_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has nearly half itself gets no more by what others lose, and is in nobody's way."""
    monkeypatch.setattr("bookie_pod.client_memory.STUCK_S", 0.0)
    monkeypatch.setattr("bookie_pod.client_memory.URGE_S", 0.001)
    governor = MemoryGovernor(10 * MB)
    greedy, other, newcomer = (Client(governor) for _ in range(3))
    greedy.share.hold(4 * MB)
    other.share.hold(3 * MB)
    other.share.stuck_since = 0.0
    itself = Waiting(greedy, 4 * MB)
    await turns()
    assert newcomer.share.take(2 * MB)
    newcomer.share.make(-2 * MB)
    by_others = Waiting(newcomer, 5 * MB)
    await until(lambda: by_others.went_on)  # though it came later
    assert (itself.went_on, other.cut_off) == (False, 1)
    governor.leave(itself.waiter)


@pytest.mark.parametrize("is_kept_back", [True, False])
async def test_if_all_wait_for_the_room_that_they_fill_the_newest_go(
    impatient: MemoryGovernor, is_kept_back: bool
) -> None:
    governor = impatient
    busy, *clients = (Client(governor) for _ in range(5))
    busy.share.make(MB // 2)  # something moves all the time
    for client in clients:
        client.share.hold(2 * MB)
        client.share.is_kept_back = is_kept_back
    first = Waiting(clients[0], 3 * MB)
    if is_kept_back:
        await until(lambda: first.went_on)
    else:
        await asyncio.sleep(0.01)
    assert first.went_on == is_kept_back
    governor.relieve(time.perf_counter())
    assert [client.cut_off for client in (busy, *clients)] == [0, 0, 0, *[int(is_kept_back)] * 2]
    assert governor.total <= governor.limit
    governor.leave(first.waiter)


@pytest.mark.parametrize(("clients", "held", "wanted"), [(2, 3, 3), (3, 3, 0), (41, 0.24, 0)])
async def test_nobody_waits_for_ever_for_room_that_it_would_have_alone(
    impatient: MemoryGovernor, clients: int, held: float, wanted: int
) -> None:
    """Others leave what it wants, but it would have more than its part then: so they have to go."""
    kept = [Client(impatient) for _ in range(clients)]
    for client in kept:
        client.share.hold(int(held * MB))
        client.share.is_kept_back = True
    first = Waiting(kept[0], wanted * MB)
    await until(lambda: first.went_on)
    assert impatient.total <= impatient.limit
    assert kept[0].cut_off == 0
    impatient.leave(first.waiter)


async def test_clients_without_progress_make_way_as_far_as_one_that_waits_needs(impatient: MemoryGovernor) -> None:
    first, *stuck = (Client(impatient) for _ in range(10))
    first.share.hold(3 * MB)
    for client in stuck:
        client.share.hold(MB // 2)
        client.share.stuck_since = 0.0
    waiting = Waiting(first, 3 * MB)
    await until(lambda: waiting.went_on)
    assert sum(client.cut_off for client in stuck) == 7
    impatient.leave(waiting.waiter)


async def test_no_other_client_goes_for_one_that_was_cut_off_itself(impatient: MemoryGovernor) -> None:
    """Its transport tells later that it is gone, so it waits still."""
    first, *others = (Client(impatient) for _ in range(5))
    for client in (first, *others):
        client.share.hold(2 * MB)
    for client in others:
        client.share.is_kept_back = True
    first.share.stuck_since = 0.0
    waiting = Waiting(first, 3 * MB)
    await until(lambda: first.cut_off == 1)
    impatient.leave(waiting.waiter)
    assert sum(client.cut_off for client in others) == 0


async def test_those_who_hold_little_stay_when_larger_ones_can_go(impatient: MemoryGovernor) -> None:
    *large, first = (Client(impatient) for _ in range(5))
    small = [Client(impatient) for _ in range(300)]
    for client, held in (*((each, 2 * MB) for each in (*large, first)), *((each, 300) for each in small)):
        client.share.hold(held)
        client.share.is_kept_back = True
    waiting = Waiting(first, 2 * MB)
    await until(lambda: waiting.went_on)
    assert sum(client.cut_off for client in small) == 0
    impatient.leave(waiting.waiter)


async def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    governor = MemoryGovernor(10 * MB)
    holder, large, later, small, greedy = (Client(governor) for _ in range(5))
    greedy.share.make(4 * MB)
    holder.share.hold(6 * MB)
    passed = Waiting(greedy, 2 * MB)  # has its part
    first, second = Waiting(large, 4 * MB), Waiting(later, MB)
    await turns()
    assert not any(each.went_on for each in (passed, first, second))
    assert not later.share.take(MB)
    assert small.share.take(SMALL)
    small.share.make(-SMALL)
    holder.share.hold(-2 * MB)
    await turns()
    assert not any(each.went_on for each in (passed, first, second))
    holder.share.hold(-3 * MB)
    await turns()
    assert (passed.went_on, first.went_on, second.went_on) == (False, True, True)
    assert (large.share.making, later.share.making) == (4 * MB, MB)
    assert governor.total == 10 * MB
    large.share.make(-4 * MB)
    later.share.make(-MB)
    holder.share.hold(-MB)
    await turns()
    assert passed.went_on


async def test_who_has_begun_waits_for_no_newcomer() -> None:
    """Else those who hold what they can only give back later would wait for those who wait for them."""
    governor = MemoryGovernor(16 * MB)
    begun, newcomer = Client(governor), Client(governor)
    others = [Client(governor) for _ in range(4)]
    for each in others:
        each.share.hold(5 * MB // 2)
    coming = Waiting(newcomer, 8 * MB)
    await turns()
    assert not newcomer.share.take(MB)
    assert begun.share.take(MB, has_begun=True)
    again = Waiting(begun, MB, has_begun=True)
    await turns()
    assert not again.went_on
    others[0].share.hold(-5 * MB // 2)
    await turns()
    assert (again.went_on, coming.went_on) == (True, False)


async def test_those_who_have_begun_leave_room_for_what_they_wait_for() -> None:
    """A call that reads holds room until other connections, perhaps of this very process, brought what it reads."""
    governor = MemoryGovernor(8 * MB)
    reading = [Client(governor) for _ in range(20)]
    begun = [each for each in reading if each.share.take(MB, has_begun=True)]
    late = [Waiting(each, MB, has_begun=True) for each in reading if each not in begun]
    await turns()
    assert begun
    assert not any(each.went_on for each in late)
    source = Client(governor)
    assert source.share.take(2 * MB)
    assert not source.share.take(MB // 8)  # one thing after another, as long as somebody waits
    source.share.make(-2 * MB)
    begun[0].share.make(-MB)
    await turns()
    assert [each.went_on for each in late] == [True] + [False] * (len(late) - 1)


async def test_what_a_source_waits_for_is_not_behind_those_who_have_begun() -> None:
    governor = MemoryGovernor(8 * MB)
    reading, next_one, source = (Client(governor) for _ in range(3))
    assert reading.share.take(4 * MB, has_begun=True)
    source.share.make(3 * MB)
    late, more = Waiting(next_one, 4 * MB, has_begun=True), Waiting(source, MB)
    await turns()
    assert (late.went_on, more.went_on) == (False, False)
    source.share.make(-3 * MB)
    await turns()
    assert (late.went_on, more.went_on) == (False, True)
    assert next_one.share.making == 0


async def test_who_waits_no_more_is_in_nobodys_way() -> None:
    governor = MemoryGovernor(10 * MB)
    holder, large, later = (Client(governor) for _ in range(3))
    holder.share.hold(8 * MB)
    first, second = Waiting(large, 4 * MB), Waiting(later, MB)
    await turns()
    assert not second.went_on
    governor.leave(first.waiter)
    await turns()
    assert second.went_on
    governor.leave(second.waiter)
    assert governor.kept_waiting is None
    assert later.share.making == MB


async def test_what_is_given_back_by_a_thread_is_given_on() -> None:
    governor = MemoryGovernor(10 * MB)
    reader, waiting = Client(governor), Client(governor)
    reader.share.make(9 * MB)
    later = Waiting(waiting, 2 * MB)
    await turns()
    assert not later.went_on
    await asyncio.to_thread(reader.share.make, -9 * MB)
    await turns()
    assert later.went_on


async def test_what_a_thread_gives_back_while_somebody_is_looked_at_is_given_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    governor = MemoryGovernor(10 * MB)
    reader, waiting = Client(governor), Client(governor)
    reader.share.make(9 * MB)
    take = Share.take

    def refused_a_moment_too_early(share: Share, nbytes: int, *, has_begun: bool = False) -> bool:
        taken = take(share, nbytes, has_begun=has_begun)
        if reader.share.making:
            reader.share.make(-9 * MB)
        return taken

    monkeypatch.setattr(Share, "take", refused_a_moment_too_early)
    later = Waiting(waiting, 2 * MB)
    await until(lambda: later.went_on)
