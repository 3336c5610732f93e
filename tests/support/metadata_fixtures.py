"""The fixture that runs a test on every metadata driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.metadata_drivers import (
    EmbeddedUnderTest,
    MetadataDriverUnderTest,
    ServedUnderTest,
    ZooKeeperUnderTest,
)

WIRED = [pytest.param("zookeeper", marks=pytest.mark.zookeeper), "served"]
ALL = [*WIRED, "embedded"]


@pytest.fixture(params=ALL)
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriverUnderTest]:
    """A driver with a cluster root of its own. Tests that need a wire narrow the parameters to `WIRED`."""
    made: MetadataDriverUnderTest
    if request.param == "zookeeper":
        made = ZooKeeperUnderTest(request.getfixturevalue("zookeeper"))
    elif request.param == "served":
        made = ServedUnderTest(str(tmp_path))
    else:
        made = EmbeddedUnderTest(str(tmp_path))
    yield made
    await made.close()
