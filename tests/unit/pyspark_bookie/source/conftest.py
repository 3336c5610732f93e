"""A cluster of model bookies."""

from __future__ import annotations

import pytest

from tests.unit.bookie_client.conftest import cluster, three  # noqa: F401 - fixtures


@pytest.fixture
async def client(three):  # noqa: F811 - the fixture
    async with three.client() as client:
        yield client
