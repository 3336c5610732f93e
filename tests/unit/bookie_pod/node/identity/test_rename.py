"""A bookie gets another id: in every ledger and in its cookie, from any point, and never that of another bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore
from bookie_pod.node.identity.cookies import Cookie, format_cookie, parse_cookie
from bookie_pod.node.identity.rename import Found, Rename
from bookie_protocol.errors import MetadataUnavailable, NotThere, Refused
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.decommission_rig import GOING, Rig, W, ledger

NEW = "b9:1"
COOKIE = Cookie(GOING, "/j", "1\t/l", instance_id="i")
CLOSED = (ledger(1, (0, "012")), ledger(2, (0, "123"), (5, "203")), ledger(3, (0, "123")), ledger(4, (0, "340")))
NAMING = {1, 2, 4}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """The bookie is stopped, and three of four ledgers name it."""
    async with Rig(tmp_path) as made:
        await made.stop(GOING)
        await made.service.cookies.delete(GOING)
        await made.service.cookies.create(GOING, format_cookie(COOKIE))
        await made.store(*CLOSED)
        yield made


def _rename(rig: Rig, service: MetadataService | None = None, new: str = NEW) -> Rename:
    return Rename(service or rig.service, GOING, new, settle=0.0)


async def _check_renamed(rig: Rig) -> None:
    assert await rig.naming(GOING) == set()
    assert await rig.naming(NEW) == NAMING
    for before in CLOSED:
        after = (await rig.service.ledgers.read(before.ledger_id)).value
        back = {
            first: tuple(GOING if bookie == NEW else bookie for bookie in ensemble)
            for first, ensemble in after.ensembles.items()
        }
        given = {name: getattr(after, name) for name in ("ctime", "store_ctime", "creation_token")}  # as it was stored
        assert replace(after, ensembles=back) == replace(before, **given)
    assert not await rig.has_cookie(GOING)
    cookie = (await rig.service.cookies.read(NEW)).value
    assert parse_cookie(cookie, "it") == replace(COOKIE, bookie_id=NEW)


async def test_every_ledger_and_the_cookie_and_nothing_else(rig: Rig) -> None:
    looked = await _rename(rig).look()
    assert (looked.seen, looked.ready, looked.blocked) == (4, 3, 0)
    assert await rig.naming(GOING) == NAMING, "it only looked"
    assert not await rig.has_cookie(NEW)
    found = await _rename(rig).run()
    assert (found.renamed, found.ready, found.blocked) == (3, 0, 0)
    await _check_renamed(rig)


async def test_a_limit_is_kept_and_the_old_cookie_with_it(rig: Rig) -> None:
    found = await _rename(rig).run(limit=2)
    assert (found.renamed, found.ready) == (2, 1)
    for bookie, says in ((GOING, NEW), (NEW, GOING)):  # so that no bookie starts under either
        cookie = parse_cookie((await rig.service.cookies.read(bookie)).value, "it")
        assert cookie == replace(COOKIE, bookie_id=says)
    assert (await _rename(rig).run(limit=1)).ready == 0
    await _check_renamed(rig)


async def _started(rig: Rig) -> None:
    await rig.start(GOING)


async def _new_is_there(rig: Rig) -> None:
    rig.bookie_sessions[NEW] = (await rig.connect())[0]
    await rig.start(NEW, W)


async def _new_has_a_cookie(rig: Rig) -> None:
    await rig.service.cookies.create(NEW, format_cookie(replace(COOKIE, bookie_id=NEW)))


async def _new_is_named(rig: Rig) -> None:
    await rig.store(ledger(9, (0, "129")))


async def _leaving(rig: Rig) -> None:
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "somebody"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_started, "b0:1 is registered"),
        (_new_is_there, "b9:1, .*registered"),
        (_new_has_a_cookie, "b9:1: .*cookie"),
        (_new_is_named, "b9:1: 1 ledgers"),
        (_leaving, "b0:1 .*decommissioned"),
    ],
)
async def test_nobody_gets_the_id_of_another(rig: Rig, make: Callable[[Rig], object], words: str) -> None:
    await make(rig)  # type: ignore[misc]
    for work in (_rename(rig).look, _rename(rig).run):
        with pytest.raises(Refused, match=words):
            await work()
    assert await rig.naming(GOING) == NAMING
    assert await rig.has_cookie(GOING)


async def test_one_without_a_cookie_is_not_there(rig: Rig) -> None:
    await rig.service.cookies.delete(GOING)
    with pytest.raises(NotThere):
        await _rename(rig).run()


async def test_ledgers_in_use_are_left_until_they_are_closed(rig: Rig) -> None:
    await rig.store(ledger(5, (0, "012"), last=None), ledger(6, (0, "120"), last=None))
    await rig.change(6, lambda metadata: metadata.in_recovery())
    found = await _rename(rig).run()
    assert (found.renamed, found.blocked) == (3, 2)
    assert found.blockers == {
        5: "OPEN: close its writer, or end it with `bookie ledger recover 5`",
        6: "IN_RECOVERY: close its writer, or end it with `bookie ledger recover 6`",
    }
    assert await rig.has_cookie(GOING)
    with pytest.raises(Refused, match="renamed to b9:1"):
        await _rename(rig, new="b8:1").run()
    for ledger_id in (5, 6):
        await rig.change(ledger_id, lambda metadata: metadata.closed(-1, 0))
    assert (await _rename(rig).run()).renamed == 2
    for ledger_id in (5, 6):
        await rig.service.ledgers.delete(ledger_id)
    await _check_renamed(rig)


async def test_the_old_id_stays_while_somebody_may_come_to_name_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery has stored entries on it, and tells so with its last write; a re-replication as well."""
    monkeypatch.setattr("bookie_pod.node.identity.rename.LOCKS_SECONDS", 0.0)
    await rig.store(ledger(9, (0, "123"), last=None).in_recovery())
    lock = await rig.service.under_replication.lock(3)
    found = await _rename(rig).run()
    assert (found.renamed, found.ready, sorted(found.blockers)) == (3, 0, [3, 9])
    assert "re-replicated" in found.blockers[3]
    assert "`bookie ledger recover 9`" in found.blockers[9]
    assert await rig.has_cookie(GOING)
    await rig.service.under_replication.release(lock)
    await rig.change(9, lambda metadata: replace(metadata, ensembles={0: ("b1:1", "b2:1", GOING)}).closed(9, 1000))
    found = await _rename(rig).run()
    assert (found.renamed, found.blocked) == (1, 0)
    assert await rig.naming(NEW) == NAMING | {9}
    assert not await rig.has_cookie(GOING)


