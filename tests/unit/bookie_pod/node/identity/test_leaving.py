"""A bookie that is being decommissioned starts read-only: what it finds at its start, and what comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Phase, encode_record
from bookie_pod.autorecovery.decommission.store import FINISHED, DecommissionRequest, DecommissionStore, HeldRecord
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.node.identity.leaving import Leaving, decommissioned_at, has_left
from bookie_pod.node.mode import BookieMode
from bookie_pod.storage.disks import DiskVerdict
from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.decommission_rig import GOING, Gate, Rig
from tests.support.until import until

HEALTHY = DiskVerdict(1, 0, True, {}, ())


class Starting:
    """A bookie at its start."""

    def __init__(self, rig: Rig, options: DisksConfig | None = None, service: MetadataService | None = None) -> None:
        self.gate = Gate()
        self.fatal: list[PodkeeperError] = []
        self.mode = BookieMode(options or DisksConfig(), self.gate, self._run, self.fatal.append)
        self.leaving = Leaving(service or rig.service, GOING, self.mode)

    def _run(self, work: Awaitable[None]) -> None:
        raise AssertionError("nothing is announced before the registration")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        yield made


async def begin(rig: Rig) -> HeldRecord:
    return await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "a coordinator"))


async def test_nobody_wants_it_to_leave(rig: Rig) -> None:
    starting = Starting(rig)
    assert not await starting.leaving.look()
    assert not starting.gate.read_only


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.UNDOING])
async def test_it_starts_read_only_whatever_the_disks_say(rig: Rig, phase: Phase) -> None:
    keeps_its_cookie = phase is Phase.DONE  # otherwise it is the record of an earlier bookie of the id
    record = DecommissionRecord(GOING, "a coordinator", 1, 1, phase, delete_cookie=not keeps_its_cookie)
    await rig.service.records(DECOMMISSION).create(GOING, encode_record(record))
    starting = Starting(rig)
    assert await starting.leaving.look()
    assert starting.gate.read_only
    starting.mode.on_disks(HEALTHY)
    assert starting.gate.read_only


async def test_a_record_of_another_bookie_is_none_of_its_business(rig: Rig) -> None:
    await DecommissionStore(rig.service).begin(DecommissionRequest("b1:1", "a coordinator"))
    assert not await Starting(rig).leaving.look()


async def test_a_record_that_cannot_be_read_is_obeyed(rig: Rig) -> None:
    await rig.service.records(DECOMMISSION).create(GOING, b'{"format": 99}')
    starting = Starting(rig)
    assert await starting.leaving.look()
    assert starting.gate.read_only


async def test_one_that_is_being_undone_is_not(rig: Rig) -> None:
    record = DecommissionRecord(GOING, "a coordinator", 1, 1, Phase.UNDOING)
    await rig.service.records(DECOMMISSION).create(GOING, encode_record(record))
    assert not await Starting(rig).leaving.look()


async def test_what_cannot_be_told_is_no_answer(rig: Rig) -> None:
    """Whoever registers needs the metadata service anyway, and asks again."""
    await begin(rig)
    service, transport = await rig.connect()
    starting = Starting(rig, service=service)
    transport.died.set()
    with pytest.raises(MetadataUnavailable):
        await starting.leaving.look()
    assert not starting.gate.read_only
    transport.died.clear()
    assert await starting.leaving.look()
    assert starting.gate.read_only


async def test_no_error_ends_the_asking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a cluster that is not there for a moment, while it is restored."""
    monkeypatch.setattr("bookie_pod.node.identity.leaving.RETRY_S", 0.01)
    await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    records, errors = rig.service.records, [MetadataNotFound("there is no cluster")]

    def failing(kind: str) -> Any:
        store: Any = records(kind)
        if kind == DECOMMISSION and errors:
            store.watch = lambda name: _raise(errors.pop())
        return store

    with monkeypatch.context() as patch:
        patch.setattr(rig.service, "records", failing)
        following = asyncio.create_task(starting.leaving.follow())
        await until(lambda: not errors)
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    assert not starting.gate.read_only


def _raise(error: Exception) -> NoReturn:
    raise error


async def test_undone_it_is_writable_again(rig: Rig) -> None:
    await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    following = asyncio.create_task(starting.leaving.follow())
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    assert not starting.gate.read_only


