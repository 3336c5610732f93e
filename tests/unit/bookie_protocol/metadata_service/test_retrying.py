"""Answers that get lost: the write happened, or it did not, and nobody may be told something wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BadRequest,
    LedgerIdsExhausted,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataRefused,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.embedded.local import LocalTransport
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import LedgerLayout, SessionState
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost, Node, number_by_node
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from tests.support.garbage import left_in_cycles
from tests.support.until import until

ROOT = "/ledgers"


class LossyTree:
    """Passes calls on; while `lose` is set, the next write's answer is lost (after, or before, it happened)."""

    def __init__(self, tree: EmbeddedTree) -> None:
        self._tree = tree
        self.lose: str | None = None
        self.meanwhile: Callable[[], Any] | None = None
        self.number: int | None = None
        self.lose_number = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    async def _lossy(self, name: str, *args: Any, **kwargs: Any) -> Any:
        lose, self.lose = self.lose, None
        if lose == "before":
            raise ConnectionLost("lost before")
        result = await getattr(self._tree, name)(*args, **kwargs)
        if lose == "after":
            if self.meanwhile is not None:
                await self.meanwhile()
            raise ConnectionLost("lost after")
        return result

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        if self.lose_number and kwargs.get("sequential"):
            self.lose, self.lose_number = "after", False
        created = await self._lossy("create", *args, **kwargs)
        if kwargs.get("sequential") and self.number is not None:
            number, self.number = self.number, None
            return replace(created, path=f"{args[0]}{number:010d}")
        return created

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        return await number_by_node(self, prefix, timeout)  # type: ignore[arg-type]

    async def create_all(self, *args: Any, **kwargs: Any) -> Any:
        return await self._lossy("create_all", *args, **kwargs)

    async def set(self, *args: Any, **kwargs: Any) -> Any:
        return await self._lossy("set", *args, **kwargs)

    async def delete(self, *args: Any, **kwargs: Any) -> Any:
        return await self._lossy("delete", *args, **kwargs)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[tuple[MetadataService, LossyTree]]:
    owner = await EmbeddedOwner.open(str(tmp_path))
    tree = EmbeddedTree(LocalTransport(owner, owned=True), 5.0)
    await tree.connect()
    lossy = LossyTree(tree)
    service = MetadataService(lossy, ROOT, None)  # type: ignore[arg-type]
    await service.cluster.initialize()
    await service.ledgers.create(ledger(0))  # its directories, and the parent of the cookies, stand from here on
    await service.cookies.create("b:0", b"")
    yield service, lossy
    await service.close()


Rig = tuple[MetadataService, LossyTree]


def ledger(ledger_id: int, version: int = 3) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, 1, 1, 1, {0: ("a:1",)}, digest_type=DigestType.CRC32, password=b"", format_version=version
    )


