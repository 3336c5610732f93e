"""Log lines: one of each kind in a while, and short, whatever strangers write."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.options import MetadataServiceUri
from tests.support.migration_world import MemoryTree, MigrationWorld
from tests.support.virtual_loop import virtually

LONGEST = 1000
MOST = 12
"""Lines of a kind in ten minutes."""


def lines_of_a_kind(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many there are of the most frequent kind."""
    return max(Counter(each.getMessage()[:40] for each in caplog.records).values(), default=0)


@pytest.mark.parametrize("is_believed", [True, False], ids=["not understood", "not believed"])
@virtually
async def test_flag_that_is_written_again_and_again_is_few_short_lines(
    is_believed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def believes(_: float) -> bool:
        return is_believed

    world = MigrationWorld(believes=believes)
    await world.begin()
    with caplog.at_level(logging.INFO):
        for number in range(600):
            world.zookeeper.put(flag.FLAG, json.dumps({"phase": f"{number}" + "x" * 10000, "targetUrl": ""}).encode())
            await asyncio.sleep(1)
    assert 1 <= lines_of_a_kind(caplog) <= MOST
    assert max(len(each.getMessage()) for each in caplog.records) < LONGEST


@virtually
async def test_target_that_is_long_is_a_short_line(caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    process = await world.begin()
    target = "oxia://oxia:6648/default?" + "x" * 10000
    with caplog.at_level(logging.INFO):
        world.zookeeper.put(flag.FLAG, json.dumps({"phase": "PREPARATION", "targetUrl": target}).encode())
        await asyncio.sleep(60)
    assert process.is_paused
    assert 1 <= max(len(each.getMessage()) for each in caplog.records) < LONGEST


@virtually
async def test_step_that_fails_for_two_reasons_in_turns_is_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    process = await world.begin()
    tries: list[MetadataServiceUri] = []

    async def connect(uri: MetadataServiceUri) -> MemoryTree:
        tries.append(uri)
        raise MetadataUnavailable(f"no answer from oxia-{len(tries) % 2}")

    process.participant._connect = connect
    with caplog.at_level(logging.INFO):
        world.set_phase("PREPARATION")
        await asyncio.sleep(600)
    assert len(tries) > MOST
    assert 1 <= lines_of_a_kind(caplog) <= MOST


@virtually
async def test_directory_that_is_refused_for_long_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    world.hidden.add(flag.PARTICIPANTS)
    with caplog.at_level(logging.INFO):
        process = await world.open()
        await asyncio.sleep(600)
    assert lines_of_a_kind(caplog) == 1
    assert process.is_connected
