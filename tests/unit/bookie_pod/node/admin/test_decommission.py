"""Decommissions that the admin API begins, on a real metadata service with bookies that are only registrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.decommission.ledger_drain import DrainOptions
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore
from bookie_pod.config.load import load_config
from bookie_pod.node.admin.decommission import Decommissions
from bookie_pod.server.http.admin.decommission_port import DecommissionState
from tests.support.decommission_rig import GOING, QUICK, FakeMover, Rig, ledger


class Quick(Decommissions):
    """With copies that are only metadata changes."""

    def __init__(self, rig: Rig) -> None:
        client: Any = SimpleNamespace(metadata=rig.service)
        super().__init__(client, load_config(environ={}), rig)
        self.mover = FakeMover(rig.service)

    async def _mover(self) -> Any:
        return self.mover

    def _drain_options(self) -> DrainOptions:
        return QUICK

    async def reaches(self, condition: Callable[[DecommissionState], bool]) -> DecommissionState:
        async with asyncio.timeout(20):
            while not condition(state := await self.decommission_state(GOING)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        return state


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await made.open()
    await made.store(ledger(1, (0, "012")), ledger(2, (0, "023")))
    await DecommissionStore(made.service).begin(DecommissionRequest(GOING, "somebody who is gone"))
    yield made
    await made.close()


async def test_losses_that_are_accepted_while_it_runs_count(rig: Rig) -> None:
    going = Quick(rig)
    going.mover.refuse[1] = "no copy of entries can be read"
    await going.decommission(GOING, delete_cookie=True)
    await going.reaches(lambda state: state.phase == "draining" and state.running_here)
    (job,) = going._jobs.values()
    await going.decommission(GOING, delete_cookie=True)
    assert list(going._jobs.values()) == [job], "the same request changes nothing"
    await going.decommission(GOING, delete_cookie=True, accepted_losses=frozenset({1}))
    assert job.done()
    state = await going.reaches(lambda state: state.phase == "done")
    assert (state.problem, state.delete_cookie) == ("", True)
    assert await rig.naming() == {1}
    assert not await rig.has_cookie()
    finished = await DecommissionStore(rig.service).finished(GOING)
    assert finished is not None
    assert finished.accepted_losses == (1,)
    await going.stop()