@pytest.mark.parametrize("bookie", [GOING, NEW])
async def test_a_bookie_that_starts_meanwhile_ends_it(rig: Rig, bookie: str) -> None:
    rig.bookie_sessions[NEW] = (await rig.connect())[0]
    write, begun = rig.service.ledgers.write, []

    async def and_start(*arguments: object, **others: object) -> object:
        stored = await write(*arguments, **others)  # type: ignore[arg-type]
        if not begun:
            begun.append(bookie)
            await rig.start(bookie)
        return stored

    rig.service.ledgers.write = and_start  # type: ignore[assignment,method-assign]
    with pytest.raises(Refused, match=f"{bookie} .*started"):
        await _rename(rig).run()
    assert len(await rig.naming(NEW)) == 1
    assert await rig.has_cookie(GOING)
    await rig.stop(bookie)
    await _rename(rig).run()
    await _check_renamed(rig)


async def test_with_the_ids_the_other_way_round_it_is_taken_back(rig: Rig) -> None:
    await rig.store(ledger(5, (0, "012"), last=None))  # which nobody can close now
    assert (await _rename(rig).run()).blocked == 1
    assert (await Rename(rig.service, NEW, GOING, settle=0.0).run()).renamed == len(NAMING)
    assert (await rig.naming(GOING), await rig.naming(NEW)) == (NAMING | {5}, set())
    assert not await rig.has_cookie(NEW)
    assert parse_cookie((await rig.service.cookies.read(GOING)).value, "it") == COOKIE


def _once_after(store: object, name: str, then: Callable[[], Awaitable[object]]) -> None:
    """`then` happens right after the first call of this method."""
    method, begun = getattr(store, name), []

    async def and_then(*arguments: object, **others: object) -> object:
        found = await method(*arguments, **others)
        if not begun:
            begun.append(1)
            await then()
        return found

    setattr(store, name, and_then)


@pytest.mark.parametrize(("old", "new"), [(GOING, NEW), (NEW, GOING)], ids=["the same", "the other way round"])
async def test_of_two_at_a_time_the_first_one_ends(rig: Rig, old: str, new: str) -> None:
    other, _ = await rig.connect()
    _once_after(rig.service.ledgers, "write", Rename(other, old, new, settle=0.0).run)
    with pytest.raises(Refused, match="changed"):
        await _rename(rig).run()
    assert (await rig.naming(old), await rig.naming(new)) == (set(), NAMING)
    assert not await rig.has_cookie(old)
    assert parse_cookie((await rig.service.cookies.read(new)).value, "it").bookie_id == new


