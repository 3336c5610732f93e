"""Answers are laid out beside the event loop when strangers made them large."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import pytest

from bookie_pod.server.http.api.rendering import SMALL, Renderer, is_small, jackson
from bookie_protocol.admin_api.bodies import plain
from bookie_protocol.admin_api.cluster import EnsembleMember


class Watched(Mapping[str, int]):
    """Notes the threads on which it is read."""

    def __init__(self, members: int) -> None:
        self.members = {str(number): number for number in range(members)}
        self.threads = set[int]()

    def __getitem__(self, name: str) -> int:
        return self.members[name]

    def __iter__(self) -> Iterator[str]:
        self.threads.add(threading.get_ident())
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


async def test_a_small_answer_is_laid_out_at_once_and_a_large_one_elsewhere() -> None:
    renderer, here = Renderer(), threading.get_ident()
    for members, is_here in ((10, True), (SMALL + 1, False)):
        value = Watched(members)
        assert await renderer.text([value]) == jackson(plain([value.members]))
        assert (here in value.threads, len(value.threads)) == (is_here, 1)


async def test_one_large_answer_is_laid_out_at_a_time_though_its_caller_has_gone() -> None:
    renderer, at_work, most = Renderer(), 0, 0
    begun, go = threading.Event(), threading.Event()

    class Slow(Watched):
        def __iter__(self) -> Iterator[str]:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            begun.set()
            assert go.wait(10)
            at_work -= 1
            return super().__iter__()

    tasks = [asyncio.create_task(renderer.text(Slow(SMALL + 1))) for _ in range(3)]
    assert await asyncio.to_thread(begun.wait, 10)
    tasks[0].cancel()
    go.set()
    assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)][1:] == [str, str]
    assert (tasks[0].cancelled(), most) == (True, 1)


@pytest.mark.parametrize(
    "value",
    [
        list(range(SMALL)),
        [EnsembleMember("b:1")] * SMALL,
        {"a": {"b": {str(each): [] for each in range(SMALL)}}},
        {"x" * 1_000_000: 1},
        ["x" * 1_000_000],
        [[[]] * 100] * 100,
        object(),
    ],
)
def test_all_that_makes_an_answer_large_counts(value: object) -> None:
    assert not is_small(value)
    assert not is_small([value])
    assert not is_small({"member": value})


def test_what_is_small() -> None:
    assert all(map(is_small, (None, True, 1, 1.5, "x", [], {}, {"a": [EnsembleMember("b:1")]}, list(range(SMALL - 1)))))
