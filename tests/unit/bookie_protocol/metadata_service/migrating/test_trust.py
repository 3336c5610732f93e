"""Who may say with `zkEnableSecurity` that the metadata moved."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.opening import is_trustworthy
from bookie_protocol.metadata_service.options import MetadataServiceUri
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.support.migration_world import MemoryTree, MigrationWorld, seen
from tests.support.virtual_loop import virtually

ROOT = "/brokers/ledgers"
ANYONE, OURS, OTHER = ("world", "anyone"), ("sasl", "bookie"), ("sasl", "mallory")


class Lists(ZooKeeperTree):
    """A tree of which only the access lists are asked for; `closed`: the users of the nodes that are not named."""

    def __init__(self, closed: set[tuple[str, str]], **users: set[tuple[str, str]]) -> None:
        places = {
            "root": ROOT,
            "flag": f"/brokers{flag.FLAG}",
            "directory": "/brokers/pulsar/migration-coordinator",
            "above": "/brokers/pulsar",
            "chroot": "/brokers",
            "top": "/",
        }
        self._users = {path: frozenset(users.get(name, closed)) for name, path in places.items()}

    async def changers(self, path: str, *, timeout: float) -> frozenset[tuple[str, str]]:
        return self._users[path]


@pytest.mark.parametrize(
    ("lists", "trusted"),
    [
        (Lists({OURS}), True),
        (Lists(set(), root={OURS}), True),
        (Lists({OURS}, flag={ANYONE}), False),
        (Lists({OURS}, flag={OURS, OTHER}), False),
        (Lists({OURS}, directory={ANYONE}), False),
        (Lists({OURS}, above={ANYONE}), False),
        (Lists({OURS}, chroot={ANYONE}), False),
        (Lists({OURS}, top={ANYONE}), False),
        (Lists({ANYONE}), True),
    ],
    ids=["ours", "nobody", "anyone", "another", "directory", "above", "chroot", "top", "all-open"],
)
async def test_flag_counts_if_only_owners_of_the_cluster_could_have_written_it(lists: Lists, trusted: bool) -> None:
    assert await is_trustworthy(lists, ROOT, 1.0) is trusted


@pytest.mark.parametrize(
    ("missing", "top", "trusted"),
    [
        (ROOT, OURS, False),
        (f"/brokers{flag.FLAG}", OURS, True),
        ("/brokers/pulsar", OURS, True),
        (f"/brokers{flag.FLAG}", ANYONE, False),
        ("/brokers/pulsar", ANYONE, False),
    ],
)
async def test_missing_flag_counts_if_only_owners_of_the_cluster_could_have_deleted_it(
    missing: str, top: tuple[str, str], trusted: bool
) -> None:
    class Missing(Lists):
        async def changers(self, path: str, *, timeout: float) -> frozenset[tuple[str, str]]:
            if path.startswith(missing):
                raise MetadataNotFound(f"{path} does not exist")
            return await super().changers(path, timeout=timeout)

    assert await is_trustworthy(Missing({OURS}, top={top}), ROOT, 1.0) is trusted


@virtually
async def test_absence_of_a_flag_that_is_not_believed_proves_nothing() -> None:
    """A stranger may have deleted it, and our node was made behind that."""
    trusted: list[bool] = [True]

    async def believes(_: float) -> bool:
        return trusted[0]

    world = MigrationWorld(believes=believes)
    await (await world.begin()).gate.close()
    trusted[0] = False
    process = await world.open()
    assert (len(world.participants()), process.is_connected, process.gate.proofs.hold) == (1, True, False)
    trusted[0] = True
    world.break_flag()
    await seen(lambda: process.is_paused)
    with pytest.raises(MetadataUnavailable):
        await process.gate.exists("/ledgers/new", timeout=1)


@virtually
async def test_data_and_rights_are_of_one_flag() -> None:
    """The owners put theirs in the place of a stranger's after its data were read."""
    strangers: list[str] = []

    async def believes(_: float) -> bool:
        if strangers:
            strangers.clear()
            world.zookeeper.remove(flag.FLAG)
            world.set_phase("NOT_STARTED")
            await asyncio.sleep(0)  # what ZooKeeper answers behind the change comes behind its watch
        return True

    async def connect(_: MetadataServiceUri) -> MemoryTree:
        connected.append("the stranger's")
        raise MetadataUnavailable("it is the stranger's")

    connected: list[str] = []
    world = MigrationWorld(believes=believes)
    process = await world.begin()
    process.participant._connect = connect
    strangers.append(flag.FLAG)
    world.set_phase("COMPLETED")
    await seen(lambda: not strangers)
    await seen(lambda: process.is_connected, seconds=2)
    assert connected == []
