"""The metadata service, embedded or ZooKeeper, is killed or hangs under a loaded writer, tails and range reads."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.client_workload import Workload
from tests.support.cluster_fixtures import bookies, cluster
from tests.support.etcd import EtcdServer
from tests.support.hanging import hanging
from tests.support.metadata_process import MetadataProcess
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

__all__ = ["bookies", "cluster"]

BOOKIES = 4
"""An ensemble, and a spare."""
LONG = 20.0
"""Seconds; a time-out that nobody may come near."""
BUSY = 5.0
"""Seconds by which a busy machine may add to a time-out."""
METADATA_TIMEOUT = 10.0
"""Seconds that a call of the metadata service lasts at most, where none is named."""
OUTAGE = 2.0
"""Seconds for which the metadata service is away."""


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("etcd", marks=pytest.mark.etcd),
    ],
    ids=lambda name: name,
)
def metadata_service(request, tmp_path_factory):
    """One that tests may kill and start again."""
    folder = tmp_path_factory.mktemp("metadata")
    services = {"embedded": MetadataProcess, "zookeeper": lambda at: ZooKeeperServer(str(at)), "etcd": EtcdServer}
    service = services[request.param](folder)
    service.start()
    yield service
    service.stop()


async def test_the_metadata_service_is_killed_and_started_again(cluster, metadata_service):
    """No bookie fails meanwhile, so nobody needs it."""
    options = ClientOptions(add_timeout=LONG, read_timeout=LONG)
    async with Workload(cluster.uri, options) as load:
        ensembles = dict(load.ledger.metadata.ensembles)
        load.forget_latencies()
        await asyncio.to_thread(metadata_service.stop)
        await load.progress(500)
        assert load.longest_append < METADATA_TIMEOUT / 2
        assert load.longest_range < METADATA_TIMEOUT / 2
        await asyncio.to_thread(metadata_service.start)
        await load.progress(200)
        assert load.ledger.metadata.ensembles == ensembles


@pytest.mark.parametrize("fault", ["killed", "hangs"])
async def test_a_bookie_dies_while_the_metadata_service_is_away(cluster, metadata_service, fault):
    """The ensemble change waits for it; then everything goes on, and no append has failed."""
    options = ClientOptions(add_timeout=LONG, read_timeout=LONG)
    async with Workload(cluster.uri, options) as load:
        load.forget_latencies()
        victim = load.ledger.metadata.last_ensemble[1]
        if fault == "killed":
            await asyncio.to_thread(metadata_service.stop)
            cluster.kill(victim)
            await asyncio.sleep(OUTAGE)
            assert victim in load.ledger.metadata.last_ensemble
            await asyncio.to_thread(metadata_service.start)
        else:
            with hanging([metadata_service.pid]):
                cluster.kill(victim)
                await asyncio.sleep(OUTAGE)
                assert victim in load.ledger.metadata.last_ensemble
        await until(lambda: load.ledger.metadata.last_ensemble.count(victim) == 0, METADATA_TIMEOUT)
        await load.progress(200)
        assert load.longest_append < METADATA_TIMEOUT + BUSY


async def test_calls_that_need_the_metadata_service_say_so_and_work_again_when_it_is_back(cluster, metadata_service):
    timeout = 3.0
    service = await open_metadata_service(cluster.uri, timeout=timeout)
    async with Client(service) as client:
        ledger = await client.create(write_quorum=3)
        await ledger.append(b"before")
        with hanging([metadata_service.pid]):
            began = asyncio.get_running_loop().time()
            outcomes = await asyncio.gather(
                client.metadata(ledger.ledger_id),
                client.create(write_quorum=3),
                client.open(ledger.ledger_id),
                client.recover(ledger.ledger_id),
                client.delete(ledger.ledger_id),
                ledger.close(),
                anext(client.list()),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} == {MetadataUnavailable}, outcomes
            assert asyncio.get_running_loop().time() - began < timeout + BUSY
        async with client.create(write_quorum=3) as other:
            await other.append(b"after")
        assert other.ledger_id in [each async for each in client.list()]
    await service.close()
