"""The quorum time-out: found without looking at each add, and the end of the handle."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.writing.pipeline import TICKS, AddAges
from bookie_protocol.errors import BadRequest, LedgerClosed, QuorumLost


def test_an_add_is_overdue_after_a_full_time_out():
    ages = AddAges()
    assert [ages.tick(0, -1) for _ in range(TICKS)] == [None] * TICKS
    assert ages.tick(9, -1) == 0


def test_what_was_delivered_or_is_young_is_not_overdue():
    ages = AddAges()
    for tick in range(20):
        assert ages.tick(10 * tick, 10 * (tick - TICKS + 1)) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_never_early_and_never_more_than_a_tick_late(steps):
    """Against a model that knows the age of each add."""
    ages = AddAges()
    pushed_at, delivered = [], -1
    for now, (pushed, finished) in enumerate(steps):
        overdue = ages.tick(len(pushed_at) - 1, delivered)
        # Adds of the step before this tick are between 0 and 1 tick old.
        oldest = pushed_at[delivered + 1] if delivered + 1 < len(pushed_at) else None
        assert (overdue is not None) == (oldest is not None and now - oldest > TICKS)
        if overdue is not None:
            assert overdue == delivered + 1
        pushed_at += [now] * pushed
        delivered = min(delivered + finished, len(pushed_at) - 1)


async def test_a_bookie_that_is_silent_ends_the_handle_before_its_own_time_out(three):
    async with three.client(add_timeout=60, read_timeout=60, add_quorum_timeout=0.04) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"fine")
        three.servers["b1"].silent = True
        futures = [await ledger.submit(b"x") for _ in range(3)]
        with pytest.raises(QuorumLost, match=r"entry 1 .* quorum of 3 in 0\.04 s"):
            await futures[0]
        assert [type(f.exception()) for f in futures] == [QuorumLost] * 3
        with pytest.raises(LedgerClosed):
            await ledger.append(b"more")
        await ledger.close()
        assert three.stored(0).last_entry_id == 0


async def test_a_silent_bookie_beyond_the_quorum_is_no_matter(three):
    options = {"add_timeout": 60, "read_timeout": 60, "add_quorum_timeout": 0.02}
    async with three.client(**options) as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        three.servers["b1"].silent = True
        until = asyncio.get_running_loop().time() + 0.06
        while asyncio.get_running_loop().time() < until:
            await ledger.append(b"x")
        assert ledger.failure is None


@pytest.mark.parametrize("name", ["add_quorum_timeout", "explicit_lac_interval"])
def test_times_must_be_positive(three, name):
    with pytest.raises(BadRequest, match=f"{name} .*not 0"):
        three.client(**{name: 0})
