"""Location indexes compacted on request."""

from __future__ import annotations

import threading

import pytest

from bookie_pod.admin.index import IndexCompactions
from bookie_protocol.errors import BadRequest, StorageFault


class Indexes:
    """Two indexes whose compaction waits for the test."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.done: list[str] = []

    def compact(self, name: str) -> None:
        self.begun.release()
        self.go.acquire()
        if name == "bad":
            raise StorageFault("no space")
        self.done.append(name)


@pytest.fixture
def indexes() -> Indexes:
    return Indexes()


def made(indexes: Indexes, *names: str) -> IndexCompactions:
    return IndexCompactions({name: lambda name=name: indexes.compact(name) for name in names})


def test_one_after_the_other_each_once(indexes: Indexes) -> None:
    compactions = made(indexes, "a", "b")
    compactions.start()
    indexes.begun.acquire()
    compactions.start(["a"])
    assert compactions.running() == {"a": True, "b": True}
    indexes.go.release()
    indexes.begun.acquire()
    assert compactions.running() == {"a": False, "b": True}
    indexes.go.release()
    compactions.stop()
    assert indexes.done == ["a", "b"]
    assert compactions.running() == {"a": False, "b": False}


def test_a_failure_is_over_and_the_next_one_runs(indexes: Indexes) -> None:
    compactions = made(indexes, "bad", "b")
    compactions.start()
    for _ in range(2):
        indexes.begun.acquire()
        indexes.go.release()
    compactions.stop()
    assert indexes.done == ["b"]
    assert compactions.running() == {"bad": False, "b": False}


def test_an_unknown_path_starts_nothing(indexes: Indexes) -> None:
    compactions = made(indexes, "a")
    with pytest.raises(BadRequest, match=r"/x is .*: a"):
        compactions.start(["a", "/x"])
    assert compactions.running() == {"a": False}
    compactions.stop()


def test_a_stop_forgets_what_waits(indexes: Indexes) -> None:
    compactions = made(indexes, "a", "b")
    compactions.start()
    indexes.begun.acquire()
    stopping = threading.Thread(target=compactions.stop)
    stopping.start()
    indexes.go.release()
    stopping.join(10)
    assert not stopping.is_alive()
    assert indexes.done in (["a"], ["a", "b"])
    compactions.start(["a"])
    assert not compactions.running()["a"]  # nothing begins any more
