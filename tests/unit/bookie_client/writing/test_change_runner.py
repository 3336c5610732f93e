"""Ensemble changes as they are carried out: how they end, and how fast they follow one another."""

import asyncio

import pytest

from bookie_client.distribution import Quorums
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import FIRST_CHANGE_PAUSE, IMMEDIATE_CHANGES, ChangeRunner
from bookie_protocol.errors import CouldNotTell, LedgerClosed, MetadataUnavailable

ABC = ("A", "B", "C")


@pytest.fixture
def state():
    return AddState(7, Quorums(3, 2, 2), ABC)


@pytest.fixture
def pauses(monkeypatch):
    made = []

    async def sleep(seconds):
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


async def test_changes_that_bring_nothing_are_slowed_down_until_an_entry_is_confirmed(state, pauses):
    async def change(failed):
        return ABC

    runner = ChangeRunner(state, change, 4 * FIRST_CHANGE_PAUSE)
    for _ in range(IMMEDIATE_CHANGES):
        await runner.run({0: "A"})
    assert pauses == []
    for _ in range(4):
        await runner.run({0: "A"})
    assert pauses == [2 * FIRST_CHANGE_PAUSE, 4 * FIRST_CHANGE_PAUSE, 4 * FIRST_CHANGE_PAUSE, 4 * FIRST_CHANGE_PAUSE]
    state.lac = 0
    pauses.clear()
    await runner.run({0: "A"})
    assert pauses == []


async def test_a_change_is_not_made_for_a_ledger_that_cannot_be_written_any_more(state):
    async def change(failed):
        raise AssertionError("nothing may be stored")

    state.abandon(LedgerClosed("over"))
    assert await ChangeRunner(state, change, 1).run({0: "A"}) == ABC


@pytest.mark.parametrize(
    ("raised", "kind"), [(MetadataUnavailable("gone"), MetadataUnavailable), (KeyError("x"), CouldNotTell)]
)
async def test_whatever_a_change_raises_ends_as_an_error_of_the_taxonomy(state, raised, kind, caplog):
    async def change(failed):
        raise raised

    with pytest.raises(kind) as told:
        await ChangeRunner(state, change, 1).run({0: "A"})
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("ledger cannot be written any more")
    assert line.endswith(f"error={told.value}")
