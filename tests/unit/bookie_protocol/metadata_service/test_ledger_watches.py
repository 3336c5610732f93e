"""Many readers of one ledger: what they see, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree import ledger_watches
from bookie_protocol.metadata_service.tree.ledger_watches import LEAVING_SECONDS, Found, LedgerWatches
from bookie_protocol.versioned import Identity, Versioned
from tests.support.until import until


class Store:
    """Ledgers with watches; counts reads."""

    def __init__(self) -> None:
        self.stored: dict[int, Found] = {}
        self.reads = 0
        self.third_read = asyncio.Event()
        self.fails: Exception | None = None
        self._watches: list[Callable[[], None]] = []

    async def read(self, ledger_id: int, watch: Callable[[], None] | None) -> Found:
        self.reads += 1
        if self.reads >= 3:
            self.third_read.set()
        await asyncio.sleep(0)
        found = self.stored.get(ledger_id)
        if self.fails is not None:
            raise self.fails
        if watch is not None:
            self._watches.append(watch)
        return found

    def put(self, ledger_id: int, version: int, *, closed: bool = False, creation: int = 1) -> None:
        metadata = LedgerMetadata(ledger_id, 1, 1, 1, {0: ("b:1",)})
        self.stored[ledger_id] = Versioned(metadata.closed(5, 10) if closed else metadata, Identity(version, creation))
        self.fire()

    def delete(self, ledger_id: int) -> None:
        del self.stored[ledger_id]
        self.fire()

    def fire(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch()


def version(found: Found) -> int:
    assert found is not None
    return found.version


async def test_many_readers_cost_two_reads_for_each_change() -> None:
    """One without a watch, as the ledger may be closed, and one with it."""
    store = Store()
    store.put(7, 0)
    watches = LedgerWatches(store.read)
    readers = [watches.watch(7) for _ in range(100)]
    for number in range(3):
        assert {version(await anext(reader)) for reader in readers} == {number}
        assert store.reads == 2 * number + 1
        store.put(7, number + 1)
    late = watches.watch(7)
    assert {version(await anext(reader)) for reader in (*readers, late)} == {3}
    assert store.reads == 7
    store.delete(7)
    for reader in (*readers, late):
        assert await anext(reader) is None
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
    assert store.reads == 9
    assert watches._watched == {}
    for reader in (*readers, late):
        await reader.close()


async def test_coming_back_costs_nothing_while_nothing_changed() -> None:
    store = Store()
    store.put(7, 4)
    watches = LedgerWatches(store.read)
    for _ in range(50):
        async with watches.watch(7) as reader:
            assert version(await anext(reader)) == 4
    assert store.reads == 1
    assert len(store._watches) == 1
    store.put(7, 5)
    async with watches.watch(7) as reader:
        assert version(await anext(reader)) == 5
    assert store.reads == 2


async def test_a_watch_that_fires_for_nothing_shows_nothing_but_newcomers_are_served() -> None:
    store = Store()
    store.put(7, 0)
    watches = LedgerWatches(store.read)
    async with watches.watch(7) as first:
        assert version(await anext(first)) == 0
        store.fire()
        async with watches.watch(7) as second:
            assert version(await anext(second)) == 0
            store.put(7, 1)
            assert version(await anext(first)) == version(await anext(second)) == 1


async def test_faults_are_ridden_out_and_damage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_watches, "RETRY_SECONDS", 0.01)
    store = Store()
    store.put(7, 0)
    store.fails = MetadataUnavailable("gone")
    watches = LedgerWatches(store.read)
    async with watches.watch(7) as reader:
        await store.third_read.wait()
        store.fails = None
        assert version(await anext(reader)) == 0
        store.fails = MetadataDamaged("no metadata")
        store.put(7, 1)
        with pytest.raises(MetadataDamaged):
            await anext(reader)
    store.fails = None
    async with watches.watch(7) as again:
        assert version(await anext(again)) == 1


async def test_what_is_kept_of_unwatched_ledgers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_watches, "MAX_IDLE", 5)
    store = Store()
    watches = LedgerWatches(store.read)
    for ledger_id in range(20):
        store.put(ledger_id, 0)
        async with watches.watch(ledger_id) as reader:
            await anext(reader)
    assert sorted(watches._idle) == list(range(15, 20))
    assert watches._watched == {}


async def test_closing_before_the_first_answer() -> None:
    store = Store()
    store.put(7, 0)
    watches = LedgerWatches(store.read)
    first, second = watches.watch(7), watches.watch(7)
    await asyncio.sleep(0)
    await first.close()
    assert version(await anext(second)) == 0
    await second.close()
    assert watches._watched == {}


async def test_who_followed_a_ledger_to_its_end_leaves_no_watch() -> None:
    store = Store()
    watches = LedgerWatches(store.read)
    for ledger_id in range(50):
        store.put(ledger_id, 0)
        async with watches.watch(ledger_id) as reader:
            assert version(await anext(reader)) == 0
            store.put(ledger_id, 1, closed=True)
            assert version(await anext(reader)) == 1
    assert store._watches == []
    assert watches._watched == watches._idle == {}


async def test_who_stays_with_a_closed_ledger_hears_of_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_watches, "LEAVING_SECONDS", 0.01)
    store = Store()
    store.put(7, 0)
    watches = LedgerWatches(store.read)
    async with watches.watch(7) as reader:
        assert version(await anext(reader)) == 0
        store.put(7, 1, closed=True)
        assert version(await anext(reader)) == 1
        await until(lambda: store._watches)
        store.put(7, 2, closed=True)
        assert version(await anext(reader)) == 2


async def test_who_comes_while_others_leave_waits_for_nobody() -> None:
    store = Store()
    store.put(7, 0)
    watches = LedgerWatches(store.read)
    async with watches.watch(7) as first:
        assert version(await anext(first)) == 0
        store.put(7, 1, closed=True)
        assert version(await anext(first)) == 1
        async with watches.watch(7) as second, asyncio.timeout(LEAVING_SECONDS / 2):
            assert version(await anext(second)) == 1
