"""Which bookies are asked for lists of their entries: those that are silent for good are not, for a while."""

import asyncio

import pytest

from bookie_client.replication import lists
from bookie_client.replication.lists import LISTS_TO_GIVE_UP, Lists, Silences
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import BookieTimeout, NotThere
from bookie_protocol.wire.availability import Availability, decode_availability, encode_availability

HELD = decode_availability(encode_availability(range(3)))


class Bookie:
    def __init__(self) -> None:
        self.asked = 0
        self.answers: Availability | None = None

    async def ask(self, bookie: str, ledger_id: int) -> Availability:
        self.asked += 1
        await asyncio.sleep(0)
        if self.answers is None:
            raise BookieTimeout("no answer")
        return self.answers


async def test_a_moment_without_answers_is_one_silence_however_many_wait():
    bookie = Bookie()
    asking = Lists(bookie.ask, ReplicationThrottle())
    assert await asyncio.gather(*(asking.of("a", each) for each in range(20))) == [None] * 20
    bookie.answers = HELD
    assert await asking.of("a", 1) is HELD


async def test_a_bookie_that_was_given_up_is_asked_again_later(monkeypatch: pytest.MonkeyPatch):
    bookie, silences = Bookie(), Silences()
    asking, other = (Lists(bookie.ask, ReplicationThrottle(), silences) for _ in range(2))
    for _ in range(LISTS_TO_GIVE_UP):
        assert await asking.of("a", 1) is None
    bookie.answers = HELD
    assert [await each.of("a", 1) for each in (asking, other)] == [None, None]
    assert bookie.asked == LISTS_TO_GIVE_UP
    monkeypatch.setattr(lists, "SILENT_SECONDS", 0.0)
    assert await other.of("a", 1) is HELD
    monkeypatch.undo()
    assert await asking.of("a", 1) is HELD


async def test_a_denial_is_an_answer():
    async def denies(bookie: str, ledger_id: int) -> Availability:
        raise NotThere("it has none")

    silences = Silences()
    bookie = Bookie()
    for _ in range(LISTS_TO_GIVE_UP - 1):
        await Lists(bookie.ask, ReplicationThrottle(), silences).of("a", 1)
    with pytest.raises(NotThere):
        await Lists(denies, ReplicationThrottle(), silences).of("a", 1)
    for _ in range(LISTS_TO_GIVE_UP):
        await Lists(bookie.ask, ReplicationThrottle(), silences).of("a", 1)
    assert bookie.asked == 2 * LISTS_TO_GIVE_UP - 1
