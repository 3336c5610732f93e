"""Our driver for Oxia on the embedded metadata service, which speaks Oxia's protocol: the suite of all drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from tests.contract import test_metadata_service as suite
from tests.support.metadata_drivers import OxiaUnderTest


@dataclass
class Served:
    """What the driver under test asks of a server."""

    target: str

    def uri(self, root: str) -> str:
        return f"oxia://{self.target}/default{root}"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[OxiaUnderTest]:
    owner = await EmbeddedOwner.open(str(tmp_path / "store"), keep_notices=True)
    server = EmbeddedMetadataServer(owner)
    await server.start()
    served: Any = Served(f"127.0.0.1:{server.port}")
    made = OxiaUnderTest(served)
    yield made
    await made.close()
    await server.stop()
    await owner.close()


class TestBookies(suite.TestBookies):
    """Registrations and cookies."""


class TestLedgers(suite.TestLedgers):
    """Metadata, ids and lists of ledgers."""
