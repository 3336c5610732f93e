"""Tasks beside a bookie: which failures end it, and which do not."""

from __future__ import annotations

import asyncio

import pytest

from bookie_pod.node import background
from bookie_pod.node.background import BackgroundTasks


async def test_what_assists_begins_anew_and_ends_no_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ASSIST_RETRY_S", 0)
    failures: list[BaseException] = []
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)
    done, tries = asyncio.Event(), 0

    async def trim() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(24, "Too many open files")
        done.set()

    tasks.assist("trim", trim)
    await asyncio.wait_for(done.wait(), 10)
    assert (tries, failures) == (3, [])


async def test_any_other_failure_is_heard_of() -> None:
    heard: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    tasks = BackgroundTasks(asyncio.get_running_loop(), heard.set_result)

    async def fail() -> None:
        raise OSError(5, "Input/output error")

    tasks.run(fail())
    assert isinstance(await asyncio.wait_for(heard, 10), OSError)


async def test_cancelled_tasks_end() -> None:
    tasks = BackgroundTasks(asyncio.get_running_loop(), lambda error: None)
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    tasks.assist("wait", wait)
    await asyncio.sleep(0)
    tasks.cancel()
    await asyncio.wait_for(ended.wait(), 10)
