"""Marks, locks and settings of auto-recovery, on every metadata driver."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import UnderreplicatedLedgerFormat
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.findings import Failure, Finding, Reason, Trouble, absences, all_of, binding
from bookie_protocol.metadata_service.tree.nodes import Node
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.tree.under_replication.formats import mark_path
from bookie_protocol.metadata_service.tree.under_replication.locks import Rest, Resting, _Directory
from bookie_protocol.metadata_service.under_replication import AuditorCheck, UnderreplicatedLedger
from tests.support.golden_nodes import golden, load
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_fixtures import Pair, driver, pair

__all__ = ["driver", "pair"]


def ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 1, 1, 1, {0: ("a:1",)}, digest_type=DigestType.CRC32C, password=b"")


async def everything(found: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in found]


async def marked(service: MetadataService) -> list[int]:
    return [found.ledger_id async for found in service.under_replication.list()]


class TestGolden:
    async def test_a_tree_of_the_reference_is_read(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        nodes = golden("znodes-under-replication")
        await load(service, driver.root, nodes)
        tree = service.under_replication
        found = await everything(tree.list())
        assert [mark.ledger_id for mark in found] == [0, 1, 3, 5, 6, *((1 << 32) + i for i in (0, 2, 3))]
        assert all(mark.replicas == ("127.0.0.1:32702",) for mark in found)
        assert found[0] == UnderreplicatedLedger(0, ("127.0.0.1:32702",), 1795228253241)
        assert await everything(tree.list(lambda replicas: "elsewhere" in replicas)) == []
        assert await tree.locks() == {0: "localhost"}
        assert await tree.locked_by(0) == "localhost"
        assert await tree.locked_by(1) is None
        assert await tree.lost_bookie_recovery_delay() == 5
        assert await tree.is_enabled()
        assert await service.auditor_election.current_auditor() == "127.0.0.1:32700"
        assert {await tree.check_time(check) for check in AuditorCheck} == {None}
        ids = {(await tree.acquire()).ledger_id for _ in range(7)}
        assert ids == {mark.ledger_id for mark in found} - {0}
        assert await tree.try_acquire() is None

    async def test_what_we_write_is_what_the_reference_writes(self, driver: MetadataDriverUnderTest) -> None:
        nodes = {
            str(node["path"]).removeprefix("/ledgers"): node
            for node in golden("znodes-under-replication")
            if "/underreplication" in str(node["path"])
        }
        service = await driver.open()
        await service.cluster.initialize()
        tree = service.under_replication
        for ledger_id, ctime in ((0, 1795228253241), (1, 1795228253255), ((1 << 32) + 3, 1795228253283)):
            await tree.mark(ledger_id, ["127.0.0.1:32702"], ctime_ms=ctime)
        await tree.set_lost_bookie_recovery_delay(5)
        await service.auditor_election.elect("127.0.0.1:32700")
        await tree.lock(0)
        for path in (
            *("/underreplication/LAYOUT", "/underreplication/lostBookieRecoveryDelay"),
            *("/underreplication/auditorelection", "/underreplication/auditorelection/V_0000000000"),
            *("/underreplication/ledgers/0000/0000/0000/0000/urL0000000000", "/underreplication/locks"),
            *("/underreplication/ledgers/0000/0000/0000/0001/urL0000000001", "/underreplication/ledgers/0000"),
            "/underreplication/ledgers/0000/0001/0000/0003/urL4294967299",
        ):
            ours = path.replace("V_0000000000", f"V_{driver.first_number:010d}")
            found = await service.tree.get(driver.root + ours)
            assert found.data.hex() == nodes[path]["dataHex"], path
            assert bool(found.stat.owner) is nodes[path]["ephemeral"], path
        lock = await service.tree.get(f"{driver.root}/underreplication/locks/urL0000000000")
        assert lock.data.decode() == f'bookieId: "{socket.gethostname()}"\n'
        assert lock.stat.owner == service.tree.session_id


class TestMarks:
    async def test_replicas_join(self, pair: Pair) -> None:
        one, two = pair
        await one.under_replication.mark(7, ["a:1"], ctime_ms=100)
        await two.under_replication.mark(7, ["a:1"], ctime_ms=200)  # nothing new: untouched
        assert await two.under_replication.read(7) == UnderreplicatedLedger(7, ("a:1",), 100)
        await two.under_replication.mark(7, ["b:1", "a:1"], ctime_ms=300)
        assert await one.under_replication.read(7) == UnderreplicatedLedger(7, ("a:1", "b:1"), 300)
        await two.under_replication.mark(7, ["c:1"], ctime_ms=None)
        assert await one.under_replication.read(7) == UnderreplicatedLedger(7, ("a:1", "b:1", "c:1"), 300)
        await one.under_replication.mark(8, [], ctime_ms=None)
        assert await two.under_replication.read(8) == UnderreplicatedLedger(8, (), None)
        assert await two.under_replication.read(9) is None

    async def test_of_many_who_mark_at_once_nothing_is_lost(self, pair: Pair) -> None:
        bookies = {f"b{i}:1" for i in range(20)}
        await asyncio.gather(
            *(pair[i % 2].under_replication.mark(3, [bookie], ctime_ms=i) for i, bookie in enumerate(sorted(bookies)))
        )
        found = await pair[0].under_replication.read(3)
        assert found is not None
        assert set(found.replicas) == bookies

    async def test_listing_is_ordered_and_filtered(self, pair: Pair) -> None:
        one, two = pair
        ids = [0, 1, 65_535, 65_536, 2**32 + 5, 2**63 - 1, *range(100, 120)]
        await asyncio.gather(*(one.under_replication.mark(i, [f"b{i % 3}:1"], ctime_ms=i) for i in reversed(ids)))
        assert await marked(two) == sorted(ids)
        some = [found.ledger_id async for found in two.under_replication.list(lambda replicas: "b1:1" in replicas)]
        assert some == sorted(i for i in ids if i % 3 == 1)
        await one.under_replication.unmark(65_536)
        await one.under_replication.unmark(65_536)
        assert 65_536 not in await marked(two)

    async def test_a_damaged_mark_is_no_missing_mark(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = pair
        await one.under_replication.mark(7, ["a:1"], ctime_ms=1)
        path = f"{driver.root}/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
        await one.tree.overwrite(path, b"replica = ")
        for call in (
            two.under_replication.read(7),
            two.under_replication.mark(7, ["b:1"], ctime_ms=1),
        ):
            with pytest.raises(MetadataDamaged, match="urL0000000007"):
                await call

    async def test_a_damaged_mark_is_listed_as_what_it_is(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        """And so are those behind it. What it misses nobody can say, so no predicate is true of it."""
        one, two = pair
        await asyncio.gather(*(one.under_replication.mark(each, ["a:1"], ctime_ms=1) for each in (6, 7, 8)))
        path = f"{driver.root}/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
        await one.tree.overwrite(path, b"replica = ")
        found = await everything(two.under_replication.list())
        assert [(each.ledger_id, each.replicas, each.damage is None) for each in found] == [
            (6, ("a:1",), True),
            (7, (), False),
            (8, ("a:1",), True),
        ]
        assert "urL0000000007" in found[1].damage
        chosen = await everything(two.under_replication.list(lambda replicas: True))
        assert [each.ledger_id for each in chosen] == [6, 8]

    async def test_looking_makes_nothing(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        tree = pair[0].under_replication
        assert await marked(pair[0]) == []
        assert await tree.read(1) is None
        assert await tree.locks() == {}
        assert await tree.locked_by(1) is None
        assert await tree.is_enabled()
        assert await tree.lost_bookie_recovery_delay() is None
        assert await tree.check_time(AuditorCheck.REPLICAS) is None
        assert await pair[0].auditor_election.current_auditor() is None
        assert await pair[0].tree.exists(f"{driver.root}/underreplication") is None

    async def test_another_layout_is_refused(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        await pair[0].tree.create(f"{driver.root}/underreplication")
        await pair[0].tree.create(f"{driver.root}/underreplication/LAYOUT", b'type: "NEW"\nversion: 1\n')
        with pytest.raises(MetadataDamaged, match="'NEW' 1"):
            await pair[1].under_replication.mark(1, ["a:1"], ctime_ms=1)

    async def test_without_a_cluster(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        tree = service.under_replication
        for call in (
            tree.mark(1, [], ctime_ms=None),
            tree.read(1),
            everything(tree.list()),
            tree.try_acquire(),
            tree.lock(1),
            tree.locks(),
            tree.is_enabled(),
            tree.enable(),
            tree.disable(),
            tree.lost_bookie_recovery_delay(),
            tree.set_lost_bookie_recovery_delay(1),
            tree.ask_for_audit(),
            tree.check_time(AuditorCheck.ALL_LEDGERS),
            service.auditor_election.current_auditor(),
            service.auditor_election.elect("b:1"),
        ):
            with pytest.raises(MetadataNotFound):
                await call
        assert not await service.cluster.exists()


NO_SPARE = Failure("w1", Trouble.UNREACHABLE, reason="no spare bookie")
NO_COPY = Failure("w1", Trouble.NO_COPY, entries=(7,))


def rests(worker: str, seconds: float) -> Rest:
    return lambda mark: 0.0 if binding(mark.failures, worker) is None else seconds


class TestFindings:
    async def test_a_finding_and_its_mark_are_one_node(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        damaged = Finding("a:1", Reason.DAMAGED, ((137, 137),), "auditor")
        await one.mark(7, ctime_ms=1, findings=[damaged])
        assert await two.read(7) == UnderreplicatedLedger(7, ("a:1",), 1, None, (damaged,))
        stored = (await pair[0].tree.get(f"{driver.root}/underreplication/ledgers{mark_path(7)}")).data
        assert UnderreplicatedLedgerFormat(replica=["a:1"], ctime=1) == text_format.Parse(
            stored.decode(), UnderreplicatedLedgerFormat()
        )

    async def test_findings_join_and_a_bookie_without_one_stays_so(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(7, ["a:1"], ctime_ms=1)
        await two.mark(7, ctime_ms=2, findings=absences(["a:1", "b:1"]))
        await two.mark(7, ctime_ms=2, findings=[Finding("b:1", Reason.DAMAGED, ((5, 5),))])
        await two.mark(7, ctime_ms=2, findings=[Finding("b:1", Reason.DAMAGED, ((9, 9),))])
        found = await one.read(7)
        assert found is not None
        assert found.replicas == ("a:1", "b:1")
        assert {each.reason for each in found.doubts if each.bookie == "a:1"} == {Reason.UNKNOWN, Reason.ABSENT}
        assert Finding("b:1", Reason.DAMAGED, ((5, 5), (9, 9))) in found.doubts

    async def test_what_a_mark_says_already_leaves_it_as_it_is(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(7, ctime_ms=1, findings=[Finding("a:1", Reason.DAMAGED, ((5, 9),)), *absences(["a:1"])])
        lock = await one.lock(7)
        await two.mark(7, ctime_ms=2, findings=[Finding("a:1", Reason.DAMAGED, ((7, 7),)), *absences(["a:1"])])
        await one.mark_replicated(lock)
        assert await two.read(7) is None

    async def test_that_a_bookie_is_gone_is_said_whatever_else_its_mark_says(self, pair: Pair) -> None:
        """A worker ends the writer of an open ledger only for a bookie that its mark calls absent."""
        one, two = (service.under_replication for service in pair)
        await one.mark(7, ctime_ms=1, findings=[Finding("a:1", Reason.DAMAGED, ((5, 9),)), *all_of(["b:1"])])
        await two.mark(7, ctime_ms=2, findings=absences(["a:1"]))
        found = await one.read(7)
        assert found is not None
        assert {each.reason for each in found.doubts if each.bookie == "a:1"} == {Reason.DAMAGED, Reason.ABSENT}

    async def test_a_mark_that_java_extends_loses_its_reasons(
        self, driver: MetadataDriverUnderTest, pair: Pair
    ) -> None:
        """Java reads the text, adds a replica and prints what it knows."""
        one, path = pair[0].under_replication, f"{driver.root}/underreplication/ledgers{mark_path(7)}"
        await one.mark(7, ctime_ms=1, findings=absences(["a:1"]))
        await pair[0].tree.overwrite(path, b'replica: "a:1"\nreplica: "b:1"\nctime: 1\n')
        found = await one.read(7)
        assert found is not None
        assert found.doubts == all_of(["a:1", "b:1"])


class TestLedgersThatRest:
    async def test_who_failed_rests_and_others_try_at_once(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        lock = await one.acquire()
        await one.note_failure(lock, NO_SPARE)
        await one.release(lock)
        assert await one.try_acquire(rests("w1", 60)) is None
        assert await two.locks() == {}
        taken = await two.try_acquire(rests("w2", 60))
        assert taken is not None
        await two.release(taken)

    async def test_an_entry_without_a_copy_binds_everybody(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        lock = await one.acquire()
        await one.note_failure(lock, NO_COPY)
        await one.release(lock)
        assert await two.try_acquire(rests("w2", 60)) is None
        await two.release(await two.lock(1))  # a drain is not kept from it

    async def test_a_rest_ends_by_itself_and_counts_once(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        lock = await one.acquire()
        await one.note_failure(lock, NO_COPY)
        await one.release(lock)
        for tree, worker in ((one, "w1"), (two, "w2")):
            async with asyncio.timeout(5):
                await tree.release(await tree.acquire(rests(worker, 0.2)))
        lock = await one.acquire(rests("w1", 0.2))
        await one.note_failure(lock, NO_COPY)
        await one.release(lock)
        assert await two.try_acquire(rests("w2", 60)) is None

    async def test_something_new_ends_every_rest(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        lock = await one.acquire()
        await one.note_failure(lock, NO_COPY)
        await one.release(lock)
        await two.mark(1, ["more:1"], ctime_ms=None)
        async with asyncio.timeout(5):
            assert (await one.acquire(rests("w1", 60))).ledger_id == 1

    async def test_one_that_rests_for_this_process_alone(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        one.rest(1, 60)
        assert await one.try_acquire() is None
        assert await two.try_acquire() is not None

    async def test_of_too_many_the_last_are_tried_again(self) -> None:
        resting = Resting(most=2)
        assert [resting.put(each, seconds, None) for each, seconds in ((1, 60.0), (2, 0.0), (3, 90.0))] == [True] * 3
        assert not resting.put(4, 90.0, None)
        assert [resting.is_over(each) for each in (1, 2, 3, 4)] == [False, None, False, None]

    async def test_whose_session_has_ended_notes_nothing(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["gone:1"], ctime_ms=None)
        lock = await one.acquire()
        await driver.expire(pair[0])
        with pytest.raises(SessionEnded):
            await one.note_failure(lock, NO_COPY)
        found = await two.read(1)
        assert found is not None
        assert found.failures == ()


class TestLocks:
    async def test_a_lock_that_cannot_be_given_back_is_counted_until_it_is_gone(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = (service.under_replication for service in pair)
        lock, tree = await one.lock(7), pair[0].tree
        with monkeypatch.context() as patch:

            async def away(*parts: Any, **options: Any) -> bool:
                raise MetadataUnavailable("no answer")

            patch.setattr(tree, "delete_own", away)
            await one.release(lock, timeout=0.1)
            await one.release(lock, timeout=0.1)
            assert one.locks_not_released == 1
            assert await two.locked_by(7) is not None
            with pytest.raises(MetadataExists):
                await one.lock(7)
        async with asyncio.timeout(10):
            while one.locks_not_released:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await two.locked_by(7) is None

    async def test_two_workers_share_the_work(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        for ledger_id in range(12):
            await one.mark(ledger_id, ["a:1"], ctime_ms=1)
        locks = [await (one, two)[i % 2].acquire() for i in range(12)]
        assert sorted(lock.ledger_id for lock in locks) == list(range(12))
        assert sorted(await one.locks()) == list(range(12))
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await one.release(locks[0])
        async with asyncio.timeout(5):
            assert (await waiting).ledger_id == locks[0].ledger_id

    async def test_what_an_old_listing_hid_is_looked_for_again(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if it is listed anew in the middle of the search."""
        one, two = (service.under_replication for service in pair)
        for ledger_id in (1, 2):
            await one.mark(ledger_id, ["a:1"], ctime_ms=1)
        lock, _ = await one.lock(1), await one.lock(2)
        monkeypatch.setattr(two._locks._random, "randrange", lambda count: 0)
        assert await two.try_acquire() is None
        listed = two._locks._directories[two._locks._base.locks]
        await one.release(lock)
        async with asyncio.timeout(10):
            while not listed.is_stale:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        uses = [True]
        monkeypatch.setattr(_Directory, "may_serve", lambda known, now: not known.is_stale or (uses and uses.pop()))
        found = await two.try_acquire()
        assert found is not None
        assert found.ledger_id == 1

    async def test_every_mark_has_its_turn(self, pair: Pair) -> None:
        tree = pair[0].under_replication
        for ledger_id in (1, 2, 70_000, 2**40):
            await tree.mark(ledger_id, ["a:1"], ctime_ms=1)
        seen = set()
        async with asyncio.timeout(30):
            while len(seen) < 4:
                lock = await tree.acquire()
                seen.add(lock.ledger_id)
                await tree.release(lock)

    async def test_a_worker_wakes_up_for_a_new_mark(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        assert await two.try_acquire() is None
        for ledger_id in (5, 6, 2**40):
            waiting = asyncio.create_task(two.acquire())
            await asyncio.sleep(0.05)
            await one.mark(ledger_id, ["a:1"], ctime_ms=1)
            async with asyncio.timeout(5):
                lock = await waiting
            assert lock.ledger_id == ledger_id
            await two.mark_replicated(lock)
        assert await marked(pair[0]) == []

    async def test_replicated_takes_mark_and_directories_away(
        self, driver: MetadataDriverUnderTest, pair: Pair
    ) -> None:
        one = pair[0].under_replication
        await one.mark(7, ["a:1"], ctime_ms=1)
        await one.mark(8, ["a:1"], ctime_ms=1)
        lock = await one.lock(7)
        await one.mark_replicated(lock)
        ledgers = f"{driver.root}/underreplication/ledgers"
        assert (await pair[1].tree.children(f"{ledgers}/0000/0000/0000")).names == ("0008",)
        assert await one.locks() == {}
        await one.mark_replicated(await one.lock(8))
        assert (await pair[1].tree.children(ledgers)).names == ()

    async def test_a_mark_that_was_renewed_stays(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(7, ["a:1"], ctime_ms=1)
        lock = await one.acquire()
        await two.mark(7, ["b:1"], ctime_ms=2)
        await one.mark_replicated(lock)
        assert await two.read(7) == UnderreplicatedLedger(7, ("a:1", "b:1"), 2)
        assert await two.locks() == {}
        again = await two.acquire()
        await two.unmark(7)
        await two.mark_replicated(again)  # the mark is gone already: fine
        assert await two.locks() == {}

    async def test_a_lock_without_a_mark(self, pair: Pair) -> None:
        """As the collector of over-replicated ledgers takes it."""
        one, two = (service.under_replication for service in pair)
        lock = await one.lock(9)
        assert lock.mark is None
        for other in (one, two):
            with pytest.raises(MetadataExists, match="ledger 9 is locked"):
                await other.lock(9)
        assert await two.locked_by(9) == socket.gethostname()
        await two.mark(9, ["a:1"], ctime_ms=1)
        assert await two.try_acquire() is None
        await one.mark_replicated(lock)
        assert await marked(pair[1]) == [9]
        again = (await two.acquire()).mark
        assert again is not None
        assert again.version == 0

    async def test_a_lock_ends_with_its_session_and_nobody_removes_anothers(
        self, driver: MetadataDriverUnderTest, pair: Pair
    ) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(7, ["a:1"], ctime_ms=1)
        lock = await one.acquire()
        waiting = asyncio.create_task(two.acquire())
        await asyncio.sleep(0.05)
        await driver.expire(pair[0])
        async with asyncio.timeout(10):
            assert (await waiting).ledger_id == 7
        await one.release(lock, timeout=10)
        assert await two.locked_by(7) is not None
        with pytest.raises(MetadataExists):
            await one.lock(7, timeout=10)

    async def test_of_a_cancelled_call_no_lock_stays(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = pair[0].under_replication, pair[1].under_replication
        await one.mark(1, ["b"], ctime_ms=1)
        finished = 0
        for turns in range(0, 60, 3):
            locking = asyncio.ensure_future(one.acquire())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            locking.cancel()
            await asyncio.wait({locking})
            if not locking.cancelled():
                await one.release(locking.result())
                finished += 1
            async with asyncio.timeout(20):
                lock = await two.acquire()
            await two.release(lock)
        assert finished < 20, "no call was cancelled on its way"

    async def test_a_formatted_tree_is_made_again(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        await one.mark(1, ["a:1"], ctime_ms=1)
        await two.mark_replicated(await two.acquire())
        for name in ("ledgers", "locks"):
            await pair[0].tree.delete(f"{driver.root}/underreplication/{name}")
        assert await two.try_acquire() is None
        await one.mark(2, ["a:1"], ctime_ms=1)
        async with asyncio.timeout(5):
            assert (await two.acquire()).ledger_id == 2


class TestSettings:
    async def test_enable_and_disable(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        async with two.watch_enabled() as states:
            assert await anext(states)
            with pytest.raises(MetadataNotFound, match="enabled"):
                await one.enable()
            await one.disable()
            assert not await anext(states)
            with pytest.raises(MetadataExists, match="disabled"):
                await two.disable()
            assert (await pair[0].tree.get(f"{driver.root}/underreplication/disable")).data == b""
            await one.mark(1, ["a:1"], ctime_ms=1)
            assert await two.try_acquire() is None
            waiting = asyncio.create_task(two.acquire())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await one.enable()
            async with asyncio.timeout(5):
                assert await anext(states)
                assert (await waiting).ledger_id == 1

    async def test_the_recovery_delay(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        async with two.watch_lost_bookie_recovery_delay() as delays, asyncio.timeout(10):
            assert await anext(delays) is None
            assert await one.initialize_lost_bookie_recovery_delay(30)
            first = await anext(delays)
            assert first is not None
            assert not await two.initialize_lost_bookie_recovery_delay(60)
            assert await two.lost_bookie_recovery_delay() == 30
            assert await one.ask_for_audit()
            second = await anext(delays)
            assert second is not None
            assert (first.value, second.value) == (30, 30)
            assert second.version > first.version
            await one.set_lost_bookie_recovery_delay(0)
            third = await anext(delays)
            assert third is not None
            assert third.value == 0
        path = f"{driver.root}/underreplication/lostBookieRecoveryDelay"
        assert (await pair[0].tree.get(path)).data == b"0"
        await pair[0].tree.overwrite(path, b"soon")
        with pytest.raises(MetadataDamaged, match="'soon'"):
            await two.lost_bookie_recovery_delay()
        with pytest.raises(ValueError, match="lostBookieRecoveryDelay=-1"):
            await one.set_lost_bookie_recovery_delay(-1)

    async def test_an_audit_that_is_asked_for_takes_no_delay_back(
        self, driver: MetadataDriverUnderTest, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = (service.under_replication for service in pair)
        assert not await one.ask_for_audit(), "the auditor that is about to begin sets the one of its configuration"
        assert await two.lost_bookie_recovery_delay() is None
        await one.set_lost_bookie_recovery_delay(0)
        tree, others = pair[0].tree, [3600, 7200]
        get = tree.get

        async def slow(path: str, **options: Any) -> Node:
            found = await get(path, **options)
            if path.endswith("lostBookieRecoveryDelay") and others:
                await two.set_lost_bookie_recovery_delay(others.pop(0))
            return found

        monkeypatch.setattr(tree, "get", slow)
        assert await one.ask_for_audit()
        assert await two.lost_bookie_recovery_delay() == 7200
        assert (await get(f"{driver.root}/underreplication/lostBookieRecoveryDelay")).stat.version == 3

    @pytest.mark.parametrize("check", AuditorCheck)
    async def test_check_times(self, driver: MetadataDriverUnderTest, pair: Pair, check: AuditorCheck) -> None:
        one, two = (service.under_replication for service in pair)
        await one.set_check_time(check, 1_699_999_999_999)
        await one.set_check_time(check, 1_700_000_000_000)
        assert await two.check_time(check) == 1_700_000_000_000
        node = await pair[1].tree.get(f"{driver.root}/underreplication/{check.value}")
        assert node.data.hex() == "0880d095ffbc31"
        await pair[1].tree.overwrite(f"{driver.root}/underreplication/{check.value}", b"")
        assert await two.check_time(check) is None


class TestWhatALockCovers:
    async def test_it_is_done_in_the_session_of_the_lock_or_not_at_all(
        self, driver: MetadataDriverUnderTest, pair: Pair
    ) -> None:
        service, (one, two) = pair[0], (service.under_replication for service in pair)
        stored = await service.ledgers.create(ledger(7))
        await one.mark(7, ["a:1"], ctime_ms=1)
        lock = await one.lock(7)
        stored = await service.ledgers.write(stored.value.in_recovery(), stored.identity, session_id=lock.session_id)
        await driver.expire(service)
        async with asyncio.timeout(10):
            while await two.locked_by(7) is not None:  # noqa: ASYNC110 - locks have no event
                await asyncio.sleep(0.02)
        theirs = await two.lock(7)
        with pytest.raises(SessionEnded):
            await service.ledgers.write(stored.value.closed(1, 1), stored.identity, session_id=lock.session_id)
        with pytest.raises(SessionEnded):
            await one.mark_replicated(lock)
        now = await pair[1].ledgers.read(7)
        assert (now.version, now.value.state) == (stored.version, LedgerState.IN_RECOVERY)
        assert await marked(pair[1]) == [7]
        assert theirs.session_id in {holder.session_id for holder in (await one.holders()).values()}

    async def test_a_lock_that_is_taken_again_is_another_one(self, pair: Pair) -> None:
        """Whoever gives the first one back twice does not give back the second."""
        one, two = (service.under_replication for service in pair)
        first = await one.lock(7)
        held = (await two.holders())[7]
        await one.release(first)
        second = await one.lock(7)
        await one.release(first)
        now = (await two.holders())[7]
        assert (now.session_id, now.host) == (held.session_id, held.host)
        assert now.creation != held.creation
        await one.release(second)
        assert await two.holders() == {}

    async def test_a_mark_that_is_renewed_outlives_a_repair_under_way(self, pair: Pair) -> None:
        one, two = (service.under_replication for service in pair)
        assert not await one.renew(7)
        await one.mark(7, ["a:1"], ctime_ms=1)
        lock = await one.lock(7)
        assert await two.renew(7)
        await one.mark_replicated(lock)
        assert await two.read(7) == UnderreplicatedLedger(7, ("a:1",), 1)

    async def test_marks_are_counted(self, driver: MetadataDriverUnderTest, pair: Pair) -> None:
        one = pair[0].under_replication
        assert await one.count() == 0
        for ledger_id in (1, 2, 2**40):
            await one.mark(ledger_id, ["a:1"], ctime_ms=1)
        assert await pair[1].under_replication.count() == 3
        # Who was interrupted may have left the directory of a mark behind, and what is in a mark may be damaged.
        await pair[0].tree.delete(f"{driver.root}/underreplication/ledgers{mark_path(1)}")
        await pair[0].tree.overwrite(f"{driver.root}/underreplication/ledgers{mark_path(2)}", b"{ nonsense")
        assert await pair[1].under_replication.count() == 2


async def test_the_cookie_that_was_read_is_deleted_and_no_other(pair: Pair) -> None:
    one, two = pair
    await one.cookies.create("b:1", b"first")
    first = (await one.cookies.read("b:1")).identity
    await two.cookies.delete("b:1")
    with pytest.raises(MetadataNotFound):
        await one.cookies.delete_this("b:1", first)
    await asyncio.sleep(0.01)  # times of creation have milliseconds
    await two.cookies.create("b:1", b"second")
    with pytest.raises(MetadataVersionConflict):
        await one.cookies.delete_this("b:1", first)
    second = (await one.cookies.read("b:1")).identity
    assert second.version == first.version
    with pytest.raises(SessionEnded):
        await one.cookies.delete_this("b:1", replace(second, session_id=second.session_id + 1))
    assert (await two.cookies.read("b:1")).value == b"second"
    await two.cookies.delete_this("b:1", (await two.cookies.read("b:1")).identity)
