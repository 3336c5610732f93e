"""Who waits at the end of a round, and for whom that is a breach."""

from __future__ import annotations

import asyncio

import pytest

from tests.campaign import actors as campaign_actors
from tests.campaign.actors import Actors
from tests.campaign.history import History, Ledger


@pytest.mark.parametrize(("lost", "breaches"), [(True, []), (False, ["stuck"])], ids=["lost", "promised"])
async def test_only_who_waits_for_a_ledger_that_is_not_lost_is_stuck(
    monkeypatch: pytest.MonkeyPatch, lost: bool, breaches: list[str]
) -> None:
    async def waits_for_news(actors: Actors, ledger: Ledger, version: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Actors, "_tail", waits_for_news)
    monkeypatch.setattr(campaign_actors, "_END_S", 0.01)
    history = History()
    actors = Actors("", "", history, seed=1)
    ledger = Ledger(61, 1, (1, 1, 1), "CRC32C", "writer")
    if lost:
        ledger.destroyed.add("bookie-2")
    actors._run_tail(ledger, 2)
    await asyncio.wait_for(actors.tails_end(), 10)
    assert list(history.rules) == breaches
    assert not actors._tails
