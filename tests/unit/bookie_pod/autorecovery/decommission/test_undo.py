"""Taking a decommission back, in whatever phase it is, and taking one over that was about to delete the cookie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_pod.autorecovery.decommission import undo as module
from bookie_pod.autorecovery.decommission.proof import fence_cookie, refuse_renamed
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Form, Phase, Proof, encode_record
from bookie_pod.autorecovery.decommission.store import (
    FINISHED,
    DecommissionRequest,
    DecommissionStore,
    HeldRecord,
    TakenOver,
)
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_protocol.errors import BookieUnavailable, MetadataVersionConflict, NotDecommissioned, Refused
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.records import DECOMMISSION
from tests.support.memory_records import MemoryRecords

GOING = "b0:1"
RECORD = DecommissionRecord(GOING, "host/1", started_ms=1, updated_ms=1, form=Form.LIVE)
PROOF = Proof(1, 2, 3, 4)
REMOVING = replace(RECORD, phase=Phase.REMOVING, proof=PROOF, cookie_version=0)


class Cluster:
    """Records and cookies in memory, and one bookie, which may be registered."""

    def __init__(self) -> None:
        self.memory = MemoryRecords()
        self.cookies = self.memory.of("cookies")
        self.bookies = self
        self.group: BookieGroup | None = BookieGroup.READ_ONLY
        self.modes: list[bool] = []
        self.reachable = True

    @property
    def service(self) -> Any:
        return self

    def records(self, kind: str) -> Any:
        return self.memory.of(kind)

    async def is_registered(self, bookie_id: str, group: BookieGroup) -> bool:
        return self.group is group

    async def set_read_only(self, bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
        if not self.reachable:
            raise BookieUnavailable("connection refused")
        self.modes.append(read_only)

    async def begin(self, record: DecommissionRecord | None, *, cookie: bool = True) -> Cluster:
        if record is not None:
            await self.records(DECOMMISSION).create(GOING, encode_record(record))
        if cookie:
            await self.cookies.create(GOING, b'4\nbookieHost: "b0:1"\n')
        return self

    async def active(self) -> DecommissionRecord | None:
        found = await DecommissionStore(self.service).active(GOING)
        return None if found is None else found.value

    async def cookie_version(self) -> int:
        return (await self.cookies.read(GOING)).version


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.DRAINING, Phase.PROVING, Phase.UNDOING])
@pytest.mark.parametrize("by_us", [True, False])
async def test_a_bookie_is_made_writable_if_it_was_made_read_only(phase: Phase, by_us: bool) -> None:
    cluster = await Cluster().begin(replace(RECORD, phase=phase, read_only_by_us=by_us))
    done = await undo(cluster.service, cluster, GOING)
    assert (done.writable, done.record.phase, cluster.modes) == (by_us, Phase.UNDOING, [False] * by_us)
    assert await cluster.active() is None
    assert await cluster.cookie_version() == 0


async def test_one_that_is_stopped_stays_so() -> None:
    cluster = await Cluster().begin(replace(RECORD, read_only_by_us=True))
    cluster.group = None
    done = await undo(cluster.service, cluster, GOING)
    assert (done.writable, cluster.modes, await cluster.active()) == (False, [], None)


async def test_one_that_cannot_be_reached_keeps_its_record() -> None:
    cluster = await Cluster().begin(replace(RECORD, read_only_by_us=True))
    cluster.reachable = False
    with pytest.raises(BookieUnavailable, match=r"refused;.*repeat"):
        await undo(cluster.service, cluster, GOING)
    found = await cluster.active()
    assert found is not None
    assert found.phase is Phase.UNDOING
    cluster.reachable = True
    assert (await undo(cluster.service, cluster, GOING)).writable


@pytest.mark.parametrize(
    ("record", "version"),
    [
        (REMOVING, 1),
        (replace(REMOVING, delete_cookie=False), 0),
        (replace(REMOVING, cookie_version=None), 0),
        (replace(REMOVING, cookie_version=9), 0),
    ],
    ids=["about to go", "to stay", "there was none", "another one by now"],
)
async def test_a_cookie_that_is_about_to_go_is_another_one_first(record: DecommissionRecord, version: int) -> None:
    cluster = await Cluster().begin(record)
    await undo(cluster.service, cluster, GOING)
    assert await cluster.cookie_version() == version
    assert await cluster.active() is None


async def test_without_its_cookie_a_decommission_can_only_be_finished() -> None:
    cluster = await Cluster().begin(REMOVING, cookie=False)
    with pytest.raises(Refused, match=f"cookie of {GOING} is gone"):
        await undo(cluster.service, cluster, GOING)
    assert await cluster.active() == REMOVING


@pytest.mark.parametrize("delete_cookie", [True, False])
@pytest.mark.parametrize("cookie", [True, False])
async def test_of_a_finished_one_there_is_nothing_to_undo(delete_cookie: bool, cookie: bool) -> None:
    """Unless there is a new bookie of the id, which nobody decommissions."""
    done = replace(RECORD, phase=Phase.DONE, delete_cookie=delete_cookie)
    cluster = await Cluster().begin(done, cookie=cookie)
    is_new = delete_cookie and cookie
    with pytest.raises(NotDecommissioned if is_new else Refused, match="decommissioned" if is_new else "finished"):
        await undo(cluster.service, cluster, GOING)
    assert await cluster.active() is None
    assert await DecommissionStore(cluster.service).finished(GOING) == done


async def test_of_one_that_never_was_neither() -> None:
    cluster = await Cluster().begin(None)
    with pytest.raises(NotDecommissioned):
        await undo(cluster.service, cluster, GOING)


async def test_a_coordinator_that_is_faster_is_waited_for_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 3)
    cluster = await Cluster().begin(RECORD)
    advance, tries = HeldRecord.advance, list[bool]()

    async def overtaken(self: HeldRecord, event: Any) -> None:
        tries.append(True)
        if len(tries) <= 2:
            raise TakenOver("its coordinator was faster")
        await advance(self, event)

    monkeypatch.setattr(HeldRecord, "advance", overtaken)
    await undo(cluster.service, cluster, GOING)
    assert len(tries) == 3
    await cluster.begin(RECORD, cookie=False)
    tries[:] = []
    monkeypatch.setattr(module, "_ROUNDS", 2)
    with pytest.raises(TakenOver, match="faster"):
        await undo(cluster.service, cluster, GOING)
    assert len(tries) == 2


# --- cookies --------------------------------------------------------------------------------------------------


async def test_a_cookie_that_was_proven_is_fenced_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await Cluster().begin(None)
    cookies: Any = cluster.cookies
    assert await fence_cookie(cookies, GOING, 0)
    assert await cluster.cookie_version() == 1
    for proven in (0, None):
        assert await fence_cookie(cookies, GOING, proven)
    assert await cluster.cookie_version() == 1
    assert not await fence_cookie(cookies, "b1:1", 0)

    def overtaken(line: str) -> None:
        raise MetadataVersionConflict("somebody was faster")

    cluster.memory.before = overtaken
    assert await fence_cookie(cookies, GOING, 1)


@pytest.mark.parametrize(
    ("cookie", "renamed"),
    [
        (b'4\nbookieHost: "b0:1"\njournalDir: "/j"\nledgerDirs: "1 /l"\n', False),
        (b'4\nbookieHost: ""\njournalDir: "/j"\nledgerDirs: "1 /l"\n', False),
        (b'4\nbookieHost: "b9:1"\njournalDir: "/j"\nledgerDirs: "1 /l"\n', True),
        (b'4\nbookieHost: "b9:1"\n', False),
        (b"4\n", False),
        (b"rubbish", False),
        (b"4\n\xff\xfe", False),
        (b"4\nno field of a cookie", False),
        (None, False),
    ],
)
async def test_a_cookie_that_says_another_id_is_of_one_that_is_renamed(cookie: bytes | None, renamed: bool) -> None:
    cluster = Cluster()
    if cookie is not None:
        await cluster.cookies.create(GOING, cookie)
    if not renamed:
        await refuse_renamed(cluster.service, GOING)
        return
    with pytest.raises(Refused, match=r"b0:1 .*renamed, .* b9:1"):
        await refuse_renamed(cluster.service, GOING)


# --- taking over ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cookie", "phase"), [(True, Phase.PROVING), (False, Phase.REQUESTED)])
async def test_who_takes_over_from_one_that_was_about_to_delete_the_cookie(cookie: bool, phase: Phase) -> None:
    """If it is gone that one had done it, and the next decommission is another."""
    cluster = await Cluster().begin(REMOVING, cookie=cookie)
    store = DecommissionStore(cluster.service, lambda: 50)
    held = await store.begin(DecommissionRequest(GOING, "host/2", accepted_losses=frozenset({3, 1})))
    assert (held.phase, held.record.coordinator, held.owner) == (phase, "host/2", "host/2")
    assert (held.record.accepted_losses, held.record.started_ms) == ((1, 3), 1 if cookie else 50)
    finished = await store.finished(GOING)
    if cookie:
        assert (await cluster.cookie_version(), finished) == (1, None)
    else:
        assert finished is not None
        assert (finished.phase, finished.coordinator) == (Phase.DONE, "host/1")
    assert await cluster.active() == held.record


async def test_losses_are_added_to_those_that_were_accepted() -> None:
    cluster = await Cluster().begin(replace(RECORD, accepted_losses=(2, 5), delete_cookie=False))
    store = DecommissionStore(cluster.service)
    held = await store.begin(DecommissionRequest(GOING, "host/2", accepted_losses=frozenset({5, 1})))
    assert held.record.accepted_losses == (1, 2, 5)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
async def test_cookie_goes_if_any_request_wants_that(first: bool, second: bool) -> None:
    """Over HTTP it stays by default; the command promises that it is gone."""
    cluster = await Cluster().begin(replace(RECORD, delete_cookie=first))
    held = await DecommissionStore(cluster.service).begin(DecommissionRequest(GOING, "host/2", delete_cookie=second))
    assert held.record.delete_cookie == (first or second)


async def test_one_that_is_being_undone_is_not_taken_over() -> None:
    cluster = await Cluster().begin(replace(RECORD, phase=Phase.UNDOING))
    with pytest.raises(TakenOver, match="undone"):
        await DecommissionStore(cluster.service).begin(DecommissionRequest(GOING, "host/2"))


async def test_one_that_is_done_is_put_away_first() -> None:
    done = replace(RECORD, phase=Phase.DONE)
    cluster = await Cluster().begin(done)
    store = DecommissionStore(cluster.service, lambda: 50)
    held = await store.begin(DecommissionRequest(GOING, "host/2", was_writable=True))
    assert (held.phase, held.record.started_ms, held.record.read_only_by_us) == (Phase.REQUESTED, 50, True)
    assert await store.finished(GOING) == done
    assert await store.bookies() == {GOING}
    assert FINISHED == "decommissioned"
