"""How soon there is room for whoever comes next."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from bookie_pod.callers import Address
from bookie_pod.server.grpc import access
from bookie_pod.server.grpc.access import Strangers
from tests.support.until import until


async def test_while_strangers_crowd_the_next_look_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LOOK_S", 3600.0)
    monkeypatch.setattr(access, "CROWDED_LOOK_S", 0.01)
    here = {("192.0.2.1", number): number for number in range(1, 6)}
    looked: list[float] = []

    def listed(port: int) -> list[tuple[Address, int]]:
        looked.append(time.monotonic())
        return list(here.items())

    def shut(descriptor: int, address: Address) -> None:
        assert here.pop(address) == descriptor
        if len(looked) < 4:
            here["192.0.2.1", 100 * len(looked) + descriptor] = 100 * len(looked) + descriptor  # others come at once

    monkeypatch.setattr(access, "connections", listed)
    monkeypatch.setattr(access, "shut_down", shut)
    those = Strangers(2, 3600.0)
    guard = asyncio.create_task(those.guard(3182))
    try:
        await until(lambda: len(looked) == 5)
        assert those.sent_away == 4 * 3
        assert len(here) == 2
        await asyncio.sleep(0.1)
        assert len(looked) == 5, "nobody had to be sent away"
    finally:
        guard.cancel()
        with suppress(asyncio.CancelledError):
            await guard
