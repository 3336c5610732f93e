"""The node tree of live clusters of the reference implementation, read by us; and what we write, beside it."""

from __future__ import annotations

import pytest

from bookie_pod.node.identity.cookies import parse_cookie
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLayout
from tests.support.golden_nodes import golden, load
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import listed
from tests.support.metadata_fixtures import driver

__all__ = ["driver"]


async def test_four_bookies(driver: MetadataDriverUnderTest) -> None:
    service = await driver.open()
    nodes = golden("znodes-four-bookies")
    await load(service, driver.root, nodes)
    data = {node["path"].removeprefix("/ledgers"): bytes.fromhex(node["dataHex"]) for node in nodes}

    assert await service.cluster.layout() is LedgerLayout.HIERARCHICAL
    instance = await service.cluster.instance_id()
    assert instance == data["/INSTANCEID"].decode()
    ids = {f"127.0.0.1:{port}" for port in range(32700, 32704)}
    for group in (BookieGroup.WRITABLE, BookieGroup.ALL):
        assert (await service.bookies.list(group)).bookies == ids
    assert (await service.bookies.list(BookieGroup.READ_ONLY)).bookies == frozenset()
    for bookie_id in ids:
        info = await service.bookies.service_info(bookie_id)
        assert info.bookie_address() == ("127.0.0.1", int(bookie_id[-5:]))
        cookie = parse_cookie((await service.cookies.read(bookie_id)).value, bookie_id)
        assert (cookie.bookie_id, cookie.instance_id) == (bookie_id, instance)
    assert await listed(service) == list(range(7))
    for ledger_id in range(7):
        found = await service.ledgers.read(ledger_id)
        assert encode_ledger_metadata(found.value) == data[f"/00/0000/L{ledger_id:04d}"]
        assert found.value.is_closed
        assert (found.value.ctime is not None) is service.tree.keeps_times


async def test_an_under_replicated_cluster_with_long_ids(driver: MetadataDriverUnderTest) -> None:
    service = await driver.open()
    await load(service, driver.root, golden("znodes-under-replication"))
    assert (await service.bookies.list(BookieGroup.WRITABLE)).bookies == {"127.0.0.1:32700", "127.0.0.1:32701"}
    assert (await service.bookies.list(BookieGroup.READ_ONLY)).bookies == {"127.0.0.1:32703"}
    assert (await service.bookies.service_info("127.0.0.1:32703")).bookie_address() == ("127.0.0.1", 32703)
    assert len((await service.bookies.list(BookieGroup.ALL)).bookies) == 4
    assert await listed(service) == [(1 << 32) + i for i in range(4)]
    assert await service.ledgers.generate_id() >> 32 == 1  # idgen-long is in use


@pytest.mark.parametrize("node", ["LAYOUT", "available", "available/readonly"])
async def test_what_initialize_writes(driver: MetadataDriverUnderTest, node: str) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    expected = next(item for item in golden("znodes-four-bookies") if item["path"] == f"/ledgers/{node}")
    found = await service.tree.get(f"{driver.root}/{node}")
    assert found.data.hex() == expected["dataHex"]
    assert (found.stat.owner, found.stat.version) == (0, 0)
