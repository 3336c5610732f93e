"""A bookie's server without sockets and disks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.server_rig import ServerRig


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig()
    yield made
    made.close()
