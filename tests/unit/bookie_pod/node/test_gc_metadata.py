"""The metadata service for the garbage collection threads: "does not exist" and "could not tell" never look alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.node.gc_metadata import READS_AT_ONCE, LoopGcMetadata
from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataWentBack,
)
from bookie_protocol.metadata_service.interface import (
    Identity,
    LedgerLayout,
    LedgerRange,
    Session,
    SessionState,
    Versioned,
)
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_drivers import EmbeddedUnderTest

BOOKIE = "b1:3181"


class Service:
    """A service whose answers a test dictates; `hang` makes every call wait for ever."""

    def __init__(self) -> None:
        self.instance: str | None = "one"
        self.hang = False
        self.hanging = threading.Event()
        self.cancelled = threading.Event()
        self.error: MetadataError | None = None
        self.locks: list[str] = []
        self.cluster = SimpleNamespace(instance_id=self._instance_id)
        self.ledgers = SimpleNamespace(read_each=self._read_each, ranges=self._ranges)
        self.under_replication = SimpleNamespace(lock=self._lock, release=self._release)
        self.session = Session(1.0)
        self.whole = True

    async def is_whole(self, ledger_id: int) -> bool:
        await self._answer()
        return self.whole

    async def _answer(self) -> None:
        if self.hang:
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if self.error is not None:
            raise self.error

    async def _instance_id(self, *, timeout: float) -> str | None:
        await self._answer()
        return self.instance

    async def _read_each(self, ledger_ids: Sequence[int], *, timeout: float) -> list[Any]:
        await self._answer()
        return [
            MetadataNotFound("no") if each == 404 else Versioned(f"metadata of {each}", Identity(0, 1))
            for each in ledger_ids
        ]

    async def _ranges(self, *, timeout: float) -> AsyncIterator[LedgerRange]:
        yield LedgerRange(0, 9, (1, 2))
        await self._answer()
        yield LedgerRange(10, 2**63 - 1, ())

    async def _lock(self, ledger_id: int, *, timeout: float) -> str:
        await self._answer()
        self.locks.append("taken")
        return f"lock of {ledger_id}"

    async def _release(self, lock: str, *, timeout: float) -> None:
        await self._answer()
        self.locks.append("released")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[EmbeddedUnderTest]:
    made = EmbeddedUnderTest(str(tmp_path))
    yield made
    await made.close()


def _bridge(service: Service, timeout: float = 10.0, instance: str | None = "one") -> LoopGcMetadata:
    loop = asyncio.get_running_loop()
    return LoopGcMetadata(service, loop, BOOKIE, instance, timeout, service.is_whole)  # type: ignore[arg-type]


async def _remove(service: MetadataService, path: str) -> None:
    for name in (await service.tree.children(path)).names:
        await _remove(service, f"{path}/{name}")
    await service.tree.delete(path)


async def _on_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


async def test_answers(service: Service) -> None:
    bridge = _bridge(service)
    assert await _on_thread(lambda: bridge.read(7)) == "metadata of 7"
    assert await _on_thread(lambda: bridge.read(404)) is None
    spans = await _on_thread(lambda: list(bridge.ranges()))
    assert [(span.start, span.end) for span in spans] == [(0, 9), (10, 2**63 - 1)]
    await _on_thread(bridge.check_instance)


async def test_many_ledgers_are_asked_for_at_once_and_each_has_its_own_answer(service: Service) -> None:
    drawn: list[int] = []

    def ids() -> Iterator[int]:
        for ledger_id in [*range(READS_AT_ONCE - 1), 404, *range(1000, 1000 + READS_AT_ONCE)]:
            drawn.append(ledger_id)
            yield ledger_id

    bridge = _bridge(service)
    answers = bridge.read_many(ids())
    assert await _on_thread(lambda: next(answers)) == (0, "metadata of 0")
    assert len(drawn) == READS_AT_ONCE
    left = await _on_thread(lambda: list(answers))
    assert [ledger_id for ledger_id, _ in left] == drawn[1:]
    assert all(found == (None if ledger_id == 404 else f"metadata of {ledger_id}") for ledger_id, found in left)


async def test_of_a_cluster_that_is_gone_no_ledger_is_missing(driver: EmbeddedUnderTest) -> None:
    cluster = await driver.open()
    await cluster.cluster.initialize()
    bridge = LoopGcMetadata(cluster, asyncio.get_running_loop(), BOOKIE, "one", 10.0, Service().is_whole)
    assert await _on_thread(lambda: bridge.read(7)) is None
    await _remove(cluster, driver.root)
    with pytest.raises(MetadataError, match="cluster"):
        await _on_thread(lambda: bridge.read(7))
    [(_, answer)] = await _on_thread(lambda: list(bridge.read_many([7])))
    assert isinstance(answer, MetadataError)


async def test_an_id_that_no_ledger_of_the_cluster_can_have_is_told_of_itself(driver: EmbeddedUnderTest) -> None:
    """Any client may write to it, and that must not end the collection of all others."""
    cluster = await driver.open(layout=LedgerLayout.LEGACY_HIERARCHICAL)
    await cluster.cluster.initialize()
    loop = asyncio.get_running_loop()
    bridge = LoopGcMetadata(cluster, loop, BOOKIE, "one", 10.0, Service().is_whole)
    answers = dict(await _on_thread(lambda: list(bridge.read_many([1, 2**40, 2]))))
    assert answers[1] is answers[2] is None
    assert isinstance(answers[2**40], MetadataDamaged)
    with pytest.raises(MetadataDamaged, match="layout"):
        await _on_thread(lambda: bridge.read(2**40))


async def test_many_of_a_service_that_is_gone_are_errors_and_never_missing(service: Service) -> None:
    service.error = MetadataUnavailable("connection lost")
    bridge = _bridge(service)
    answers = await _on_thread(lambda: list(bridge.read_many([1, 404])))
    assert [(ledger_id, type(found)) for ledger_id, found in answers] == [
        (1, MetadataUnavailable),
        (404, MetadataUnavailable),
    ]
    bridge.close()
    answers = await _on_thread(lambda: list(bridge.read_many([1, 404])))
    assert [type(found) for _, found in answers] == [MetadataUnavailable, MetadataUnavailable]


@pytest.mark.parametrize("found", ["two", None])
async def test_another_cluster_is_refused_by_name(service: Service, found: str | None) -> None:
    service.instance = found
    bridge = _bridge(service)
    with pytest.raises(MetadataDamaged, match="metadataServiceUri"):
        await _on_thread(bridge.check_instance)


async def test_a_cluster_without_an_id_is_the_one_that_a_bookie_without_one_belongs_to(service: Service) -> None:
    service.instance = None
    await _on_thread(_bridge(service, instance=None).check_instance)
    service.instance = "one"
    with pytest.raises(MetadataDamaged):
        await _on_thread(_bridge(service, instance=None).check_instance)


async def test_a_service_that_is_gone_is_no_answer(service: Service) -> None:
    service.error = MetadataUnavailable("connection lost")
    bridge = _bridge(service)
    for call in (bridge.check_instance, lambda: bridge.read(404), lambda: list(bridge.ranges())):
        with pytest.raises(MetadataUnavailable):
            await _on_thread(call)


async def test_a_root_that_is_gone_is_an_error_too(service: Service) -> None:
    service.error = MetadataNotFound("no such root")
    with pytest.raises(MetadataError):
        await _on_thread(_bridge(service).check_instance)


async def test_a_listing_that_hangs_gives_what_came_before_and_then_an_error(service: Service) -> None:
    service.hang = True
    listing = _bridge(service, timeout=0.05).ranges()
    assert (await _on_thread(lambda: next(listing))).ids == (1, 2)
    with pytest.raises(MetadataUnavailable):
        await _on_thread(lambda: next(listing))


async def test_a_call_that_hangs_ends_and_is_cancelled(service: Service) -> None:
    service.hang = True
    bridge = _bridge(service, timeout=0.05)
    with pytest.raises(MetadataUnavailable, match=r"within 0\.1 s"):
        await _on_thread(lambda: bridge.read(1))
    assert await _on_thread(lambda: service.cancelled.wait(10))


async def test_closing_ends_a_call_that_hangs_at_once_and_refuses_others(service: Service) -> None:
    service.hang = True
    bridge = _bridge(service, timeout=1000)
    call = asyncio.create_task(_on_thread(lambda: bridge.read(1)))
    assert await _on_thread(lambda: service.hanging.wait(10))
    began = time.monotonic()
    await _on_thread(bridge.close)
    with pytest.raises(MetadataUnavailable, match="stopped"):
        await call
    assert time.monotonic() - began < 10
    service.hang = False
    with pytest.raises(MetadataUnavailable):
        await _on_thread(lambda: bridge.read(1))
    with pytest.raises(MetadataUnavailable):
        await _on_thread(lambda: next(bridge.ranges()))


def test_a_loop_that_is_closed_is_no_answer(service: Service) -> None:
    loop = asyncio.new_event_loop()
    bridge = LoopGcMetadata(service, loop, BOOKIE, "one", 1.0, service.is_whole)  # type: ignore[arg-type]
    loop.close()
    with pytest.raises(MetadataUnavailable, match="stopped"):
        bridge.read(1)


async def test_copies_that_cannot_be_looked_at_in_time_are_not_there(service: Service) -> None:
    service.hang = True
    loop = asyncio.get_running_loop()
    bridge = LoopGcMetadata(service, loop, BOOKIE, "one", 10.0, service.is_whole, 0.01)  # type: ignore[arg-type]
    assert not await _on_thread(lambda: bridge.is_whole_elsewhere(7))
    assert service.cancelled.is_set()


async def test_a_client_that_cannot_be_had_keeps_the_ledger_and_ends_nothing(service: Service) -> None:
    async def is_whole(ledger_id: int) -> bool:
        raise FileNotFoundError("/certificates/ca.pem")

    bridge = LoopGcMetadata(service, asyncio.get_running_loop(), BOOKIE, "one", 10.0, is_whole)  # type: ignore[arg-type]
    assert not await _on_thread(lambda: bridge.is_whole_elsewhere(7))


class TestLock:
    async def test_a_session_that_ends_while_it_is_taken(self, service: Service) -> None:
        service.session.move(SessionState.CONNECTED)

        async def lock(ledger_id: int, *, timeout: float) -> str:
            service.session.move(SessionState.EXPIRED)
            service.session.move(SessionState.CONNECTED)
            return "lock"

        service.under_replication.lock = lock
        bridge = _bridge(service)

        def use() -> bool:
            with bridge.re_replication_lock(7) as still_held:
                return still_held is not None and still_held()

        assert not await _on_thread(use)

    async def test_held_and_given_back(self, service: Service) -> None:
        bridge = _bridge(service)

        def use() -> bool:
            with bridge.re_replication_lock(7) as still_held:
                assert service.locks == ["taken"]
                return still_held is not None and still_held()

        assert await _on_thread(use)
        assert service.locks == ["taken", "released"]

    @pytest.mark.parametrize("state", [SessionState.EXPIRED, SessionState.SUSPENDED])
    async def test_one_that_may_have_ended_with_its_session_is_not_held(
        self, service: Service, state: SessionState
    ) -> None:
        service.session.move(SessionState.CONNECTED)
        bridge = _bridge(service)
        loop = asyncio.get_running_loop()

        def use() -> bool:
            with bridge.re_replication_lock(7) as still_held:
                loop.call_soon_threadsafe(service.session.move, state)
                bridge.read(1)
                assert still_held is not None
                return still_held()

        assert not await _on_thread(use)

    async def test_given_back_after_an_error(self, service: Service) -> None:
        bridge = _bridge(service)

        def use() -> None:
            with bridge.re_replication_lock(7):
                raise MetadataUnavailable("in the middle")

        with pytest.raises(MetadataUnavailable, match="middle"):
            await _on_thread(use)
        assert service.locks == ["taken", "released"]

    async def test_somebody_elses(self, service: Service) -> None:
        service.error = MetadataExists("locked")
        bridge = _bridge(service)

        def use() -> bool:
            with bridge.re_replication_lock(7) as still_held:
                return still_held is not None

        assert not await _on_thread(use)
        assert service.locks == []

    async def test_one_that_cannot_be_told_is_not_ours(self, service: Service) -> None:
        service.error = MetadataUnavailable("no answer")
        bridge = _bridge(service)

        def use() -> None:
            with bridge.re_replication_lock(7):
                raise AssertionError("went on without the lock")

        with pytest.raises(MetadataUnavailable):
            await _on_thread(use)


async def test_pass_whose_session_has_ended_gets_no_answer(service: Service) -> None:
    """The service of the next session may be another one, or an older state of this one."""
    bridge = _bridge(service)
    service.session.move(SessionState.CONNECTED)
    await _on_thread(bridge.check_instance)
    assert await _on_thread(lambda: bridge.read(404)) is None
    service.session.move(SessionState.EXPIRED)
    service.session.move(SessionState.CONNECTED)
    with pytest.raises(MetadataUnavailable):
        await _on_thread(lambda: bridge.read(404))
    with pytest.raises(MetadataUnavailable):
        await _on_thread(lambda: list(bridge.ranges()))
    await _on_thread(bridge.check_instance)
    assert await _on_thread(lambda: bridge.read(404)) is None


async def test_service_that_is_put_back_during_a_pass_is_not_believed_any_more(service: Service) -> None:
    """An embedded store that was restored may know the session of this pass: then it does not end."""
    bridge = _bridge(service)
    asked = service.session.asks()
    service.session.answered(10, asked)
    await asyncio.to_thread(bridge.check_instance)
    listing = bridge.ranges()
    assert (await asyncio.to_thread(next, listing)).ids == (1, 2)
    service.session.answered(5, service.session.asks())
    with pytest.raises(MetadataWentBack):
        await asyncio.to_thread(next, listing)
    [(_, answer)] = await asyncio.to_thread(lambda: list(bridge.read_many([404])))
    assert isinstance(answer, MetadataWentBack), "not: there is no such ledger"
