from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.kubectl_rig import KubectlRig, kubectl_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[KubectlRig]:
    """With a cluster of three bookies that is ready."""
    async with kubectl_rig(tmp_path) as made:
        made.fake.apply()
        await made.fake.settle()
        yield made
