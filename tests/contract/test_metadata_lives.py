"""Names that are used again: whoever means the first thing of a name changes and deletes nothing of the second.

Versions begin again with each thing, so the second one often has the version that the first one had. The doubles of
tests are judged by the same cases as the drivers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client.metadata_update import update_metadata
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataReplaced, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.embedded import store as embedded
from bookie_protocol.metadata_service.etcd import tree as etcd_tree
from bookie_protocol.metadata_service.interface import Identity, LedgerLife, Versioned
from bookie_protocol.metadata_service.oxia import tree as oxia_tree
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.support import memory_metadata, memory_records
from tests.support.memory_metadata import MemoryMetadata
from tests.support.metadata_fixtures import ALL, driver_of

LEDGER = LedgerMetadata(7, 1, 1, 1, {0: ("a:1",)}, digest_type=DigestType.CRC32C, password=b"")
NAME = "b:1"


@dataclass(frozen=True)
class Pair:
    """Two sessions: of whoever knows the first thing, and of whoever makes the second. `kind`: of the driver."""

    kind: str
    one: Any
    two: Any


@pytest.fixture(params=[*ALL, "memory"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    if request.param == "memory":
        service = MemoryMetadata()
        yield Pair("memory", service, service)
        return
    driver = driver_of(request.param, request, tmp_path)
    try:
        one, two = await driver.open(), await driver.open()
        await one.cluster.initialize()
        yield Pair(request.param, one, two)
    finally:
        await driver.close()


class Things:
    """Things of one kind under one name, in one store: what each store has in common."""

    def __init__(self, service: Any) -> None:
        self.service = service

    async def make(self) -> Identity: ...
    async def change(self, this: Identity) -> Identity: ...
    async def delete(self, this: Identity) -> None: ...
    async def delete_any(self) -> None: ...
    async def find(self) -> Identity: ...


class Ledgers(Things):
    async def make(self) -> Identity:
        return (await self.service.ledgers.create(LEDGER)).identity

    async def change(self, this: Identity) -> Identity:
        return (await self.service.ledgers.write(LEDGER, this)).identity

    async def delete(self, this: Identity) -> None:
        await self.service.ledgers.delete_this(Versioned(LEDGER, this))

    async def delete_any(self) -> None:
        await self.service.ledgers.delete(LEDGER.ledger_id)

    async def find(self) -> Identity:
        return (await self.service.ledgers.read(LEDGER.ledger_id, fresh=True)).identity


class Records(Things):
    @property
    def _store(self) -> Any:
        return self.service.records("decommission")

    async def make(self) -> Identity:
        return await self._store.create(NAME, b"")

    async def change(self, this: Identity) -> Identity:
        return await self._store.update(NAME, b"changed", this)

    async def delete(self, this: Identity) -> None:
        await self._store.delete_this(NAME, this)

    async def delete_any(self) -> None:
        await self._store.delete(NAME)

    async def find(self) -> Identity:
        return (await self._store.read(NAME)).identity


class Cookies(Records):
    @property
    def _store(self) -> Any:
        return self.service.cookies


async def made_again(first: Things, second: Things, changes: tuple[int, int]) -> tuple[Identity, Identity]:
    """The first thing, as it was known last, and the second. Each is changed so often."""
    known = await first.make()
    for _ in range(changes[0]):
        known = await first.change(known)
    assert known == await first.find()
    await second.delete_any()
    made = await second.make()
    for _ in range(changes[1]):
        made = await second.change(made)
    assert (known.version, made.version) == changes
    return known, made


@pytest.mark.parametrize("kind", [Ledgers, Records, Cookies])
@pytest.mark.parametrize("changes", [(0, 0), (2, 2), (2, 0), (0, 2)])
async def test_who_means_the_first_thing_of_a_name_does_nothing_to_the_second(
    pair: Pair, kind: type[Things], changes: tuple[int, int]
) -> None:
    first, second = kind(pair.one), kind(pair.two)
    known, made = await made_again(first, second, changes)
    for attempt in (first.change, first.delete):
        with pytest.raises(MetadataReplaced):
            await attempt(known)
    assert await second.find() == made
    await second.delete(await second.change(await second.find()))
    assert await first.make() not in (known, made)


@pytest.mark.parametrize("kind", [Ledgers, Records, Cookies])
async def test_what_was_changed_by_another_client_is_no_other_thing(pair: Pair, kind: type[Things]) -> None:
    first, second = kind(pair.one), kind(pair.two)
    known = await first.make()
    changed = await second.change(known)
    for attempt in (first.change, first.delete):
        with pytest.raises(MetadataVersionConflict) as caught:
            await attempt(known)
        assert not isinstance(caught.value, MetadataReplaced)
    assert await first.find() == changed


@pytest.mark.parametrize("changes", [(1, 1), (1, 0)])
async def test_an_update_that_knows_the_first_ledger_is_refused(pair: Pair, changes: tuple[int, int]) -> None:
    first, second = Ledgers(pair.one), Ledgers(pair.two)
    known, made = await made_again(first, second, changes)
    stale = Versioned(LEDGER, known)
    with pytest.raises(MetadataReplaced):
        await update_metadata(pair.one.ledgers, stale, lambda m: not m.is_closed, lambda m: m.closed(3, 30))
    found = await pair.two.ledgers.read(7)
    assert (found.identity, found.value.is_closed) == (made, False)


async def test_a_watch_of_the_first_ledger_ends_with_it(pair: Pair) -> None:
    """However quickly the second one comes: what was made meanwhile is not shown in its place."""
    created = await pair.two.ledgers.create(LEDGER)
    async with pair.one.ledgers.watch(7) as states:
        shown = await anext(states)
        assert shown is not None
        assert shown.identity == created.identity
        await pair.two.ledgers.delete(7)
        await pair.two.ledgers.create(LEDGER)
        assert await anext(states) is None


@pytest.mark.parametrize("pair", ALL, indirect=True)
async def test_a_lock_removes_no_mark_that_was_made_since(pair: Pair) -> None:
    marks, others = pair.one.under_replication, pair.two.under_replication
    await marks.mark(7, ["a:1"], ctime_ms=1)
    lock = await marks.lock(7)
    await others.unmark(7)
    await others.mark(7, ["a:1"], ctime_ms=1)
    await marks.mark_replicated(lock)
    assert await others.read(7) is not None


# --- that these cases see it ------------------------------------------------------------------------------------


def compare_versions_alone(patch: pytest.MonkeyPatch) -> None:
    """As it was: each driver and each double knows the second thing by its number."""

    def check(path: str, record: Any, version: int, creation: int | None) -> None:
        if version not in (-1, record.version):
            raise MetadataVersionConflict(path)

    def check_identity(what: str, stored: Identity, named: Identity) -> None:
        if stored.version != named.version:
            raise MetadataVersionConflict(what)

    async def look(self: ZooKeeperTree, *_: object) -> int:
        return self.session_id

    patch.setattr(embedded, "_check", check)
    for double in (memory_metadata, memory_records):
        patch.setattr(double, "check_identity", check_identity)
    patch.setattr(ZooKeeperTree, "_look", look)
    patch.setattr(oxia_tree, "check_identity", lambda path, stat, this: check(path, stat, this.version, None))
    patch.setattr(etcd_tree, "is_this", lambda key, this: [etcd_tree.has_version(key, this.version + 1)])


@pytest.mark.parametrize("kind", [Ledgers, Records, Cookies])
async def test_the_planted_bug_is_seen(pair: Pair, kind: type[Things], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kind(pair.one), kind(pair.two)
    known, made = await made_again(first, second, (1, 1))
    compare_versions_alone(monkeypatch)
    try:
        await first.change(known)
    except MetadataReplaced:
        assert pair.kind == "zookeeper", "its answer tells, too late"
    assert await second.find() != made


@pytest.mark.parametrize("pair", ALL[:1], indirect=True)
async def test_zookeeper_tells_of_a_ledger_that_was_made_again_between_look_and_write(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper has no request that compares both, so this moment stays; it is not passed over in silence."""
    assert pair.kind == "zookeeper"
    first, second = Ledgers(pair.one), Ledgers(pair.two)
    known = await first.make()
    look = ZooKeeperTree._look

    async def look_and_be_overtaken(self: ZooKeeperTree, *arguments: Any) -> int:
        session = await look(self, *arguments)
        await second.delete_any()
        await second.make()
        return session

    monkeypatch.setattr(ZooKeeperTree, "_look", look_and_be_overtaken)
    with pytest.raises(MetadataReplaced):
        await first.change(known)


