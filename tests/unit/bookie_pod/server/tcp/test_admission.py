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


def counter() -> tuple[list[int], Callable[[], None]]:
    calls = [0]

    def call() -> None:
        calls[0] += 1

    return calls, call


async def test_a_full_directory_blocks_its_own_ledgers_only(rig: ServerRig) -> None:
    fill(rig, 2)
    assert not rig.admission.has_room(4)
    assert rig.admission.has_room(3)
    assert not rig.admission.hot
    assert set(rig.flush_requests) == {4}
    assert rig.admission.cache_full(4)
    assert not rig.admission.cache_full(3)


async def test_space_tells_the_waiting_once_and_heats(rig: ServerRig) -> None:
    fill(rig, 2)
    rig.admission.filled(2)
    calls, call = counter()
    rig.admission.wait(call)
    rig.admission.started(1)
    rig.admission.finished(1)
    assert calls == [0]  # an acknowledgement elsewhere makes no room in the cache
    rig.storage.flush()
    assert calls == [1]
    assert rig.admission.hot
    rig.storage.flush()
    rig.admission.refresh()
    assert calls == [1]


async def test_a_full_journal_blocks_its_own_ledgers_only(rig: ServerRig) -> None:
    rig.journals[1].full = True
    assert rig.admission.has_room(2)
    assert not rig.admission.has_room(3)
    rig.admission.started(1)
    assert not rig.admission.hot
    calls, call = counter()
    rig.admission.wait(call)
    rig.journals[1].full = False
    rig.admission.finished(1)
    assert calls == [1]
    assert rig.admission.hot


async def test_adds_in_progress(rig: ServerRig) -> None:
    admission = WriteAdmission(rig.storage, rig.journals, adds_in_progress_max=3)
    admission.started(2)
    assert admission.has_room(2)
    assert admission.hot
    admission.started(2)  # what one socket read holds may pass the limit
    assert not admission.has_room(2)
    assert not admission.hot
    calls, call = counter()
    admission.wait(call)
    admission.finished(1)
    assert calls == [0]
    admission.finished(1)
    assert calls == [1]
    assert admission.hot
    assert admission.adds_in_progress == 2


async def test_read_only_refuses_and_tells_the_waiting(rig: ServerRig) -> None:
    admission = rig.admission
    rig.journal.full = True
    assert not admission.has_room(2)
    calls, call = counter()
    admission.wait(call)
    admission.set_mode(read_only=True, high_priority_writes=True)
    assert calls == [1]  # so that what waits is refused, not left waiting
    assert admission.refuses(high_priority=False)
    assert not admission.refuses(high_priority=True)
    admission.set_mode(read_only=True, high_priority_writes=False)
    assert admission.refuses(high_priority=True)
    assert not admission.hot
    rig.journal.full = False
    admission.set_mode(read_only=False, high_priority_writes=True)
    assert not admission.refuses(high_priority=False)
    assert admission.hot


async def test_who_stopped_waiting_is_not_called(rig: ServerRig) -> None:
    calls, call = counter()
    rig.admission.wait(call)
    rig.admission.stop_waiting(call)
    rig.admission.stop_waiting(call)
    rig.admission.set_mode(read_only=True, high_priority_writes=True)
    assert calls == [0]
