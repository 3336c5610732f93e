"""The byte budget: in order, bounded, nobody waits for ever."""

import asyncio

import pytest

from bookie_pod.gateway.appending import ByteBudget


async def asked(budget, nbytes):
    task = asyncio.create_task(budget.acquire(nbytes))
    await asyncio.sleep(0)
    return task


async def test_room_is_given_in_order():
    budget = ByteBudget(10)
    await budget.acquire(8)
    large, small = await asked(budget, 5), await asked(budget, 1)
    assert (large.done(), small.done()) == (False, False)  # the small one does not overtake
    budget.release(8)
    await asyncio.gather(large, small)
    assert budget.used == 6


async def test_what_is_larger_than_everything_passes_alone():
    budget = ByteBudget(10)
    await budget.acquire(1)
    huge = await asked(budget, 100)
    assert not huge.done()
    budget.release(1)
    await huge
    after = await asked(budget, 1)
    assert not after.done()
    budget.release(100)
    await after


@pytest.mark.parametrize("granted", [False, True])
async def test_who_gives_up_leaves_no_room_taken(granted):
    budget = ByteBudget(10)
    await budget.acquire(10)
    first, second = await asked(budget, 10), await asked(budget, 3)
    if granted:
        budget.release(10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if not granted:
        budget.release(10)
    await second
    assert budget.used == 3


async def test_who_is_cancelled_in_the_turn_in_which_room_comes_is_passed_over():
    budget = ByteBudget(10)
    await budget.acquire(10)
    first, second = await asked(budget, 10), await asked(budget, 3)
    first.cancel()
    budget.release(10)  # its task has not run since
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert budget.used == 3