async def test_undone_it_stays_read_only_if_another_decommission_has_begun(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    is_done, modes = starting.leaving._is_done, list[bool]()

    async def while_another_begins() -> bool:
        done = await is_done()
        if not modes:
            await begin(rig)
        return done

    set_leaving = starting.mode.set_leaving
    monkeypatch.setattr(starting.leaving, "_is_done", while_another_begins)
    monkeypatch.setattr(starting.mode, "set_leaving", lambda leaving: (modes.append(leaving), set_leaving(leaving)))
    following = asyncio.create_task(starting.leaving.follow())
    await undo(rig.service, rig, GOING)
    await until(lambda: modes)
    assert modes == [True]
    assert starting.gate.read_only
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    assert not starting.gate.read_only


async def test_done_it_stays_read_only(rig: Rig) -> None:
    starting, looked = Starting(rig), asyncio.Event()
    coordinator = asyncio.create_task(_finish(rig, looked))
    await looked.wait()
    assert await starting.leaving.look()
    await asyncio.wait_for(starting.leaving.follow(), 10)
    await coordinator
    assert starting.gate.read_only


async def _finish(rig: Rig, looked: asyncio.Event) -> None:
    held = await begin(rig)
    looked.set()
    await asyncio.sleep(0.1)
    done = DecommissionRecord(GOING, "a coordinator", held.record.started_ms, 1, Phase.DONE)
    store = DecommissionStore(rig.service)
    await store.write(done, held._identity)
    await store.archive(done)


async def test_an_earlier_decommission_of_the_same_id_that_was_done_says_nothing(rig: Rig) -> None:
    earlier = DecommissionRecord(GOING, "a coordinator", 5, 5, Phase.DONE)
    await rig.service.records("decommissioned").create(GOING, encode_record(earlier))
    await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    following = asyncio.create_task(starting.leaving.follow())
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    assert not starting.gate.read_only


async def test_an_operator_has_the_last_word(rig: Rig) -> None:
    held = await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    following = asyncio.create_task(starting.leaving.follow())
    starting.mode.set_by_operator(False)
    await held.note(held.record.progress)
    await asyncio.sleep(0.1)
    assert not starting.gate.read_only
    starting.mode.set_by_operator(True)
    await undo(rig.service, rig, GOING)
    await asyncio.wait_for(following, 10)
    assert starting.gate.read_only


async def test_operators_word_is_good_for_one_decommission(rig: Rig) -> None:
    held = await begin(rig)
    starting = Starting(rig)
    assert await starting.leaving.look()
    starting.mode.set_by_operator(False)
    assert await starting.leaving.look(), "as in the next session"
    assert not starting.gate.read_only
    await held.remove()
    later = DecommissionRecord(GOING, "another", held.record.started_ms + 1, 1)
    await rig.service.records(DECOMMISSION).create(GOING, encode_record(later))
    assert await starting.leaving.look()
    assert starting.gate.read_only


async def test_where_read_only_mode_is_forbidden_it_does_not_end_for_it(rig: Rig) -> None:
    await begin(rig)
    starting = Starting(rig, DisksConfig(read_only_mode=False))
    assert await starting.leaving.look()
    assert (starting.gate.read_only, starting.fatal) == (False, [])


async def test_who_has_left(rig: Rig) -> None:
    assert await decommissioned_at(rig.service, GOING) is None
    held = await begin(rig)
    assert await decommissioned_at(rig.service, GOING) is None
    store, done = DecommissionStore(rig.service), replace(held.record, phase=Phase.DONE, updated_ms=86_400_000)
    await store.write(done, held._identity)
    await store.archive(done)
    ended = await decommissioned_at(rig.service, GOING)
    assert ended is not None
    assert ended.isoformat() == "1970-01-02T00:00:00+00:00"
    assert not await has_left(rig.service, GOING, ended - timedelta(days=1)), "its cookie is there"
    await rig.service.cookies.delete(GOING)
    assert await has_left(rig.service, GOING, ended - timedelta(days=1))
    assert not await has_left(rig.service, GOING, ended + timedelta(days=1)), "another bookie that has the id now"
    ahead = datetime.now(UTC) + timedelta(days=366)
    wrong_clock = encode_record(replace(done, updated_ms=int(ahead.timestamp() * 1000)))
    await rig.service.records(FINISHED).overwrite(GOING, wrong_clock)
    assert await decommissioned_at(rig.service, GOING) is None, "nobody can tell what was written since"
    assert not await has_left(rig.service, GOING, ended - timedelta(days=1))
    never = encode_record(replace(done, updated_ms=1 << 62))
    await rig.service.records(FINISHED).overwrite(GOING, never)
    assert await decommissioned_at(rig.service, GOING) is None
    kept = encode_record(replace(done, delete_cookie=False))
    await rig.service.records(FINISHED).overwrite(GOING, kept)
    assert await decommissioned_at(rig.service, GOING) is None
    assert not await has_left(rig.service, GOING, ended - timedelta(days=1))


@pytest.mark.parametrize("leaves_first", [True, False])
def test_full_disks_and_a_decommission(leaves_first: bool) -> None:
    gate = Gate()
    mode = BookieMode(DisksConfig(), gate, lambda work: None, lambda error: None)
    full = DiskVerdict(0, 1, True, {}, ("/disk",))
    steps = [lambda: mode.set_leaving(True), lambda: mode.on_disks(full)]
    for step in steps if leaves_first else reversed(steps):
        step()
    mode.set_leaving(False)
    assert gate.read_only, "the disks are full"
    mode.on_disks(HEALTHY)
    assert not gate.read_only
    mode.set_leaving(False)
    assert not gate.read_only


async def test_the_record_of_an_earlier_bookie_of_the_id_says_nothing(rig: Rig) -> None:
    """It is DONE and deleted its cookie; nobody starts without one."""
    record = DecommissionRecord(GOING, "a coordinator", 1, 1, Phase.DONE)
    await rig.service.records(DECOMMISSION).create(GOING, encode_record(record))
    starting = Starting(rig)
    assert not await starting.leaving.look()
    await starting.leaving.follow()
    assert not starting.gate.read_only
