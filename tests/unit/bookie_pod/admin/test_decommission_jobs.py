"""Decommissions that the admin API begins, on a real metadata service with bookies that are only registrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client.client import Client
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore, HeldRecord
from bookie_pod.config.load import load_config
from bookie_protocol.admin_api.decommission import DecommissionState
from tests.support.decommission_rig import GOING, QUICK, FakeMover, Rig, ledger
from tests.unit.bookie_client.replication.cluster import (
    ReplicationCluster,
    equal_entries,
    watched_pieces,
    watched_windows,
)


class Quick(Decommissions):
    """With copies that are only metadata changes."""

    def __init__(self, rig: Rig) -> None:
        client: Any = SimpleNamespace(metadata=rig.service)
        super().__init__(client, load_config(environ={}), rig)
        self.mover = FakeMover(rig.service, rig.ends)

    async def _mover(self) -> Any:
        return self.mover

    def _drain_options(self) -> DrainOptions:
        return QUICK

    async def reaches(self, condition: Callable[[DecommissionState], bool]) -> DecommissionState:
        async with asyncio.timeout(20):
            while not condition(state := await self.decommission_state(GOING)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        return state


def is_over(state: DecommissionState) -> bool:
    """Done, and the record is where those are that are finished: it moves there last of all."""
    return state.phase == "done" and not state.running_here


async def test_copies_are_made_as_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "rereplicationEntryBatchSize": "9",
        "replicationMaxBytesInFlight": "1048576",
        "replicationRateByBytes": "-1",
        "recoveryBatchReadEnabled": "false",
    }
    async with ReplicationCluster(tmp_path, model=True) as cluster, cluster.of(*"abcdef") as client:
        ids = [await equal_entries(client, 120, 10_000) for _ in range(3)]
        stored = [await client.metadata(ledger_id) for ledger_id in ids]
        going = stored[0].last_ensemble[0]
        pieces, peaks = watched_pieces(monkeypatch), watched_windows(monkeypatch)

        async def opened() -> Client:
            return client

        admin: Any = SimpleNamespace(metadata=cluster.service, get=opened)
        mover = await Decommissions(admin, load_config(environ={}, overrides=keys))._mover()
        session_id = (await cluster.service.under_replication.lock(0)).session_id
        moves = (mover.move(metadata, (going,), session_id, lambda nbytes: None) for metadata in stored)
        assert await asyncio.gather(*moves) == ["", "", ""]
        for ledger_id in ids:
            assert going not in (await client.metadata(ledger_id)).all_bookies()
        assert max(pieces["adds"]) == 9
        assert pieces["reads"] == []
        assert 500_000 < peaks["bytes"] <= 1_048_576

        async def rate(**more: str) -> float | None:
            limited = {"replicationRateByBytes": "8000000", **more}
            made = await Decommissions(admin, load_config(environ={}, overrides=limited))._mover()
            return made._replicator.options.throttle.bytes_per_second

        assert 0 < (await rate() or 0) < 8_000_000  # it gives way, so it begins with a part
        assert await rate(replicationYieldsToClients="false") == 8_000_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(ledger(1, (0, "012")), ledger(2, (0, "023")))
        await DecommissionStore(made.service).begin(DecommissionRequest(GOING, "somebody who is gone"))
        yield made


async def test_losses_that_are_accepted_while_it_runs_count(rig: Rig) -> None:
    going = Quick(rig)
    going.mover.refuse[1] = "no copy of entries can be read"
    await going.decommission(GOING, delete_cookie=True)
    await going.reaches(lambda state: state.phase == "draining" and state.running_here)
    (job,) = going._jobs.values()
    await going.decommission(GOING, delete_cookie=True)
    assert list(going._jobs.values()) == [job], "the same request changes nothing"
    await going.decommission(GOING, delete_cookie=True, accepted_losses=frozenset({1}))
    assert job.work.done()
    state = await going.reaches(is_over)
    assert (state.problem, state.delete_cookie) == ("", True)
    assert await rig.naming() == {1}
    assert not await rig.has_cookie()
    finished = await DecommissionStore(rig.service).finished(GOING)
    assert finished is not None
    assert finished.accepted_losses == (1,)
    await going.stop()


async def test_losses_that_two_accept_at_once_count_both(rig: Rig) -> None:
    going = Quick(rig)
    going.mover.refuse = dict.fromkeys((1, 2), "no copy of entries can be read")
    requests = [
        going.decommission(GOING, delete_cookie=True, accepted_losses=frozenset(losses)) for losses in ((), {1}, {2})
    ]
    await asyncio.gather(*requests)
    await going.reaches(is_over)
    finished = await DecommissionStore(rig.service).finished(GOING)
    assert finished is not None
    assert finished.accepted_losses == (1, 2)
    await going.stop()


async def test_losses_that_are_accepted_behind_a_request_that_was_given_up_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = Quick(rig)
    going.mover.refuse[1] = "no copy of entries can be read"
    begin, reached, goes_on = DecommissionStore.begin, asyncio.Event(), asyncio.Event()

    async def slow(self: DecommissionStore, request: DecommissionRequest) -> HeldRecord:
        reached.set()
        await goes_on.wait()
        return await begin(self, request)

    monkeypatch.setattr(DecommissionStore, "begin", slow)
    first = asyncio.create_task(going.decommission(GOING, delete_cookie=True))
    await reached.wait()
    first.cancel()
    second = asyncio.create_task(going.decommission(GOING, delete_cookie=True, accepted_losses=frozenset({1})))
    await asyncio.sleep(0)
    goes_on.set()
    await second
    await going.reaches(is_over)
    await going.stop()
