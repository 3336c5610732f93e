"""The writer against bookies that are processes: deferred sync through a kill, explicit LAC, chosen ids."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.node.standalone.cluster import StandaloneCluster
from tests.support.writing_scenarios import check_deferred_sync, chosen_ids, deferred_sync, explicit_lac

pytestmark = pytest.mark.usefixtures("warm_bookies")


async def test_what_was_forced_survives_a_kill_of_every_bookie(tmp_path):
    async with StandaloneCluster(tmp_path) as cluster, Client(cluster.metadata) as client:
        ledger_id = await deferred_sync(client)
        await asyncio.gather(*(bookie.kill() for bookie in cluster.bookies.values()))
    async with StandaloneCluster(tmp_path) as cluster, Client(cluster.metadata) as client:
        await check_deferred_sync(client, ledger_id)


async def test_explicit_lac_and_chosen_ids(tmp_path):
    options = ClientOptions(explicit_lac_interval=0.02)
    async with StandaloneCluster(tmp_path) as cluster, Client(cluster.metadata, options) as client:
        await explicit_lac(client)
        await chosen_ids(client)
