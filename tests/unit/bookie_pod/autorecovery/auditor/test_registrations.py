"""Who is registered, asked in three looks at two groups that nobody sees at one moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bookie_pod.autorecovery.auditor.registrations import Registrations
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet


class Told:
    """Answers of `list`, one after the other, of either group; the last one stays."""

    def __init__(self, writable: list[str], read_only: list[str]) -> None:
        self._answers = {BookieGroup.WRITABLE: writable, BookieGroup.READ_ONLY: read_only}
        self.asked = 0

    async def list(self, group: BookieGroup) -> BookieSet:
        self.asked += 1
        answers = self._answers[group]
        return BookieSet(frozenset(answers.pop(0) if len(answers) > 1 else answers[0]), self.asked)


async def looked(told: Told) -> set[str]:
    found: list[frozenset[str]] = []
    service: Any = SimpleNamespace(bookies=told)
    await Registrations(service, found.append).look()
    (last,) = found
    return set(last)


async def test_where_nobody_moves_one_look_is_enough() -> None:
    told = Told(["ab"], ["c"])
    assert await looked(told) == set("abc")
    assert told.asked == 3


async def test_who_turns_read_only_meanwhile_is_looked_for_once_more() -> None:
    """`b` has left the writable ones before the third look, and came to the others behind the second."""
    told = Told(["ab", "a"], ["c", "bc"])
    assert await looked(told) == set("abc")
    assert told.asked == 6


async def test_who_is_gone_is_gone() -> None:
    told = Told(["ab", "a"], [""])
    assert await looked(told) == {"a"}
    assert told.asked == 6
