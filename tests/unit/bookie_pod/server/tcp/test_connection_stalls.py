"""Whose turn it is to be served on: so many bytes, and so many connections, in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_pod.server.tcp.connection_stalls import GO_ON_PER_TURN, LARGE_PER_TURN, PART, LoopTurns


class Turns(asyncio.AbstractEventLoop):
    """A loop whose turns a test takes."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:  # type: ignore[override]
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def loop() -> Turns:
    return Turns()


def nobody() -> None:
    raise AssertionError("who was not told to wait is not called")


def test_a_turn_has_so_many_bytes_and_the_next_one_as_many(loop: Turns) -> None:
    turns, went_on = LoopTurns(loop), []
    assert turns.came(LARGE_PER_TURN - 1, nobody)
    assert turns.came(1, nobody)
    assert not turns.came(1, lambda: went_on.append("first"))
    assert len(loop.due) == 1, "one look at the next turn, however much came in this one"
    assert went_on == []
    loop.turn()
    assert (went_on, loop.due) == (["first"], [])
    assert turns.came(LARGE_PER_TURN, nobody)


def test_more_than_a_turns_bytes_at_once_wait(loop: Turns) -> None:
    turns = LoopTurns(loop)
    assert not turns.came(LARGE_PER_TURN + 1, list)
    loop.turn()
    assert loop.due == []


def test_whoever_has_had_its_part_waits_if_others_do(loop: Turns) -> None:
    turns, went_on = LoopTurns(loop), []
    assert turns.came(1, nobody, PART)
    assert not turns.came(LARGE_PER_TURN, lambda: went_on.append("greedy"))
    for number in range(GO_ON_PER_TURN):
        assert not turns.came(1, lambda number=number: went_on.append(number))  # type: ignore[misc]
    loop.turn()
    assert went_on == ["greedy", *range(GO_ON_PER_TURN - 1)]
    assert turns.came(1, nobody, PART - 1)
    assert not turns.came(1, lambda: went_on.append("its part"), PART)
    assert len(loop.due) == 1, "nobody asks again for a turn that comes anyway"
    loop.turn()
    assert went_on[GO_ON_PER_TURN:] == [GO_ON_PER_TURN - 1, "its part"]
    assert loop.due == []


def test_who_waits_again_in_its_turn_has_the_next_one(loop: Turns) -> None:
    turns, went_on = LoopTurns(loop), []

    def again() -> None:
        went_on.append(turns.came(LARGE_PER_TURN + 1, lambda: went_on.append("done")))

    assert not turns.came(LARGE_PER_TURN + 1, again)
    loop.turn()
    assert went_on == [False]
    while loop.due:
        loop.turn()
    assert went_on == [False, "done"]
