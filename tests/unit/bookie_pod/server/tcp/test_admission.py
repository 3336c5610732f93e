"""Who may add now, and who is told when that changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from bookie_pod.server.tcp.admission import WriteAdmission
from tests.support.frames import KEY, entry
from tests.support.server_rig import HeldJournal, ServerRig


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig(journals=[HeldJournal(), HeldJournal()], half_bytes=4096, directories=2)
    yield made
    made.close()


def fill(rig: ServerRig, ledger_id: int) -> None:
    """Make the active half of the ledger's directory full."""
    rig.ledgers.for_write(ledger_id, KEY)
    rig.storage.active_entries(ledger_id)[0] = entry(ledger_id, 0, bytes(5000))
    assert rig.storage.account(ledger_id, 5032, 1)


class Waiting:
    """Has `adds` of one kind to admit, one a turn, and counts how often it was asked."""

    def __init__(self, adds: int = 1, log: list[Waiting] | None = None) -> None:
        self.adds = adds
        self.turns = self.modes = 0
        self.log = log if log is not None else []

    def admit_some(self, place: int) -> bool:
        self.turns += 1
        self.adds -= 1
        self.log.append(self)
        return self.adds > 0

    def mode_changed(self) -> None:
        self.modes += 1


async def test_a_full_directory_blocks_its_own_ledgers_only(rig: ServerRig) -> None:
    fill(rig, 2)
    assert not rig.admission.has_room(4)
    assert rig.admission.has_room(3)
    assert not rig.admission.hot
    assert set(rig.flush_requests) == {4}
    assert rig.admission.cache_full(4)
    assert not rig.admission.cache_full(3)


async def test_space_admits_what_waits_and_heats(rig: ServerRig) -> None:
    fill(rig, 2)
    rig.admission.filled(2)
    waiting = Waiting()
    rig.admission.wait(rig.admission.place_of(2), waiting)
    rig.admission.started(1)
    rig.admission.finished(1)
    assert waiting.turns == 0  # an acknowledgement elsewhere makes no room in the cache
    rig.storage.flush()
    assert waiting.turns == 1
    assert rig.admission.hot
    rig.storage.flush()
    rig.admission.refresh()
    assert waiting.turns == 1


async def test_a_full_journal_blocks_its_own_ledgers_only(rig: ServerRig) -> None:
    rig.journals[1].full = True
    assert rig.admission.has_room(2)
    assert not rig.admission.has_room(3)
    rig.admission.started(1)
    assert not rig.admission.hot
    waiting = Waiting()
    rig.admission.wait(rig.admission.place_of(3), waiting)
    rig.admission.refresh()
    assert waiting.turns == 0
    rig.journals[1].full = False
    rig.admission.finished(1)
    assert waiting.turns == 1
    assert rig.admission.hot


async def test_adds_in_progress(rig: ServerRig) -> None:
    admission = WriteAdmission(rig.storage, rig.journals, adds_in_progress_max=3)
    admission.started(2)
    assert admission.has_room(2)
    assert admission.hot
    admission.started(2)  # what one socket read holds may pass the limit
    assert not admission.has_room(2)
    assert not admission.hot
    waiting = Waiting()
    admission.wait(0, waiting)
    admission.finished(1)
    assert waiting.turns == 0
    admission.finished(1)
    assert waiting.turns == 1
    assert admission.hot
    assert admission.adds_in_progress == 2


async def test_those_who_wait_take_turns(rig: ServerRig) -> None:
    rig.journal.full = True
    log: list[Waiting] = []
    greedy, modest = Waiting(3, log), Waiting(1, log)
    for waiting in (greedy, modest):
        rig.admission.wait(0, waiting)
    rig.journal.full = False
    rig.admission.refresh()
    assert log == [greedy, modest, greedy, greedy]


