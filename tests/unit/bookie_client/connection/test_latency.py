"""Time-outs that adapt: what is measured, the bounds, and that only adds and plain reads follow.

One coarse clock for all connections.
"""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.connection.health import BookieHealth
from bookie_client.connection.latency import MARGIN, LatencyEstimate, Lateness, Ticker, TimeoutPolicy
from bookie_client.connection.operations import OneShot, nothing
from bookie_client.options import ClientOptions
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import BadRequest, BookieTimeout
from bookie_protocol.versioned import LedgerLife
from tests.support.clock import Clock
from tests.support.until import until
from tests.unit.bookie_client.connection.pooled import Rig as PoolRig
from tests.unit.bookie_client.connection.requests import Add

TICK = 0.25
ADD = PendingAdd(0, 0, ("a",))
HISTORY = 60.0


class Rig:
    def __init__(self, **options):
        self.clock = Clock()
        self.options = ClientOptions(**{"adaptive_timeouts": True, **options})
        self.record = BookieHealth(self.options, self.clock).record("a")
        self.lateness = Lateness(
            self.options, SimpleNamespace(seconds=TICK), self.record.adds, self.record.reads, self.clock
        )

    def add(self, seconds, key=b"k"):
        """Sent, and answered after so long."""
        self.lateness.adds_sent(key)
        self.clock.now += seconds
        self.lateness.answers_came(())

    def seconds(self, request=ADD):
        """The present time-out, to a tick."""
        self.lateness.look()
        return 5.0 + TICK * self.lateness.of(request)


def measured_read(rig):
    read = OneShot("a read", nothing)
    read.sent = rig.clock.now
    return read


# --- which time-out -----------------------------------------------------------------------------------------


async def test_nothing_measured_or_not_lately_means_the_fixed_time_out():
    rig = Rig()
    assert rig.seconds() == rig.seconds(measured_read(rig)) == 5.0
    rig.add(0.2)
    assert rig.seconds() != 5.0
    rig.clock.now += rig.options.failure_history + 1
    assert rig.seconds() == 5.0


async def test_it_follows_the_answers_between_the_bounds():
    rig = Rig(min_adaptive_timeout=1.0, max_adaptive_timeout=30.0)
    for _ in range(100):
        rig.add(0.001)
    assert rig.seconds() == 1.0
    for _ in range(200):
        rig.add(0.2)
    assert rig.seconds() == pytest.approx(MARGIN * 0.2, abs=TICK)
    for _ in range(10):
        rig.add(6.0)
    assert rig.seconds() == 30.0


async def test_reads_and_adds_have_their_own_and_other_requests_keep_theirs():
    rig = Rig()
    rig.add(0.001)
    rig.record.read_took(2.0, rig.clock.now)
    assert rig.seconds() == 1.0
    assert rig.seconds(measured_read(rig)) == 30.0
    assert rig.seconds(OneShot("a fencing read", nothing)) == 5.0


async def test_one_add_at_a_time_is_measured_from_when_it_was_sent():
    rig = Rig()
    rig.lateness.adds_sent(b"1")
    rig.clock.now += 0.5
    rig.lateness.adds_sent(b"2")
    rig.lateness.answers_came({b"1", b"2"})
    assert not rig.record.adds.is_measured(rig.clock.now)
    rig.clock.now += 0.5
    rig.lateness.answers_came({b"2"})
    assert rig.record.adds.mean == pytest.approx(1.0)


async def test_time_outs_double_what_was_measured_until_an_answer_comes():
    rig = Rig(min_adaptive_timeout=0.5)
    for _ in range(200):
        rig.add(0.1)
    found = []
    for _ in range(4):
        found.append(rig.seconds())
        rig.lateness.adds_sent(b"lost")
        rig.lateness.timed_out([(b"lost", ADD), (b"other", ADD)])
    assert found == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=2 * TICK)
    rig.add(0.1)
    assert rig.seconds() == pytest.approx(1.0, abs=2 * TICK)
    rig.lateness.timed_out([(b"x", OneShot("something else", nothing))])
    assert rig.seconds() == pytest.approx(1.0, abs=2 * TICK)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 10), st.floats(10, 60), st.integers(0, 20))
