"""The cluster of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.auditor_rig import AuditorRig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AuditorRig]:
    async with AuditorRig(tmp_path) as made:
        yield made