async def test_a_bookie_that_gets_the_id_at_the_same_moment_keeps_it(rig: Rig) -> None:
    marks = rig.service.under_replication.list

    async def and_join() -> AsyncIterator[object]:
        await _new_has_a_cookie(rig)
        async for each in marks():
            yield each

    rig.service.under_replication.list = and_join  # type: ignore[assignment,method-assign]
    with pytest.raises(Refused, match="changed"):
        await _rename(rig).run()
    assert parse_cookie((await rig.service.cookies.read(NEW)).value, "it").bookie_id == NEW
    assert parse_cookie((await rig.service.cookies.read(GOING)).value, "it") == COOKIE
    assert await rig.naming(GOING) == NAMING


async def test_nobody_decommissions_one_that_is_half_renamed(rig: Rig) -> None:
    """No ledger would name it in the end, and many would need what is in its directories."""
    await _rename(rig).run(limit=1)
    for bookie in (GOING, NEW):
        coordinator, _ = rig.coordinator()
        with pytest.raises(Refused, match=f"{bookie} .*renamed"):
            await coordinator.run(DecommissionRequest(bookie, "somebody"))
        assert await DecommissionStore(rig.service).active(bookie) is None
    await _rename(rig).run()
    await _check_renamed(rig)


async def test_a_decommission_that_begins_at_the_same_time_ends_or_ends_it(rig: Rig) -> None:
    _once_after(rig.service.cookies, "update", lambda: _leaving(rig))
    with pytest.raises(Refused, match="decommissioned"):
        await _rename(rig).run()
    assert await rig.naming(GOING) == NAMING
    coordinator, _ = rig.coordinator()
    with pytest.raises(Refused, match="renamed"):
        await coordinator.run(DecommissionRequest(GOING, "somebody"))


async def test_the_new_cookie_becomes_its_own_also_where_the_old_one_is_gone(rig: Rig) -> None:
    """Nothing named it, so somebody deleted it."""

    async def deleted() -> None:
        await rig.service.cookies.delete(GOING)
        raise MetadataUnavailable("it ends here")

    _once_after(rig.service.cookies, "update", deleted)
    with pytest.raises(MetadataUnavailable):
        await _rename(rig).run()
    await _rename(rig).run()
    await _check_renamed(rig)


async def test_who_changes_a_ledger_at_the_same_time_is_not_written_over(rig: Rig) -> None:
    """A replication worker puts another bookie in the place of one of them."""
    write, changed = rig.service.ledgers.write, []

    async def after_another(*arguments: object, **others: object) -> object:
        if not changed:
            changed.append(1)
            stored = await rig.service.ledgers.read(1)
            await write(replace(stored.value, ensembles={0: (GOING, "b1:1", "b4:1")}), stored.identity)
        return await write(*arguments, **others)  # type: ignore[arg-type]

    rig.service.ledgers.write = after_another  # type: ignore[assignment,method-assign]
    await _rename(rig).run()
    assert (await rig.service.ledgers.read(1)).value.ensembles == {0: (NEW, "b1:1", "b4:1")}


async def test_a_rename_that_slept_changes_nothing_of_what_was_taken_back(rig: Rig) -> None:
    """Its session ends right before a write; another operator takes the rename back, and the bookie is started."""
    sleeper, transport = await rig.connect()
    asleep, awake = asyncio.Event(), asyncio.Event()
    write = sleeper.ledgers.write

    async def sleep_and_write(*arguments: object, **others: object) -> object:
        asleep.set()
        await awake.wait()
        return await write(*arguments, **others)  # type: ignore[arg-type]

    sleeper.ledgers.write = sleep_and_write  # type: ignore[assignment,method-assign]
    late = asyncio.create_task(_rename(rig, sleeper).run())
    async with asyncio.timeout(20):
        await asleep.wait()
        await transport.end_session()
        await Rename(rig.service, NEW, GOING, settle=0.0).run()
        await rig.start(GOING)
        awake.set()
        with pytest.raises(Refused):
            await late
    assert (await rig.naming(GOING), await rig.naming(NEW)) == (NAMING, set())


@pytest.mark.parametrize("die_after", [False, True], ids=["before", "after"])
async def test_it_may_be_ended_at_any_request_and_repeated(rig: Rig, die_after: bool) -> None:
    at = 0
    while True:
        at += 1
        service, transport = await rig.connect()
        transport.die_at, transport.die_after = transport.requests + at, die_after
        try:
            await _rename(rig, service).run()
        except MetadataUnavailable:
            assert transport.died.is_set()
        except NotThere:
            assert await rig.naming(NEW) == NAMING, "it was done, and nobody heard of it"
        if not await rig.has_cookie(GOING):
            break
        assert at < 400
    await _check_renamed(rig)


async def test_progress_is_told(rig: Rig) -> None:
    told: list[int] = []

    def progress(found: Found) -> None:
        told.append(found.renamed)

    await _rename(rig).run(progress=progress)
    assert told == [1, 2, 3]
