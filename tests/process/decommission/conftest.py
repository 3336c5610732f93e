"""Clusters of five bookies with their metadata service, each for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from bookie_pod.node.standalone.cluster import StandaloneCluster
from tests.support.small_bookie import SMALL_BOOKIE

KEYS = {**SMALL_BOOKIE, "autoRecoveryDaemonEnabled": "false"}


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("etcd", marks=[pytest.mark.etcd, pytest.mark.slow]),
    ]
)
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, warm_bookies: None
) -> AsyncIterator[StandaloneCluster]:
    uri = None
    if request.param == "zookeeper":
        uri = request.getfixturevalue("zookeeper").uri(f"/decommission-{uuid4().hex}/ledgers")
    elif request.param == "etcd":
        uri = request.getfixturevalue("etcd").uri(f"/decommission-{uuid4().hex}")
    async with StandaloneCluster(tmp_path, 5, KEYS, metadata_uri=uri, http_port=0) as started:
        yield started


@pytest.fixture
async def embedded(tmp_path: Path, warm_bookies: None) -> AsyncIterator[StandaloneCluster]:
    async with StandaloneCluster(tmp_path, 5, KEYS, http_port=0) as started:
        yield started