@pytest.mark.parametrize("when", ["before", "after"])
async def test_each_write_happens_once(rig: Rig, when: str) -> None:
    service, lossy = rig
    lossy.lose = when
    assert (await service.ledgers.create(ledger(1))).version == 0
    found = await service.ledgers.read(1)
    lossy.lose = when
    assert (await service.ledgers.write(found.value.in_recovery(), found.identity)).version == 1
    lossy.lose = when
    first = await service.cookies.create("b:1", b"x")
    assert first == (await service.cookies.read("b:1")).identity
    lossy.lose = when
    second = await service.cookies.update("b:1", b"y", first)
    assert second == (await service.cookies.read("b:1")).identity
    assert second.version == 1
    lossy.lose = when
    await service.cookies.delete("b:1")
    lossy.lose = when
    await service.ledgers.delete(1)
    with pytest.raises(MetadataNotFound):
        await service.ledgers.read(1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_initialize_with_a_lost_answer(tmp_path: Path, when: str) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    tree = EmbeddedTree(LocalTransport(owner, owned=True), 5.0)
    await tree.connect()
    lossy = LossyTree(tree)
    service = MetadataService(lossy, ROOT, None)  # type: ignore[arg-type]
    lossy.lose = when
    instance = await service.cluster.initialize()
    assert await service.cluster.instance_id() == instance
    await service.close()


async def test_somebody_else_created_the_ledger_while_our_answer_was_lost(rig: Rig) -> None:
    service, lossy = rig
    await service.ledgers.create(ledger(1))
    lossy.lose = "before"
    with pytest.raises(MetadataExists):
        await service.ledgers.create(ledger(1))


async def test_formats_without_a_token_cannot_claim_a_ledger(rig: Rig) -> None:
    service, lossy = rig
    lossy.lose = "after"
    with pytest.raises(MetadataExists):
        await service.ledgers.create(ledger(2, version=2))


async def test_a_lost_write_that_was_overwritten_is_a_conflict(rig: Rig) -> None:
    service, lossy = rig
    created = await service.ledgers.create(ledger(1))

    async def overwrite() -> None:
        lossy.meanwhile = None
        stored = await service.ledgers.read(1)
        await service.ledgers.write(stored.value.closed(5, 5), stored.identity)

    lossy.lose, lossy.meanwhile = "after", overwrite
    with pytest.raises(MetadataVersionConflict):
        await service.ledgers.write(created.value.in_recovery(), created.identity)


async def test_a_lost_registration_is_recognised_by_its_session(rig: Rig) -> None:
    service, lossy = rig
    lossy.lose = "after"
    await service.tree.create(f"{ROOT}/available/b:1", b"info", ephemeral=True)
    lossy.lose = "before"
    with pytest.raises(MetadataExists):
        await service.tree.create(f"{ROOT}/INSTANCEID", b"mine")


async def test_the_deadline_ends_the_retries(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    service, lossy = rig

    async def always_lost(*_: Any, **__: Any) -> Any:
        raise ConnectionLost("gone")

    monkeypatch.setattr(lossy, "delete", always_lost)
    with pytest.raises(MetadataUnavailable, match=r"delete /x within 0\.2 s: gone"):
        await service.tree.delete("/x", timeout=0.2)


async def test_why_a_call_was_lost_is_told_though_there_was_no_time_left_for_the_last_try(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, lossy = rig
    said: list[Exception] = [
        ConnectionLost("the store refuses this client"),
        MetadataUnavailable("no answer within 0 s"),
    ]

    async def as_said(*_: Any, **__: Any) -> Any:
        raise said.pop(0)

    monkeypatch.setattr(lossy, "delete", as_said)
    with pytest.raises(MetadataUnavailable, match=r"within 30 s: .*refuses .* within 0 s$"):
        await service.tree.delete("/x", timeout=30)


@pytest.mark.parametrize("kind", [SessionEnded, MetadataRefused])
async def test_what_ends_a_call_behind_a_lost_connection_is_what_it_would_be_without(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: type[MetadataUnavailable]
) -> None:
    """Whoever depends on a session acts on its end, and nobody waits for credentials that are refused."""
    service, lossy = rig
    said: list[Exception] = [ConnectionLost("reset"), kind("no more")]

    async def as_said(*_: Any, **__: Any) -> Any:
        raise said.pop(0)

    monkeypatch.setattr(lossy, "delete", as_said)
    with pytest.raises(kind, match=r": reset; .* more$"):
        await service.tree.delete("/x", timeout=30)


async def test_a_call_that_was_repeated_leaves_no_error_behind(rig: Rig) -> None:
    service, lossy = rig
    with left_in_cycles() as left:
        lossy.lose = "before"
        await service.tree.create("/repeated")
    assert lossy.lose is None
    assert "ConnectionLost" not in left


async def test_31_bits_overflow_into_63_bits_and_a_full_directory_into_the_next(rig: Rig) -> None:
    service, lossy = rig
    lossy.number = 2**31 - 2
    assert await service.ledgers.generate_id() == 2**31 - 2
    lossy.number = 2**31 - 1
    assert await service.ledgers.generate_id() == 1 << 32
    assert await service.ledgers.generate_id() == (1 << 32) + 1
    lossy.number = -(2**31)
    assert await service.ledgers.generate_id() == 2 << 32


async def test_a_layout_of_31_bits_runs_out(rig: Rig) -> None:
    service, lossy = rig
    await service.tree.overwrite(f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    flat = MetadataService(lossy, ROOT, LedgerLayout.FLAT)  # type: ignore[arg-type]
    lossy.number = 2**31 - 1
    with pytest.raises(LedgerIdsExhausted, match="flat"):
        await flat.ledgers.generate_id()
    await flat.ledgers.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_marks_and_locks_happen_once(rig: Rig, when: str) -> None:
    service, lossy = rig
    tree = service.under_replication
    await tree.mark(1, ["a:1"], ctime_ms=1)
    lossy.lose = when
    await tree.mark(1, ["b:1"], ctime_ms=2)
    assert await tree.read(1) == UnderreplicatedLedger(1, ("a:1", "b:1"), 2)
    lossy.lose = when
    lock = await tree.lock(1)
    assert lock.mark is not None
    assert (lock.mark.version, lock.session_id) == (1, service.tree.session_id)
    lossy.lose = when
    await tree.release(lock)
    assert await tree.locks() == {}
    lock = await tree.lock(1)
    lossy.lose = when
    await tree.mark_replicated(lock)
    assert await tree.read(1) is None
    assert await tree.locks() == {}
    lossy.lose = when
    await tree.disable()
    lossy.lose = when
    await tree.enable()
    assert await tree.is_enabled()


async def test_a_mark_that_is_made_anew_while_the_answer_of_its_removal_is_lost_stays(rig: Rig) -> None:
    """Jobs mark what they find also while a ledger is locked."""
    service, lossy = rig
    marks = service.under_replication
    await marks.mark(1, ["a:1"], ctime_ms=1)
    lock = await marks.lock(1)

    async def mark_anew() -> None:
        lossy.meanwhile = None
        await marks.mark(1, ["b:1"], ctime_ms=2)

    lossy.lose, lossy.meanwhile = "after", mark_anew
    await marks.mark_replicated(lock)
    assert await marks.read(1) == UnderreplicatedLedger(1, ("b:1",), 2)
    assert await marks.locks() == {}


async def test_who_gave_a_lock_back_removes_no_mark_any_more(rig: Rig) -> None:
    service, _ = rig
    marks = service.under_replication
    await marks.mark(1, ["a:1"], ctime_ms=1)
    lock = await marks.lock(1)
    await marks.release(lock)
    await marks.mark_replicated(lock)
    assert await marks.read(1) == UnderreplicatedLedger(1, ("a:1",), 1)


async def test_a_cookie_that_is_made_anew_while_the_answer_of_its_deletion_is_lost_stays(rig: Rig) -> None:
    service, lossy = rig
    await service.cookies.create("b:1", b"old")
    found = await service.cookies.read("b:1")

    async def make_anew() -> None:
        lossy.meanwhile = None
        await service.cookies.create("b:1", b"new")

    lossy.lose, lossy.meanwhile = "after", make_anew
    await service.cookies.delete_this("b:1", found.identity)
    assert (await service.cookies.read("b:1")).value == b"new"


async def test_of_two_votes_after_a_lost_answer_the_older_counts(rig: Rig) -> None:
    """Others wait for the older one: were the newer one ours, nobody would ever be the auditor."""
    service, lossy = rig
    parent = f"{ROOT}/underreplication/auditorelection"
    await (await service.auditor_election.elect("b:0")).resign()

    async def foreign_vote() -> None:
        lossy.meanwhile = None
        await service.tree.create(f"{parent}/V_9", b"", timeout=5)

    lossy.lose_number, lossy.meanwhile = True, foreign_vote
    office = await service.auditor_election.elect("b:1")
    assert await service.auditor_election.current_auditor() == office.bookie_id == "b:1"
    assert sorted((await service.tree.children(parent)).names) == ["V_0000000001", "V_9"]


async def test_nobody_elses_node_is_deleted(rig: Rig) -> None:
    service, lossy = rig
    await service.tree.create(f"{ROOT}/mine", ephemeral=True)
    await service.tree.create(f"{ROOT}/standing")
    mine = service.tree.session_id
    for path, session_id in ((f"{ROOT}/mine", mine + 1), (f"{ROOT}/standing", mine), (f"{ROOT}/nowhere", mine)):
        assert not await service.tree.delete_own(path, session_id)
    assert await service.tree.exists(f"{ROOT}/mine") is not None
    lossy.lose = "before"
    assert await service.tree.delete_own(f"{ROOT}/mine", mine)
    assert await service.tree.exists(f"{ROOT}/mine") is None


async def test_a_deletion_that_was_not_carried_out_is_not_reported_as_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the look and the end of the connection come together: the deletion must not wait for a connection
    that may be the next session's, and "not there" would be a lie."""
    service, lossy = rig
    path, mine, exists = f"{ROOT}/mine", service.tree.session_id, lossy.exists
    await service.tree.create(path, ephemeral=True)

    async def ending(asked: str, **options: Any) -> Any:
        stat = await exists(asked, **options)
        lossy.session.move(SessionState.SUSPENDED)
        return stat

    monkeypatch.setattr(lossy, "exists", ending, raising=False)
    with pytest.raises(MetadataUnavailable, match="no answer"):
        await service.tree.delete_own(path, mine, timeout=0.01)
    settled = service.tree.abandon(path, mine)
    monkeypatch.undo()
    lossy.session.move(SessionState.CONNECTED)
    async with asyncio.timeout(10):
        await settled
    assert await service.tree.exists(path) is None


async def test_a_lock_of_this_session_that_nobody_holds_is_taken_over(rig: Rig) -> None:
    service, _ = rig
    locks = service.under_replication
    await locks.release(await locks.lock(1))
    await service.tree.create(f"{ROOT}/underreplication/locks/urL{1:010d}", b"", ephemeral=True)
    assert await locks.lock(1)
    with pytest.raises(MetadataExists, match="process"):
        await locks.lock(1)


async def test_nobody_elses_node_is_deleted_when_the_session_ends_behind_the_look(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, lossy = rig
    path, mine, exists = f"{ROOT}/mine", service.tree.session_id, lossy.exists
    await service.tree.create(path, ephemeral=True)

    async def ending(asked: str, **options: Any) -> Any:
        stat = await exists(asked, **options)
        await next_session(lossy)
        await lossy.create(path, b"another's", timeout=5)
        return stat

    monkeypatch.setattr(lossy, "exists", ending, raising=False)
    assert not await service.tree.delete_own(path, mine)
    monkeypatch.undo()
    assert await service.tree.exists(path) is not None


async def test_a_lock_whose_session_ended_before_its_maker_heard_of_it_is_none(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be held in the name of a session that has no such node."""
    service, lossy = rig
    locks, create = service.under_replication, lossy.create
    await locks.release(await locks.lock(1))

    async def ending(*arguments: Any, **options: Any) -> Any:
        path = await create(*arguments, **options)
        await next_session(lossy)
        return path

    monkeypatch.setattr(lossy, "create", ending)
    with pytest.raises(SessionEnded):
        await locks.lock(1)
    monkeypatch.undo()
    assert await locks.locks() == {}


async def next_session(lossy: LossyTree) -> None:
    """Of the tree, after the end of the present one."""
    ended = lossy.session_id
    await lossy._tree._transport._owner.expire(ended)  # type: ignore[attr-defined]
    lossy._tree._in_doubt.set()
    await until(lambda: lossy.session_id != ended)


async def test_all_votes_of_lost_answers_are_taken_back(rig: Rig) -> None:
    service, lossy = rig
    parent = f"{ROOT}/underreplication/auditorelection"
    await (await service.auditor_election.elect("b:0")).resign()

    async def again() -> None:
        lossy.lose_number = lossy.meanwhile is not None
        lossy.meanwhile = None

    lossy.lose_number, lossy.meanwhile = True, again
    office = await service.auditor_election.elect("b:1")
    await office.resign()
    assert (await service.tree.children(parent)).names == ()


async def test_what_is_too_large_is_refused_before_it_is_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    service, lossy = rig
    lossy.lose = "before"  # whatever is sent loses its answer
    huge = replace(ledger(1), custom_metadata={"x": b"x" * 1_100_000})
    with pytest.raises(BadRequest, match="once"):
        await service.ledgers.create(huge)
    assert lossy.lose == "before"
    with pytest.raises(BadRequest):
        await service.tree.overwrite(ROOT, b"x" * 1_100_000)
    with pytest.raises(BadRequest):
        await service.tree.create_all([(f"{ROOT}/{i}", b"x" * 600_000) for i in range(2)])
    assert lossy.lose == "before"


async def test_a_large_write_that_breaks_its_connection_is_given_up_soon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, lossy = rig
    sent = 0

    async def hanging_up(*_: Any, **__: Any) -> Any:
        nonlocal sent
        sent += 1
        raise ConnectionLost("hung up")

    monkeypatch.setattr(lossy, "create", hanging_up)
    with pytest.raises(MetadataUnavailable, match=r"jute\.maxbuffer"):
        await service.tree.create(f"{ROOT}/large", b"x" * 100_000, timeout=30)
    assert sent == 3


async def test_the_rate_limit_is_part_of_the_deadline(rig: Rig) -> None:
    _, lossy = rig
    limited = RetryingTree(lossy, requests_per_second=0.5)  # type: ignore[arg-type]
    with pytest.raises(MetadataUnavailable, match=r"within 0\.1 s: zkRequestRateLimit"):
        for _ in range(2):
            await limited.exists("/", timeout=0.1)


async def test_nodes_that_are_read_together_are_counted_by_requests(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lossy = rig
    asked: list[int] = []

    async def get_each(paths: Sequence[str], *, childless: bool, timeout: float) -> list[Node | MetadataError]:
        asked.append(len(paths))
        return [MetadataNotFound(path) for path in paths]

    monkeypatch.setattr(lossy, "get_each", get_each, raising=False)
    tree = RetryingTree(lossy, requests_per_second=3)  # type: ignore[arg-type]
    paths = [f"/{number}" for number in range(150)]
    assert [str(each) for each in await tree.get_each(paths)] == paths
    assert asked == [64, 64, 22]
    with pytest.raises(MetadataUnavailable, match="zkRequestRateLimit"):
        await tree.get_each(paths, timeout=0.1)