def test_it_is_never_outside_the_bounds(latencies, least, most, time_outs):
    estimate = LatencyEstimate()
    for seconds in latencies:
        estimate.took(seconds, 0.0, HISTORY)
    for _ in range(time_outs):
        estimate.timed_out()
    assert least <= TimeoutPolicy(5.0, least, most).seconds(estimate, 1.0) <= most
    assert TimeoutPolicy(5.0, least, most).seconds(LatencyEstimate(), 1.0) == 5.0


# --- over sockets -------------------------------------------------------------------------------------------


async def pipelined(rig, entry_id):
    """The outcome of an add that was sent as writers send it: None or the error's type."""
    key, frame = rig.pool.dialect.add_encoder(LedgerLife(1, 0), bytes(20))(
        entry_id + 1, entry_id, rig.digest.encode(1, entry_id, -1, 5, b"hello")
    )
    add, channel = Add(key, frame), rig.pool.channel("b")
    await channel.connect()
    channel.send_adds(frame, [add])
    await until(lambda: add.ends, 30)
    return add.ends[0][1]


async def test_a_bookie_that_answers_at_once_and_falls_silent_is_given_up_long_before_the_fixed_time_out():
    rig = PoolRig(add_timeout=600.0, read_timeout=600.0, adaptive_timeouts=True, min_adaptive_timeout=0.2)
    await rig.server.start()
    try:
        assert await pipelined(rig, 0) is None
        rig.server.silent = True
        assert await pipelined(rig, 1) is BookieTimeout
    finally:
        await rig.pool.close()
        await rig.server.stop()


async def test_without_the_option_nothing_adapts():
    rig = PoolRig(add_timeout=600.0, read_timeout=600.0)
    await rig.server.start()
    try:
        assert await pipelined(rig, 0) is None
        record = rig.pool.health.record("b")
        assert not record.adds.is_measured(0.0)
        assert rig.pool.ticker.seconds == 150.0
    finally:
        await rig.pool.close()
        await rig.server.stop()


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(BadRequest, match=r"min_adaptive_timeout \(40\.0\) .*max_adaptive_timeout"):
        ClientOptions(min_adaptive_timeout=40.0)
    with pytest.raises(BadRequest, match="min_adaptive_timeout must"):
        ClientOptions(min_adaptive_timeout=0)


async def test_everybody_sees_the_same_ticks():
    ticker = Ticker(0.001)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    done = asyncio.Event()

    def a():
        seen["a"].append(ticker.now)

    def b():
        seen["b"].append(ticker.now)
        if len(seen["b"]) == 3:
            done.set()

    ticker.attach(a)
    ticker.attach(b)
    await done.wait()
    ticker.detach(a)
    ticker.detach(b)
    assert seen["a"] == seen["b"] == [1, 2, 3]


async def test_it_runs_only_while_somebody_listens():
    ticker = Ticker(0.001)
    first = asyncio.Event()
    ticker.attach(first.set)
    await first.wait()
    ticker.detach(first.set)
    stopped_at = ticker.now
    assert ticker._timer is None
    again = asyncio.Event()
    ticker.attach(again.set)
    await again.wait()
    assert ticker.now == stopped_at + 1
    ticker.detach(again.set)
    ticker.detach(again.set)


async def test_a_loop_that_was_held_up_counts_one_tick():
    """So that answers that came meanwhile are read before their requests are given up."""
    loop = asyncio.get_running_loop()
    ticker = Ticker(0.001)
    ticked = asyncio.Event()
    ticker.attach(ticked.set)
    until = loop.time() + 0.02
    while loop.time() < until:
        pass
    await ticked.wait()
    assert ticker.now == 1
    ticker.detach(ticked.set)
