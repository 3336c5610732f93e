"""The fixture that runs a test on every metadata driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_drivers import (
    EmbeddedOxiaUnderTest,
    EmbeddedUnderTest,
    EtcdUnderTest,
    MetadataDriverUnderTest,
    MovedUnderTest,
    OxiaUnderTest,
    ServedUnderTest,
    ZooKeeperUnderTest,
)

Pair = tuple[MetadataService, MetadataService]
ETCD = pytest.param("etcd", marks=pytest.mark.etcd)
OVER_OXIA = [pytest.param("oxia", marks=pytest.mark.oxia), "embedded-oxia"]
WIRED = [pytest.param("zookeeper", marks=pytest.mark.zookeeper), ETCD, *OVER_OXIA, "served"]
ALL = [*WIRED, "moved", "embedded"]
BESIDE = [each for each in ALL if each is not ETCD]
"""Where there can be nodes beside the root."""


@pytest.fixture(params=ALL)
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriverUnderTest]:
    """A driver with a cluster root of its own. Tests that need a wire narrow the parameters to `WIRED`."""
    made = driver_of(request.param, request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def pair(driver: MetadataDriverUnderTest) -> Pair:
    """Two sessions with one new cluster."""
    one, two = await driver.open(), await driver.open()
    await one.cluster.initialize()
    return one, two


def driver_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> MetadataDriverUnderTest:
    """A driver, which the caller closes."""
    if kind == "zookeeper":
        return ZooKeeperUnderTest(request.getfixturevalue("zookeeper"))
    if kind == "etcd":
        return EtcdUnderTest(request.getfixturevalue("etcd"))
    if kind == "oxia":
        return OxiaUnderTest(request.getfixturevalue("oxia"))
    if kind == "embedded-oxia":
        return EmbeddedOxiaUnderTest(str(tmp_path))
    if kind == "moved":
        return MovedUnderTest(str(tmp_path))
    return ServedUnderTest(str(tmp_path)) if kind == "served" else EmbeddedUnderTest(str(tmp_path))
