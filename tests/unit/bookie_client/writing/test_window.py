"""Back-pressure: limits, order, cancellation."""

import asyncio

from bookie_client.writing.window import Window


async def waiting(window, *sizes):
    tasks = [asyncio.create_task(window.acquire(size)) for size in sizes]
    await asyncio.sleep(0)
    return tasks


async def test_entries_and_bytes_are_limited():
    window = Window(2, 100, 1000)
    assert window.try_acquire(60)
    assert not window.try_acquire(60)
    assert window.try_acquire(40)
    assert not window.try_acquire(0)
    window.release(1, 60)
    assert window.try_acquire(60)
    assert (window.entries, window.nbytes) == (2, 100)


async def test_an_add_larger_than_the_window_passes_alone():
    window = Window(2, 100, 1000)
    assert window.try_acquire(500)
    assert not window.try_acquire(1)
    window.release(1, 500)
    assert window.try_acquire(1)
    assert not window.try_acquire(500)


async def test_many_adds_pass_together_or_not_at_all():
    window = Window(10, 100, 1000)
    assert not window.try_acquire(101, 2)  # nor does an empty window let them pass
    assert not window.try_acquire(11, 11)
    assert (window.entries, window.nbytes) == (0, 0)
    assert window.try_acquire(60, 6)
    assert not window.try_acquire(41, 4)
    assert not window.try_acquire(5, 5)
    assert window.try_acquire(40, 4)
    assert (window.entries, window.nbytes) == (10, 100)


async def test_room_is_given_in_order_and_nobody_overtakes():
    window = Window(10, 100, 1000)
    window.try_acquire(100)
    large, small = await waiting(window, 90, 5)
    window.release(1, 100)
    assert not window.try_acquire(80)
    await asyncio.gather(large, small)
    assert window.nbytes == 95


async def test_nobody_overtakes_one_that_has_room_and_does_not_run_yet():
    window = Window(2, 100, 1000)
    assert window.try_acquire(50)
    assert window.try_acquire(50)
    order = []

    async def take(name):
        await window.acquire(10)
        order.append(name)

    first = asyncio.create_task(take("first"))
    await asyncio.sleep(0)
    window.release(2, 100)
    assert not window.try_acquire(10)  # there is room, but the first one does not run yet
    second = asyncio.create_task(take("second"))
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
    assert (window.entries, window.nbytes) == (2, 20)
    window.release(2, 20)
    assert window.try_acquire(10)


async def test_one_that_is_cancelled_with_room_gives_it_on():
    window = Window(1, 100, 1000)
    assert window.try_acquire(1)
    first, second = await waiting(window, 2, 3)
    window.release(1, 1)
    first.cancel()
    async with asyncio.timeout(5):
        await second
    assert (window.entries, window.nbytes) == (1, 3)


async def test_an_add_that_would_fit_waits_behind_one_that_does_not():
    window = Window(10, 100, 1000)
    window.try_acquire(60)
    large, small = await waiting(window, 90, 5)
    assert not window.try_acquire(5)
    assert not small.done()
    window.release(1, 60)
    await asyncio.gather(large, small)
    assert window.try_acquire(5)


async def test_adds_without_all_answers_have_a_limit_of_their_own():
    window = Window(10, 100, 150)
    for _ in range(2):
        window.try_acquire(100)
        window.release(1, 100, lingering=100)
    assert (window.nbytes, window.lingering) == (0, 200)
    (task,) = await waiting(window, 1)
    assert not task.done()
    window.release_lingering(100)
    await task


async def test_who_gives_up_waiting_gives_his_place_to_the_next():
    window = Window(10, 100, 1000)
    window.try_acquire(100)
    first, second, third = await waiting(window, 90, 50, 60)
    first.cancel()
    await asyncio.wait([first])
    window.release(1, 100)
    second.cancel()  # has been given room and does not know it yet
    await asyncio.wait([second])
    await third
    assert (window.entries, window.nbytes) == (1, 60)


async def test_who_is_cancelled_in_the_turn_in_which_room_comes_is_passed_over():
    window = Window(10, 100, 1000)
    window.try_acquire(100)
    first, second = await waiting(window, 90, 100)
    first.cancel()
    window.release(1, 100)  # before the cancelled task has run
    await second
    await asyncio.wait([first])
    assert first.cancelled()
    assert (window.entries, window.nbytes) == (1, 100)


async def test_who_waits_waits_for_slow_bookies_too():
    window = Window(10, 100, 150)
    window.try_acquire(100)
    (task,) = await waiting(window, 1)
    window.release(1, 100, lingering=151)
    await asyncio.sleep(0)
    assert not task.done()
    window.release_lingering(1)
    await task
    assert (window.entries, window.nbytes, window.lingering) == (1, 1, 150)
