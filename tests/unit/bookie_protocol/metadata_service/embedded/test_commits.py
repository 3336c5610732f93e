"""Calls of the store that take many steps, and the calls of others meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.embedded import commits, staging
from bookie_protocol.metadata_service.embedded.commits import StoreThread
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.records import NodeRecord
from bookie_protocol.metadata_service.embedded.store import NodeStore
from tests.support.until import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeStore]:
    opened = NodeStore(str(tmp_path))
    yield opened
    opened.close()


def create(store: NodeStore, path: str) -> str:
    return store.create(path, b"", 0, False)[0]


def children(store: NodeStore) -> list[str]:
    return sorted(store.children("/")[0])


def make_until(enough: threading.Event, path: str, store: NodeStore) -> Generator[None, None, str]:
    staged = store.stage()
    staged.create(path, NodeRecord.new(b""))
    while not enough.is_set():
        yield
    store.commit(staged)
    return path


async def test_calls_that_read_come_between_the_steps_of_another_and_no_others(store: NodeStore) -> None:
    thread = StoreThread(store, lambda _: None, pytest.fail)
    post = asyncio.get_running_loop().create_task
    enough = threading.Event()
    making = post(thread.post_steps(partial(make_until, enough, "/made")))
    writing = [post(thread.post(partial(create, path=f"/n{number}"))) for number in range(3)]
    asking = post(thread.post(children))
    for _ in range(5):
        assert await thread.post(children, only_reads=True) == []
    assert not any(call.done() for call in (making, asking, *writing))
    enough.set()
    writing.append(post(thread.post(partial(create, path="/n3"))))
    assert await making == "/made"
    assert await asyncio.gather(*writing) == [f"/n{number}" for number in range(4)]
    assert await asking == ["made", "n0", "n1", "n2"], "in the order in which they were accepted"
    assert await thread.post(children) == ["made", "n0", "n1", "n2", "n3"]
    await thread.stop()


async def test_steps_are_finished_before_the_end_unless_their_caller_gives_up(store: NodeStore, tmp_path: Path) -> None:
    thread = StoreThread(store, lambda _: None, pytest.fail)
    post = asyncio.get_running_loop().create_task
    enough = threading.Event()
    given_up = post(thread.post_steps(partial(make_until, threading.Event(), "/given-up")))
    calls = [post(thread.post_steps(partial(make_until, enough, f"/n{number}"))) for number in range(2)]
    calls.append(post(thread.post(partial(create, path="/last"))))
    await until(lambda: thread.pending == 4)
    assert await thread.post(children, only_reads=True) == []
    given_up.cancel()
    await asyncio.wait([given_up])
    stopping = post(thread.stop())
    await asyncio.sleep(0)
    enough.set()
    assert await asyncio.gather(*calls) == ["/n0", "/n1", "/last"]
    await stopping
    assert thread.pending == 0
    again = NodeStore(str(tmp_path))
    assert children(again) == ["last", "n0", "n1"]
    again.close()


@pytest.mark.parametrize("gives_up", [False, True])
async def test_the_thread_stops_although_nothing_but_a_step_is_under_way(store: NodeStore, *, gives_up: bool) -> None:
    thread = StoreThread(store, lambda _: None, pytest.fail)
    in_step, go_on = threading.Event(), threading.Event()

    def steps(_: NodeStore) -> Generator[None, None, str]:
        yield
        in_step.set()
        go_on.wait()
        yield
        return "done"

    call = asyncio.create_task(thread.post_steps(steps))
    assert await asyncio.to_thread(in_step.wait, 10)
    if gives_up:
        call.cancel()
        await asyncio.wait([call])
    stopping = [asyncio.create_task(thread.stop()) for _ in range(2)]
    await asyncio.sleep(0)
    go_on.set()
    ended, _ = await asyncio.wait(stopping, timeout=10)
    if not ended:
        thread._calls.put(None)  # so that this test ends
    assert len(ended) == 2
    assert gives_up or await call == "done"
    assert thread.pending == 0


async def test_few_calls_that_read_come_between_two_steps(store: NodeStore) -> None:
    thread = StoreThread(store, lambda _: None, pytest.fail)
    post = asyncio.get_running_loop().create_task
    ran: list[str] = []
    in_step, go_on = threading.Event(), threading.Event()

    def steps(_: NodeStore) -> Generator[None, None, None]:
        in_step.set()
        go_on.wait()
        for _ in range(3):
            yield
            ran.append("step")

    def run(name: str) -> Coroutine[None, None, None]:
        return thread.post(lambda _: ran.append(name), only_reads=name == "read")

    calls = [post(thread.post_steps(steps))]
    assert await asyncio.to_thread(in_step.wait, 10)
    calls += [post(run("write")) for _ in range(2 * commits.MAX_READS)]
    calls += [post(run("read")) for _ in range(commits.MAX_GROUP)]
    await until(lambda: thread.pending == len(calls))
    go_on.set()
    await asyncio.gather(*calls)
    few = ["read"] * commits.MAX_READS
    assert len(few) <= 16
    until_over = ran[: ran.index("write")]
    assert until_over == ["step", *few, "step", *few, "step"], "calls that may write take no place of those that read"
    await thread.stop()


async def test_an_error_in_a_step_is_the_callers(store: NodeStore) -> None:
    thread = StoreThread(store, lambda _: None, pytest.fail)

    def fail(_: NodeStore) -> Generator[None, None, str]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.post_steps(fail)
    assert await thread.post(partial(create, path="/n")) == "/n"
    await thread.stop()


async def test_many_nodes_are_created_in_steps_and_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STEP", 50)
    owner = await EmbeddedOwner.open(str(tmp_path / "owned"))
    service = await connect_local(owner, 10.0)
    nodes = [("/all", b""), *((f"/all/{number:03d}", b"") for number in range(500))]
    seen = set()
    making = asyncio.create_task(service.tree.create_all(nodes))
    while not making.done():
        found = await service.tree.exists("/all")
        seen.add(None if found is None else found.children)
    await making
    assert seen <= {None, 500}
    assert None in seen
    await service.close()
    await owner.close()
