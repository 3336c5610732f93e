"""The throttle of copies on a virtual clock, and the one that gives way to clients."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.replication.throttle import (
    FIRST_SHARE,
    FORGOTTEN_SECONDS,
    LEAST_SHARE,
    REMEMBERED,
    WINDOW_PIECES,
    WINDOW_SECONDS,
    ReplicationThrottle,
    YieldingThrottle,
    piece_bytes,
)
from bookie_protocol.errors import BadRequest
from tests.unit.bookie_client.reading.rig import now, run_virtually


def test_without_limits_nothing_waits():
    async def main():
        throttle = ReplicationThrottle()
        for _ in range(1000):
            await throttle.read(1 << 30)
            await throttle.write(1 << 30)
        return now(), throttle.bytes_read, throttle.bytes_written

    assert run_virtually(main) == (0, 1000 << 30, 1000 << 30)


def test_bytes_of_reads_and_of_writes_have_a_budget_each():
    async def main():
        throttle = ReplicationThrottle(1000)
        for _ in range(11):
            await throttle.read(100)
            await throttle.write(100)
        return now()

    assert run_virtually(main) == pytest.approx(1.0)


def test_requests_are_limited_too():
    async def main():
        throttle = ReplicationThrottle(None, 10)
        for _ in range(21):
            await throttle.read(1)
        return now()

    assert run_virtually(main) == pytest.approx(2.0)


def test_many_callers_share_one_budget_in_their_order():
    async def main():
        throttle, order = ReplicationThrottle(1000), []

        async def call(number):
            await throttle.read(500)
            order.append((number, round(now(), 3)))

        await asyncio.gather(*map(call, range(4)))
        return order

    assert run_virtually(main) == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]


def test_unused_budget_is_not_saved_and_wrong_guesses_are_put_right():
    async def main():
        throttle = ReplicationThrottle(100)
        await asyncio.sleep(50)
        await throttle.read(100)
        began = now()
        throttle.correct_read(-50)
        await throttle.read(100)
        half = now() - began
        throttle.correct_read(100)
        await throttle.read(1)
        return half, now() - began, throttle.bytes_read

    assert run_virtually(main) == (pytest.approx(0.5), pytest.approx(2.5), 251)


def test_limits_change_in_use_and_make_sense():
    async def main():
        throttle = ReplicationThrottle(1)
        throttle.limit(None)
        await throttle.read(1 << 40)
        await throttle.read(1 << 40)
        return now()

    assert run_virtually(main) == 0
    with pytest.raises(BadRequest, match="use None"):
        ReplicationThrottle(0)
    with pytest.raises(BadRequest, match="-1 requests"):
        ReplicationThrottle(None, -1)


MOST = 16_000_000
QUIET, BUSY = 0.004, 0.008


async def windows(throttle, count, seconds, *, stalls=()):
    """So many windows of pieces that took so long each; `stalls`: some pieces of each window that took longer."""
    for _ in range(count):
        for piece in range(WINDOW_PIECES + 1):
            throttle.stored(stalls[piece] if piece < len(stalls) else seconds)
            await asyncio.sleep(WINDOW_SECONDS / WINDOW_PIECES)


def rates(*phases, **options):
    """The rate after each phase, as a part of the most."""

    async def main():
        throttle = YieldingThrottle(MOST)
        found = [throttle.bytes_per_second / MOST]
        for count, seconds in phases:
            await windows(throttle, count, seconds, **options)
            found.append(throttle.bytes_per_second / MOST)
        return found

    return run_virtually(main)


def test_it_begins_gently_and_reaches_the_most_where_nobody_else_is():
    assert rates((100, QUIET)) == [1 / FIRST_SHARE, 1.0]


def test_noise_of_fast_bookies_is_no_load():
    """Where a piece takes a millisecond a quarter of one more says nothing."""
    _, full, noisy = rates((100, 0.001), (20, 0.00125))
    assert (full, noisy) == (1.0, 1.0)


def test_it_falls_while_bookies_are_busy_and_rises_again():
    begun, full, busy, again = rates((40, QUIET), (6, BUSY), (40, QUIET))
    assert begun < full
    assert busy == 1 / LEAST_SHARE
    assert again == 1.0


def test_what_stays_slower_for_good_is_what_is_usual_after_a_while():
    _, _, busy, learned = rates((40, QUIET), (30, BUSY), (REMEMBERED + 40, BUSY))
    assert busy == 1 / LEAST_SHARE
    assert learned == 1.0


def test_single_stalls_do_not_count():
    assert rates((40, QUIET), (20, QUIET), stalls=[0.5, 0.2])[-1] == 1.0


def test_copying_that_starts_anew_is_judged_by_what_is_copied_then():
    """The pieces before a pause of an hour, and those after it, are no window together."""

    async def main():
        throttle = YieldingThrottle(MOST)
        await windows(throttle, 40, QUIET)
        for _ in range(WINDOW_PIECES - 1):
            throttle.stored(BUSY)
        await asyncio.sleep(3600)
        throttle.stored(QUIET)
        await windows(throttle, 1, QUIET)
        return throttle.bytes_per_second

    assert run_virtually(main) == MOST


def test_a_few_large_pieces_are_no_window():
    async def main():
        throttle = YieldingThrottle(MOST)
        for _ in range(WINDOW_PIECES - 1):
            throttle.stored(BUSY)
            await asyncio.sleep(WINDOW_SECONDS)
        return throttle.bytes_per_second

    assert run_virtually(main) == MOST / FIRST_SHARE


def test_it_does_not_take_its_own_pieces_for_those_of_busy_bookies():
    """Larger pieces take longer, whoever else is there."""

    async def main():
        throttle = YieldingThrottle(100_000_000)
        for _ in range(100):
            await windows(throttle, 1, QUIET + piece_bytes(throttle.piece_rate, 1 << 20) / 100_000_000)
        return throttle.bytes_per_second

    assert run_virtually(main) == 100_000_000


def test_pieces_that_are_held_back_for_long_are_judged_too():
    """A low limit and large entries: each piece takes longer than the pause after which a window begins anew."""

    async def main():
        nbytes, most = 1_000_000, 1_000_000 / (2 * FORGOTTEN_SECONDS)
        throttle = YieldingThrottle(most)
        for _ in range(40 * WINDOW_PIECES):
            await throttle.write(nbytes)
            throttle.stored(QUIET)
        return throttle.bytes_per_second / most

    assert run_virtually(main) == 1.0


@pytest.mark.parametrize("limit", [None, 1000])
def test_limits_may_be_changed(limit):
    async def main():
        throttle = YieldingThrottle(MOST)
        throttle.limit(limit)
        await windows(throttle, 100, QUIET)
        return throttle.bytes_per_second

    assert run_virtually(main) == limit


def test_another_throttle_does_not_mind():
    async def main():
        throttle = ReplicationThrottle(MOST)
        await windows(throttle, 10, BUSY)
        return throttle.bytes_per_second

    assert run_virtually(main) == MOST
