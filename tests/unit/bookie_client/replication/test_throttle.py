"""The throttle on a virtual clock."""

import asyncio

import pytest

from bookie_client.replication.throttle import ReplicationThrottle
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
