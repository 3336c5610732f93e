"""The watch over threads and tasks: what ends, and what makes no progress, is found; what ends by nature is not."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import storage_start
from bookie_pod.node.processes import watch as watching
from bookie_pod.node.processes.watch import PartEnded, Step, Watch
from bookie_pod.node.storage_start import StorageStart
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.lasting import lasting_task
from tests.support.until import until

if TYPE_CHECKING:
    from bookie_pod.node.parts import StorageSide


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.01)


@contextmanager
def thread(name: str) -> Iterator[Callable[[], None]]:
    """A thread of this name, and what ends it."""
    ended = threading.Event()
    made = threading.Thread(target=ended.wait, name=name, daemon=True)
    made.start()

    def end() -> None:
        ended.set()
        made.join()

    yield end
    end()


async def found(watch: Watch) -> str:
    with pytest.raises(PartEnded) as caught:
        await asyncio.wait_for(watch.run(), 10)
    return str(caught.value)


async def looks(watch: Watch) -> None:
    """It runs for some looks and finds nothing."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.run(), 0.1)


@pytest.mark.parametrize("name", ["journal-0", "storage-1_0", "a thread that nobody has told of"])
async def test_a_thread_that_ends_is_found_whatever_its_name(name: str) -> None:
    watch = Watch()
    with thread(name) as end:
        run = asyncio.create_task(found(watch))
        await asyncio.sleep(0.02)
        end()
        assert (await run).startswith(f"the thread {name} ended: ")


async def test_a_thread_that_ends_before_the_next_look_is_found() -> None:
    """As an executor's does that dies of its first piece of work; its owner still waits for it."""
    watch = Watch()
    with thread("storage-0_0") as end:
        end()
        assert "the thread storage-0_0 ended" in await found(watch)


async def test_a_thread_that_ended_before_the_watch_began_is_nobodys_fault() -> None:
    with thread("storage-0_0") as end:
        end()
        await looks(Watch())


@pytest.mark.parametrize(
    "name",
    [
        "Thread-5 (zk_loop)",
        "ThreadPoolExecutor-0_0",
        "journal-3-next-file",
        "index-rebuild",
        "storage-0-retry",
        "asyncio-waitpid-0",
    ],
)
async def test_what_ends_by_nature_is_no_fault(name: str) -> None:
    watch = Watch()
    with thread(name) as end:
        await looks(watch)
        end()
        await looks(watch)


async def test_a_thread_that_python_did_not_begin_may_end() -> None:
    """It stays in Python's list until another one gets its number."""
    watch, seen, go_on = Watch(), threading.Event(), threading.Event()
    numbers: list[int] = []

    def foreign() -> None:
        numbers.append(threading.current_thread().ident or 0)
        seen.set()
        go_on.wait(10)

    _thread.start_new_thread(foreign, ())
    assert seen.wait(10)
    await looks(watch)
    go_on.set()
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        del threading._active[numbers[0]]  # type: ignore[attr-defined]
    await looks(watch)


async def test_while_the_process_ends_threads_and_tasks_may_end() -> None:
    watch = Watch()

    async def nothing() -> None: ...

    with thread("gc-0") as end:
        await looks(watch)
        watch.ending()
        end()
        await lasting_task(nothing(), "session")
        await looks(watch)


async def test_a_thread_ends_too_early_if_a_step_still_needs_it() -> None:
    """A stop waits for a last flush: that one never ends if nobody is left to make it."""
    at: list[object | None] = [None]
    watch = Watch(lambda: [Step("checkpoint", at[0], 1000, needs="storage-*")])
    with thread("storage-0_0") as end, thread("read-0") as end_another:
        await looks(watch)
        watch.ending()
        at[0] = 1
        end_another()
        await looks(watch)
        end()
        assert "storage-0_0" in await found(watch)


async def test_what_ended_before_the_process_was_told_to_end_is_found() -> None:
    watch = Watch()
    with thread("storage-0_0") as end:
        await looks(watch)
        end()
        watch.ending()
        assert "storage-0_0" in await found(watch)


async def test_a_step_that_stays_the_same_makes_it_slow_and_then_ends_it() -> None:
    slow: list[str] = []
    watch = Watch(lambda: [Step("journal-0", 7, 0.2), Step("journal-1", None, 0.01)])

    async def note() -> None:
        await until(lambda: watch.slow)
        slow.extend(watch.slow)

    noting = asyncio.create_task(note())
    assert (await found(watch)).startswith("the thread journal-0 has made no progress for ")
    await noting
    assert [line.partition(" has ")[0] for line in slow] == ["the thread journal-0"]


async def test_steps_that_go_on_are_no_fault() -> None:
    at = iter(range(10_000))
    watch = Watch(lambda: [Step("journal-0", next(at), 0.02)])
    await looks(watch)
    assert not watch.slow


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), None], ids=["raises", "returns"])
async def test_a_lasting_task_that_ends_is_found(fault: Exception | None) -> None:
    watch = Watch()

    async def work() -> None:
        await asyncio.sleep(0)
        if fault is not None:
            raise fault

    lasting_task(work(), "registration")
    assert (await found(watch)).startswith("the task of the registration ended")


async def test_a_lasting_task_that_its_owner_cancels_is_no_fault() -> None:
    watch = Watch()
    task = lasting_task(asyncio.Event().wait(), "session")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    await looks(watch)


# --- a start ----------------------------------------------------------------------------------------------------------


async def doubt(reason: str) -> None:
    """Nothing is given up."""


@contextmanager
def replaying(
    monkeypatch: pytest.MonkeyPatch, replay: Callable[..., object]
) -> Iterator[tuple[StorageStart, asyncio.Task[object]]]:
    """A start whose replay does this."""
    start = StorageStart(BookieConfig(), PosixFiles(), lambda work: None, Registry())
    start.side = cast("StorageSide", SimpleNamespace(storage=SimpleNamespace(flushing=list)))
    monkeypatch.setattr(storage_start, "replay_journals", replay)
    assert start.step() is None
    yield start, asyncio.create_task(start.replay("replaying journals", doubt))
    assert start.step() is None


async def test_a_replay_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes are answered meanwhile, so nobody else would end it."""
    released = threading.Event()
    with replaying(monkeypatch, lambda *_, **__: released.wait()) as (start, task):
        watch = Watch(lambda: [Step("start-up", start.step(), 0.1)])
        assert "the thread start-up has made no progress" in await found(watch)
        released.set()
        await task


async def test_a_replay_that_takes_long_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def replay(*_: object, cancelled: Callable[[], bool], **__: object) -> None:
        while not released.wait(0.001):
            cancelled()

    with replaying(monkeypatch, replay) as (start, task):
        seen: set[object] = set()
        await until(lambda: seen.add(start.step()) or len(seen) > 3)
        released.set()
        await task