# --- lives ------------------------------------------------------------------------------------------------------


def test_the_life_of_a_ledger_is_known_by_its_token_or_else_by_its_creation() -> None:
    life = LedgerLife(7, 1, 11)
    assert life == LedgerLife(7, 2, 11), "moved to another metadata service"
    assert life == LedgerLife(7, 1, 0), "a client of the reference has dropped the token"
    assert life != LedgerLife(7, 1, 12)
    assert life != LedgerLife(7, 2, 0)
    assert life != LedgerLife(8, 1, 11)
    assert LedgerLife(7, 1) != LedgerLife(7, 2), "a format without tokens"
    assert len({life, LedgerLife(7, 1, 0), LedgerLife(8, 1, 0)}) == 2


async def test_the_life_of_a_ledger_stays_while_it_is_changed(pair: Pair) -> None:
    created = await pair.one.ledgers.create(LEDGER)
    without_token = await pair.two.ledgers.write(replace(created.value, creation_token=0), created.identity)
    lives = {LedgerLife.of(each) for each in (created, without_token, await pair.one.ledgers.read(7, fresh=True))}
    assert lives == {LedgerLife.of(created)}
    await pair.two.ledgers.delete(7)
    assert LedgerLife.of(await pair.two.ledgers.create(LEDGER)) not in lives
