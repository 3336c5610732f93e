from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.fake_kubernetes.cluster import fake_cluster
from tests.support.kubectl_rig import KubectlRig, kubectl_rig


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ready() -> bytes:
    """A cluster of three bookies."""
    async with fake_cluster() as fake:
        fake.apply()
        await fake.settle()
        return fake.kept()


@pytest.fixture
async def rig(ready: bytes, tmp_path: Path) -> AsyncIterator[KubectlRig]:
    """With a cluster of three bookies that is ready."""
    async with kubectl_rig(tmp_path) as made:
        made.fake.take(ready)
        yield made
