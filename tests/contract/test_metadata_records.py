"""Records of Podkeeper's own, on every metadata driver."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_protocol.errors import (
    BadRequest,
    MetadataExists,
    MetadataNotFound,
    MetadataReplaced,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import ledger, listed
from tests.support.metadata_fixtures import Pair, driver, pair

__all__ = ["driver", "pair"]

KIND = "decommission"


async def test_versions(pair: Pair) -> None:
    records, others = (service.records(KIND) for service in pair)
    with pytest.raises(MetadataNotFound):
        await records.read("10.0.0.1:3181")
    first = await records.create("10.0.0.1:3181", b"one")
    assert first.version == 0
    with pytest.raises(MetadataExists):
        await others.create("10.0.0.1:3181", b"two")
    second = await others.update("10.0.0.1:3181", b"two", first)
    assert (second.version, second.creation) == (1, first.creation)
    with pytest.raises(MetadataVersionConflict):
        await records.update("10.0.0.1:3181", b"three", first)
    assert await records.read("10.0.0.1:3181") == Versioned(b"two", second)
    third = await others.overwrite("10.0.0.1:3181", b"three")
    assert (third.version, third.creation) == (2, first.creation)
    await records.delete("10.0.0.1:3181")
    for call in (others.delete("10.0.0.1:3181"), others.overwrite("10.0.0.1:3181", b"x"), others.read("b")):
        with pytest.raises(MetadataNotFound):
            await call


async def test_what_was_read_is_deleted_and_nothing_that_was_made_since(
    pair: Pair,
) -> None:
    """Versions begin anew with each record of a name."""
    records, others = (service.records(KIND) for service in pair)
    made = await records.create("b:1", b"one")
    first = (await others.read("b:1")).identity
    await records.update("b:1", b"two", made)
    with pytest.raises(MetadataVersionConflict):
        await others.delete_this("b:1", first)
    await records.delete("b:1")
    with pytest.raises(MetadataNotFound):
        await others.delete_this("b:1", first)
    await records.create("b:1", b"one")
    with pytest.raises(MetadataReplaced):
        await others.delete_this("b:1", first)
    with pytest.raises(MetadataReplaced):
        await others.update("b:1", b"late", first)
    second = (await others.read("b:1")).identity
    with pytest.raises(SessionEnded):
        await others.delete_this("b:1", replace(second, session_id=second.session_id + 1))
    await others.delete_this("b:1", second)
    assert await records.names() == frozenset()


async def test_kinds_are_apart(pair: Pair) -> None:
    service, other = pair
    assert await service.records(KIND).names() == frozenset()
    await service.records(KIND).create("a:1", b"x")
    await other.records(KIND).create("b:1", b"y")
    await other.records("streams").create("b:1", b"z")
    assert await service.records(KIND).names() == {"a:1", "b:1"}
    assert await service.records("streams").names() == {"b:1"}
    assert (await service.records(KIND).read("b:1")).value == b"y"
    await service.records(KIND).delete("b:1")
    assert await other.records(KIND).names() == {"a:1"}


async def test_reading_creates_nothing(pair: Pair, driver: MetadataDriverUnderTest) -> None:
    service, _ = pair
    before = set((await service.tree.children(driver.root)).names)
    assert await service.records(KIND).names() == frozenset()
    async with service.records(KIND).watch("a:1") as states:
        assert await anext(states) is None
    assert set((await service.tree.children(driver.root)).names) == before


async def test_watching(pair: Pair) -> None:
    records, others = (service.records(KIND) for service in pair)
    async with asyncio.timeout(20), records.watch("a:1") as states:
        assert await anext(states) is None
        made = await others.create("a:1", b"one")
        assert await anext(states) == Versioned(b"one", made)
        changed = await others.update("a:1", b"two", made)
        assert await anext(states) == Versioned(b"two", changed)
        await others.create("b:1", b"")
        await others.delete("a:1")
        assert await anext(states) is None
        again = await others.create("a:1", b"one")  # the same bytes and version again
        assert await anext(states) == Versioned(b"one", again)
        assert again != made


async def test_of_many_who_change_it_at_once_none_is_lost(pair: Pair) -> None:
    await pair[0].records(KIND).create("counter", b"0")

    async def add(service: MetadataService) -> None:
        records = service.records(KIND)
        while True:
            found = await records.read("counter")
            try:
                await records.update("counter", b"%d" % (int(found.value) + 1), found.identity)
            except MetadataVersionConflict:
                continue
            return

    await asyncio.gather(*(add(pair[i % 2]) for i in range(10)))
    assert (await pair[0].records(KIND).read("counter")).value == b"10"


async def test_they_know_of_which_cluster_they_are(pair: Pair) -> None:
    service, other = pair
    assert await service.cluster.records_instance_id() is None
    await service.records(KIND).create("a:1", b"one")
    instance_id = await service.cluster.instance_id()
    assert await other.cluster.records_instance_id() == instance_id
    await service.tree.overwrite(f"{service.root}/INSTANCEID", b"another")  # by a tool that does not know records
    await service.records("other-kind").create("b:1", b"two")
    assert await other.cluster.records_instance_id() == instance_id
    assert await service.cluster.format(force=True) != instance_id
    assert await service.cluster.records_instance_id() is None
    await other.records(KIND).create("a:1", b"one")
    assert await service.cluster.records_instance_id() == await service.cluster.instance_id()


async def test_ledgers_do_not_notice(pair: Pair) -> None:
    service, other = pair
    for i in (0, 7, 2**40):
        await service.ledgers.create(ledger(i))
    await service.records(KIND).create("0000", b"looks like part of a path")
    await service.records("l0000000001").create("L0001", b"looks like a ledger")
    assert await listed(other) == [0, 7, 2**40]


async def test_names_and_kinds_that_cannot_be(pair: Pair) -> None:
    service, _ = pair
    for name in ("", "a/b", ".", "..", "a\nb", "x" * 513):
        with pytest.raises(BadRequest):
            await service.records(KIND).create(name, b"")
    for kind in ("", "Decommission", "a/b", "1a"):
        with pytest.raises(BadRequest):
            service.records(kind)


async def test_without_a_cluster(driver: MetadataDriverUnderTest) -> None:
    service = await driver.open()
    with pytest.raises(MetadataNotFound, match="no cluster"):
        await service.records(KIND).create("a:1", b"")
    with pytest.raises(MetadataNotFound, match="no cluster"):
        await service.records(KIND).names()
