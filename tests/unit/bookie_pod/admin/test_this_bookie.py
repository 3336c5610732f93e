"""A bookie's mode, changed over its admin API for a decommission that may be over by then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.membership import NotAMember
from bookie_protocol.errors import MetadataUnavailable, Refused

BEGAN = 1_700_000_000_000


class Mode:
    """Read-only by an operator's word, or not."""

    def __init__(self) -> None:
        self.manual = self.leaving = False
        self.announced: bool | None = None

    @property
    def read_only(self) -> bool:
        return self.manual or self.leaving

    def set_by_operator(self, read_only: bool) -> None:
        self.manual, self.leaving = read_only, self.leaving and read_only

    def set_leaving(self, leaving: bool) -> None:
        self.leaving = leaving

    async def announce(self) -> None:
        self.announced = self.read_only


class World:
    """One bookie. `answers`: what the metadata service says of the decommission, look by look; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: bool | Exception) -> None:
        self.mode = Mode()
        self.answers = list(answers)
        self.admitted = 0
        self.ended: NotAMember | None = None
        registration = SimpleNamespace(
            to_read_only=self.mode.announce, to_writable=self.mode.announce, admit=self.admit
        )
        parts = SimpleNamespace(
            config=BookieConfig(), mode=self.mode, registration=registration, metadata=None, bookie_id="b:1"
        )
        self.bookie = ThisBookie(parts, None, None)  # type: ignore[arg-type]
        monkeypatch.setattr("bookie_pod.admin.bookie.is_under_way", self.is_leaving)

    async def admit(self) -> bool:
        self.admitted += 1
        if self.ended is not None:
            raise self.ended
        return self.mode.read_only

    async def is_leaving(self, metadata: None, bookie_id: str, began_ms: int) -> bool:
        assert (bookie_id, began_ms) == ("b:1", BEGAN)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_decommission_that_goes_on_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, True)
    await world.bookie.set_read_only(True, BEGAN)
    assert world.mode.leaving is world.mode.announced is True
    assert not world.mode.manual, "if it is undone while the bookie is down, the next start is writable"
    assert world.admitted == 1, "its end is noticed"


async def test_a_request_of_a_decommission_that_is_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, False)
    with pytest.raises(Refused, match="is over"):
        await world.bookie.set_read_only(True, BEGAN)
    assert (world.mode.read_only, world.mode.announced) == (False, None)


@pytest.mark.parametrize("answer", [False, MetadataUnavailable("no answer")])
@pytest.mark.parametrize("before", [False, True])
async def test_one_that_is_undone_in_the_middle_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, answer: bool | Exception, before: bool
) -> None:
    world = World(monkeypatch, True, answer)
    world.mode.leaving = before
    with pytest.raises((Refused, MetadataUnavailable)):
        await world.bookie.set_read_only(True, BEGAN)
    assert world.mode.leaving is world.mode.announced is before


async def test_bookie_without_its_cookie_is_not_made_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decommission is done: it is up for as long as nobody stops it, and must take no data."""
    world = World(monkeypatch, True)
    await world.bookie.set_read_only(True)
    world.ended = NotAMember("its cookie is gone")
    with pytest.raises(Refused):
        await world.bookie.set_read_only(False)
    assert world.mode.manual
    world.ended = None
    await world.bookie.set_read_only(False)
    assert not world.mode.manual


async def test_an_operators_own_word_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, MetadataUnavailable("no answer"))
    await world.bookie.set_read_only(True)
    assert world.mode.manual


async def test_who_asks_in_the_meantime_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, True)
    looks, told = asyncio.Event(), asyncio.Event()

    async def undone(metadata: None, bookie_id: str, began_ms: int) -> bool:
        if not world.mode.leaving:
            return True
        looks.set()
        await told.wait()
        return False

    monkeypatch.setattr("bookie_pod.admin.bookie.is_under_way", undone)
    late = asyncio.create_task(world.bookie.set_read_only(True, BEGAN))
    await looks.wait()
    operators = asyncio.create_task(world.bookie.set_read_only(True))
    await asyncio.sleep(0)
    told.set()
    with pytest.raises(Refused, match="is over"):
        await late
    await operators
    assert world.mode.manual is world.mode.announced is True


async def test_a_request_that_is_given_up_in_the_middle_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin API waits for no request for ever; and the decommission may be over."""
    world = World(monkeypatch, True)
    looks = asyncio.Event()

    async def silent(metadata: None, bookie_id: str, began_ms: int) -> bool:
        if world.mode.leaving:
            looks.set()
            await asyncio.Event().wait()
        return True

    monkeypatch.setattr("bookie_pod.admin.bookie.is_under_way", silent)
    late = asyncio.create_task(world.bookie.set_read_only(True, BEGAN))
    await looks.wait()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert world.mode.leaving is world.mode.announced is False
