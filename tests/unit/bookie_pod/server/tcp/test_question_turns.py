"""Turns of connections that wait for the metadata service."""

from __future__ import annotations

import asyncio
from typing import Any

from bookie_pod.server.tcp.question_turns import QuestionTurns, Turn
from tests.support.until import until


class Asked:
    """Questions that are under way until they are ended; `order`: those that had their turn."""

    def __init__(self, most: int) -> None:
        self.turns = QuestionTurns(most)
        self.order: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self._turns: dict[str, Turn] = {}
        self._tasks: list[asyncio.Future[None]] = []

    def ask(self, wire: Any, *names: str) -> None:
        for name in names:
            turn = self._turns.get(name)
            if turn is None:
                turn = self._turns[name] = asyncio.get_running_loop().create_future()
                self.ends[name] = asyncio.Event()
                self._tasks.append(asyncio.ensure_future(self._run(name)))
            self.turns.wait(turn, wire)

    def leave(self, wire: Any, name: str) -> None:
        self.turns.leave(self._turns[name], wire)

    async def _run(self, name: str) -> None:
        async with self.turns.one(self._turns[name]):
            self.order.append(name)
            await self.ends[name].wait()

    async def end_all(self) -> list[str]:
        """The questions in the order of their turns."""
        for end in self.ends.values():
            end.set()
        await until(lambda: len(self.order) == len(self.ends))
        return self.order


GREEDY: Any = object()
OTHER: Any = object()


async def test_many_requests_about_one_ledger_take_one_turn() -> None:
    asked = Asked(1)
    asked.ask(GREEDY, "first", "g1", "g2", "g3")
    asked.ask(OTHER, *["o1"] * 100, "o2")
    assert await asked.end_all() == ["first", "o1", "g1", "o2", "g2", "g3"]


async def test_a_turn_that_came_by_another_connection_is_not_this_ones() -> None:
    asked = Asked(2)
    asked.ask(GREEDY, "both1", "both2", "g1", "g2", "g3")
    await until(lambda: asked.order == ["both1", "both2"])
    third: Any = object()
    asked.ask(third, "t1", "t2", "t3")
    asked.ask(OTHER, "t1", "t2", "o1")
    assert await asked.end_all() == ["both1", "both2", "g1", "t1", "t2", "g2", "t3", "o1", "g3"]


async def test_who_waits_for_nothing_has_no_line() -> None:
    asked = Asked(1)
    asked.ask(GREEDY, "first", "second")
    asked.ask(OTHER, "second")
    await until(lambda: asked.order == ["first"])
    for wire in (OTHER, OTHER, GREEDY):
        asked.leave(wire, "second")
    assert not asked.turns._waiting
