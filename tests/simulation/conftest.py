"""A loop with a virtual clock, which every task has to leave without an error of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tests.support.simulation.clock import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    assert loop.unhandled == []
    loop.close()


def run(loop: VirtualLoop, work: Coroutine[Any, Any, None]) -> None:
    """To its end, which comes within 1000 s of the virtual clock."""

    async def bounded() -> None:
        async with asyncio.timeout(1000):
            await work

    loop.run_until_complete(bounded())
