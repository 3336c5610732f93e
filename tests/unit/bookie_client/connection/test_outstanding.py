"""Requests that wait for their answers, several of them under one key."""

from __future__ import annotations

import pytest

from bookie_client.connection.request import Outstanding, Request
from bookie_protocol.errors import PodkeeperError


class Waits(Request):
    """`deadline` in ticks."""

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        raise AssertionError("who keeps requests does not answer them")

    def failed(self, error: PodkeeperError) -> None:
        raise AssertionError("who keeps requests does not end them")

    def describe(self) -> str:
        return f"the request of tick {self.deadline}"


def none_later(_: object) -> int:
    return 0


def three_of_one_key() -> tuple[Outstanding, list[Waits]]:
    outstanding, requests = Outstanding(), [Waits(7), Waits(3), Waits(5)]
    for request in requests:
        outstanding.put(b"k", request)
    return outstanding, requests


def test_what_is_taken_waits_no_more() -> None:
    outstanding, request = Outstanding(), Waits(1)
    outstanding.put(b"k", request)
    assert outstanding.take(b"other") is None
    assert outstanding.take(b"k") is request
    assert outstanding.take(b"k") is None


def test_answers_end_those_of_one_key_oldest_first() -> None:
    outstanding, requests = three_of_one_key()
    assert [outstanding.take(b"k") for _ in range(4)] == [*requests, None]
    assert not outstanding


def test_of_one_key_the_one_is_due_that_is_due_first() -> None:
    outstanding, (late, first, second) = three_of_one_key()
    assert outstanding.due(2, none_later) == []
    assert outstanding.due(9, none_later) == [(b"k", first)]
    assert outstanding.drop(b"k", first)
    assert outstanding.due(9, none_later) == [(b"k", second)]
    assert outstanding.drop(b"k", second)
    assert outstanding.due(9, none_later) == [(b"k", late)]


def test_a_deadline_can_be_moved() -> None:
    outstanding, request = Outstanding(), Waits(4)
    outstanding.put(b"k", request)
    assert outstanding.due(5, lambda _: 2) == []
    assert outstanding.due(6, lambda _: 2) == [(b"k", request)]


@pytest.mark.parametrize("place", range(3))
def test_what_was_given_up_is_not_taken_by_an_answer(place: int) -> None:
    outstanding, requests = three_of_one_key()
    given_up = requests.pop(place)
    assert outstanding.drop(b"k", given_up)
    assert not outstanding.drop(b"k", given_up)
    assert [outstanding.take(b"k") for _ in range(3)] == [*requests, None]


def test_what_was_taken_cannot_be_given_up() -> None:
    outstanding, requests = three_of_one_key()
    taken = outstanding.take(b"k")
    assert taken is requests[0]
    assert not outstanding.drop(b"k", taken)
    assert outstanding.take(b"k") is requests[1]
    assert not outstanding.drop(b"k", requests[1])
    assert not outstanding.drop(b"other", requests[2])


def test_all_of_them_are_told_one_by_one() -> None:
    outstanding, requests = three_of_one_key()
    alone = Waits(1)
    outstanding.put(b"alone", alone)
    assert list(outstanding.requests()) == [*requests, alone]
