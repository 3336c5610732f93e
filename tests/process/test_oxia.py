"""A cluster with Oxia and nothing else: bookies, commands, a gateway and auto-recovery, as processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.process.test_etcd import make_use_and_remove
from tests.support.auto_recovery import QUICK
from tests.support.oxia import OxiaServer
from tests.support.serve_cluster import ServeCluster

pytestmark = pytest.mark.oxia


@pytest.fixture
def cluster(tmp_path: Path, oxia: OxiaServer) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path / "bookies", oxia.uri(f"/process-{uuid.uuid4().hex[:8]}"), QUICK)
    try:
        made.add(3)
        yield made
    finally:
        made.stop()


async def test_from_its_making_to_its_end(cluster: ServeCluster, tmp_path: Path) -> None:
    await make_use_and_remove(cluster, tmp_path)
    service = await open_metadata_service(cluster.uri)
    assert not await service.cluster.exists()
    await service.close()
