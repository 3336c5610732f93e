"""Passes over many clusters: one after the other for each, woken, spaced, and never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from bookie_operator.api.errors import Unreachable
from bookie_operator.metrics import OperatorMetrics
from bookie_operator.reconcile import keeping
from bookie_operator.reconcile.context import Settings
from bookie_operator.reconcile.keeping import Keeper

Pass = Callable[[object, str, str], Awaitable[float | None]]
Peeks = dict[tuple[str, str], Callable[[], Awaitable[bool]]]


@pytest.fixture(autouse=True)
def _no_spacing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SPACING_S", 0.001)
    monkeypatch.setattr(keeping, "FOLLOW_S", 0.005)


@asynccontextmanager
async def keeper(
    one_pass: Pass, leading: Callable[[], bool] = lambda: True, at_once: int = 16, peeks: Peeks | None = None
) -> AsyncIterator[Keeper]:
    settings = Settings(peek_s=0.001) if peeks else Settings()
    context = Mock(leading=leading, metrics=OperatorMetrics(), passes=asyncio.Semaphore(at_once), settings=settings)
    found = Keeper(context, one_pass=one_pass, peeks=peeks)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        await found.stop()


async def test_an_event_wakes_a_cluster_that_rests() -> None:
    passes: asyncio.Queue[str] = asyncio.Queue()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        passes.put_nowait(f"{namespace}/{name}")
        return 3600.0

    async with asyncio.timeout(10), keeper(one_pass) as found:
        found.wake("a", "x")
        assert await passes.get() == "a/x"
        found.wake("a", "y", new=False)
        for _ in range(3):
            found.wake("a", "x", new=False)
            assert await passes.get() == "a/x"


async def test_a_cluster_at_rest_is_looked_at_as_soon_as_its_metadata_service_answers_no_more() -> None:
    passes, answers = 0, [True, True, True, False]
    both = asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        nonlocal passes
        passes += 1
        if passes == 2:
            both.set()
        return 3600.0

    async def peek() -> bool:
        assert passes == 1
        answer = answers.pop(0)
        if not answers:
            peeks.clear()
        return answer

    peeks: Peeks = {("a", "x"): peek}
    async with asyncio.timeout(10), keeper(one_pass, peeks=peeks) as found:
        found.wake("a", "x")
        await both.wait()
    assert passes == 2


async def peeked(peek: Callable[[], Awaitable[bool]], wake: asyncio.Event | None = None) -> None:
    """Until the second pass; `wake`: when the cluster is woken."""
    passes, again = 0, asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        nonlocal passes
        passes += 1
        if passes == 2:
            peeks.clear()
            again.set()
        return 3600.0

    peeks: Peeks = {("a", "x"): peek}
    async with asyncio.timeout(10), keeper(one_pass, peeks=peeks) as found:
        found.wake("a", "x")
        if wake is not None:
            await wake.wait()
            found.wake("a", "x", new=False)
        await again.wait()


async def test_a_peek_that_fails_in_any_way_leads_to_a_pass_and_the_cluster_is_kept() -> None:
    async def peek() -> bool:
        raise ValueError("a bug")

    await peeked(peek)


async def test_a_peek_that_hangs_does_not_keep_a_wake_up_waiting() -> None:
    asked = asyncio.Event()

    async def peek() -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    await peeked(peek, asked)


async def test_passes_over_a_cluster_do_not_overlap_and_those_over_several_do() -> None:
    running: set[str] = set()
    most = 0
    both = asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        nonlocal most
        assert name not in running
        running.add(name)
        most = max(most, len(running))
        if most == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0)
        running.discard(name)
        return 0.0

    async with asyncio.timeout(10), keeper(one_pass) as found:
        for _ in range(50):
            found.wake("a", "x")
            found.wake("a", "y")
            await asyncio.sleep(0.001)
    assert most == 2


async def test_a_pass_that_fails_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_MOST_S", 0.01)
    errors = [Unreachable("gone"), ValueError("a bug"), None]
    done = asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        error = errors.pop(0)
        if error is not None:
            raise error
        done.set()
        return 3600.0

    async with asyncio.timeout(10), keeper(one_pass) as found:
        found.wake("a", "x")
        await done.wait()


async def test_a_cluster_that_is_gone_is_kept_no_longer_and_may_come_again() -> None:
    count = 0
    ended = asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float | None:
        nonlocal count
        count += 1
        ended.set()
        return None

    async with asyncio.timeout(10), keeper(one_pass) as found:
        for turn in (1, 2):
            ended.clear()
            found.wake("a", "x")
            await ended.wait()
            await asyncio.sleep(0.01)
            found.wake("a", "x", new=False)
            assert count == turn


async def test_one_that_is_made_anew_while_its_end_is_found_is_kept() -> None:
    looking, again, kept = asyncio.Event(), asyncio.Event(), asyncio.Event()
    passes = 0

    async def one_pass(context: object, name: str, namespace: str) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 1:
            looking.set()
            await again.wait()
            return None
        kept.set()
        return 3600.0

    async with asyncio.timeout(10), keeper(one_pass) as found:
        found.wake("a", "x")
        await looking.wait()
        found.wake("a", "x")
        again.set()
        await kept.wait()


async def test_who_does_not_lead_makes_no_pass_until_it_does() -> None:
    leads = False
    passed = asyncio.Event()

    async def one_pass(context: object, name: str, namespace: str) -> float:
        assert leads
        passed.set()
        return 3600.0

    async with asyncio.timeout(10), keeper(one_pass, lambda: leads) as found:
        found.wake("a", "x")
        await asyncio.sleep(0.05)
        assert not passed.is_set()
        assert found.idle_for() < 0.05
        leads = True
        await passed.wait()


async def test_stopping_lets_a_pass_end_and_begins_no_other() -> None:
    entered, release, finished = asyncio.Event(), asyncio.Event(), []

    async def one_pass(context: object, name: str, namespace: str) -> float:
        entered.set()
        await release.wait()
        finished.append(name)
        return 0.0

    async with asyncio.timeout(10), keeper(one_pass) as found:
        found.wake("a", "x")
        await entered.wait()
        assert found.idle_for() >= 0.0
        stopping = asyncio.create_task(found.stop())
        await asyncio.sleep(0)
        release.set()
        await stopping
        assert finished == ["x"]
        found.wake("a", "y")
    assert finished == ["x"]


async def test_no_more_passes_than_the_bound_run_at_once() -> None:
    running = most = 0
    ended = asyncio.Semaphore(0)

    async def one_pass(context: object, name: str, namespace: str) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        ended.release()
        return 3600.0

    async with asyncio.timeout(10), keeper(one_pass, at_once=3) as found:
        for number in range(20):
            found.wake("a", f"c-{number}")
        for _ in range(20):
            await ended.acquire()
    assert most == 3


@pytest.mark.parametrize(
    ("clusters", "asked", "pause"),
    [
        (1, 30.0, 30.0),
        (29, 30.0, 30.0),
        (100, 30.0, 100.0),
        (1000, 30.0, 150.0),
        (100, 5.0, 5.0),
        (100, 3600.0, 3600.0),
    ],
)
async def test_many_that_rest_are_looked_at_more_rarely(clusters: int, asked: float, pause: float) -> None:
    async def one_pass(context: object, name: str, namespace: str) -> float:
        return 3600.0

    async with keeper(one_pass) as found:
        for number in range(clusters):
            found.wake("a", f"c-{number}")
        assert found._paced(asked) == pause