async def test_an_acknowledgement_costs_what_it_admits_whatever_waits(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand connections and as many ledgers wait for a journal that is full: nobody walks through them."""
    rig.journal.full = True
    for ledger_id in range(0, 20_000, 2):
        assert not rig.admission.has_room(ledger_id)
        rig.admission.wait(rig.admission.place_of(ledger_id), Waiting())
    fill(rig, 1)
    for ledger_id in range(1, 20_000, 2):
        assert not rig.admission.has_room(ledger_id)
    looks = 0

    def counted(look: Callable[..., bool]) -> Callable[..., bool]:
        def counting(*args: int) -> bool:
            nonlocal looks
            looks += 1
            return look(*args)

        return counting

    monkeypatch.setattr(rig.storage, "is_full", counted(rig.storage.is_full))
    monkeypatch.setattr(rig.journal, "has_room", counted(rig.journal.has_room))
    for _ in range(100):
        rig.admission.started(1)
        rig.admission.finished(1)
    assert looks < 100 * 10


async def test_read_only_refuses_and_tells_the_waiting(rig: ServerRig) -> None:
    admission = rig.admission
    rig.journal.full = True
    assert not admission.has_room(2)
    waiting = Waiting()
    admission.wait(0, waiting)
    admission.wait(1, waiting)
    admission.set_mode(read_only=True, high_priority_writes=True)
    assert waiting.modes == 1  # so that what waits is refused, not left waiting
    assert admission.refuses(high_priority=False)
    assert not admission.refuses(high_priority=True)
    admission.set_mode(read_only=True, high_priority_writes=False)
    assert admission.refuses(high_priority=True)
    assert not admission.hot
    rig.journal.full = False
    admission.set_mode(read_only=False, high_priority_writes=True)
    assert not admission.refuses(high_priority=False)
    assert admission.hot


async def test_who_stopped_waiting_is_not_asked(rig: ServerRig) -> None:
    waiting = Waiting()
    rig.admission.wait(0, waiting)
    rig.admission.stop_waiting(0, waiting)
    rig.admission.stop_waiting(0, waiting)
    rig.admission.set_mode(read_only=True, high_priority_writes=True)
    assert (waiting.turns, waiting.modes) == (0, 0)


async def test_room_that_is_made_while_others_are_admitted_is_given_away_behind_them(rig: ServerRig) -> None:
    """Nobody is asked in the middle of another's turn."""
    log: list[str] = []

    class Makes(Waiting):
        def admit_some(self, place: int) -> bool:
            log.append("begins")
            rig.journals[1].full = False
            rig.admission.refresh()
            log.append("ends")
            return False

    class Noted(Waiting):
        def admit_some(self, place: int) -> bool:
            log.append(f"place {place}")
            return False

    for journal in rig.journals:
        journal.full = True
    rig.admission.wait(1, Noted())
    rig.admission.wait(0, Makes())
    rig.journal.full = False
    rig.admission.refresh()
    assert log == ["begins", "ends", "place 1"]


async def test_who_leaves_in_its_turn_is_not_put_behind_the_others(rig: ServerRig) -> None:
    class Leaves(Waiting):
        def admit_some(self, place: int) -> bool:
            rig.admission.stop_waiting(place, self)
            return True

    rig.journal.full = True
    modest = Waiting()
    for waiting in (Leaves(), modest):
        rig.admission.wait(0, waiting)
    rig.journal.full = False
    rig.admission.refresh()
    assert modest.turns == 1


async def test_of_one_limit_as_many_adds_are_in_progress(rig: ServerRig) -> None:
    admission = WriteAdmission(rig.storage, rig.journals, adds_in_progress_max=2)
    for entries, room in ((1, True), (1, False)):
        admission.started(entries)
        assert (admission.has_room(0), admission.hot) == (room, room)
    unlimited = WriteAdmission(rig.storage, rig.journals)
    unlimited.started(1 << 20)
    assert (unlimited.has_room(0), unlimited.hot) == (True, True)


async def test_places_are_as_many_as_tell_caches_and_journals_apart(rig: ServerRig) -> None:
    admission = WriteAdmission(rig.storage, [HeldJournal(), HeldJournal(), HeldJournal()])
    assert {admission.place_of(ledger_id) for ledger_id in range(100)} == set(range(6))
    assert (admission.place_of(13), admission.place_of(-1)) == (1, 5)


async def test_an_acknowledgement_changes_nothing_where_nobody_waits(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[bool] = []
    monkeypatch.setattr(rig.admission, "refresh", lambda: refreshed.append(True))
    rig.admission.acknowledged()
    assert refreshed == []
    rig.admission.wait(0, Waiting())
    rig.admission.acknowledged()
    rig.admission.stop_waiting(0, next(iter(rig.admission._waiting[0])))
    rig.admission.hot = False
    rig.admission.acknowledged()
    assert len(refreshed) == 2


async def test_a_read_only_bookie_is_not_hot_again_by_room(rig: ServerRig) -> None:
    rig.admission.set_mode(read_only=True, high_priority_writes=True)
    assert (rig.admission.read_only, rig.admission.hot) == (True, False)
    rig.admission.started(1)
    assert not rig.admission.hot
    rig.admission.finished(1)
    assert not rig.admission.hot
