"""A cluster with Oxia and nothing else: bookies, commands, a gateway and auto-recovery, as processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.process.cluster_life import make_use_and_remove, three_bookies
from tests.support.oxia import OxiaServer
from tests.support.serve_cluster import ServeCluster

pytestmark = pytest.mark.oxia


@pytest.fixture
def cluster(tmp_path: Path, oxia: OxiaServer) -> Iterator[ServeCluster]:
    with three_bookies(tmp_path / "bookies", oxia.uri(f"/process-{uuid.uuid4().hex[:8]}")) as made:
        yield made


async def test_from_its_making_to_its_end(cluster: ServeCluster, tmp_path: Path) -> None:
    await make_use_and_remove(cluster, tmp_path)
    service = await open_metadata_service(cluster.uri)
    assert not await service.cluster.exists()
    await service.close()
