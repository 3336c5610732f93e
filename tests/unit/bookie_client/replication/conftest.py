"""Clusters of model bookies (faults on demand) and of served ones (real storage)."""

from __future__ import annotations

import pytest

from tests.unit.bookie_client.replication.cluster import ReplicationCluster


@pytest.fixture
async def models(tmp_path):
    async with ReplicationCluster(tmp_path, model=True) as cluster:
        yield cluster


@pytest.fixture
async def served(tmp_path):
    async with ReplicationCluster(tmp_path, model=False) as cluster:
        yield cluster
