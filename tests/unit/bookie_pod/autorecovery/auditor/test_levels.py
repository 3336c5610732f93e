"""What the auditor's metrics say about decommissions."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_pod.autorecovery.auditor.auditor import DecommissionLevels
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, DrainProgress, encode_record
from bookie_protocol.metadata_service.records import DECOMMISSION
from tests.support.decommission_rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        yield made


def shown(levels: DecommissionLevels) -> list[float]:
    return [levels.under_way, levels.ledgers_left, levels.bytes_left, levels.blocked]


async def test_they_are_sums_of_those_under_way(rig: Rig) -> None:
    levels = DecommissionLevels(rig.service, lambda: True)
    await levels.look()
    assert shown(levels) == [0, 0, 0, 0]
    assert math.isnan(levels.updated_ms)
    records = rig.service.records(DECOMMISSION)
    for name, updated, progress in (
        ("b0:1", 900, DrainProgress(ledgers_left=3, bytes_left=100, blocked=1)),
        ("b1:1", 700, DrainProgress(ledgers_left=4, bytes_left=50)),
    ):
        record = DecommissionRecord(name, "somebody", 1, updated, progress=progress)
        await records.create(name, encode_record(record))
    await levels.look()
    assert (shown(levels), levels.updated_ms) == ([2, 7, 150, 1], 700)
    await records.delete("b1:1")
    await levels.look()
    assert (shown(levels), levels.updated_ms) == ([1, 3, 100, 1], 900)


async def test_a_record_that_cannot_be_read_is_counted_and_hides_no_other(rig: Rig) -> None:
    records = rig.service.records(DECOMMISSION)
    await records.create("b0:1", b"{}")
    record = DecommissionRecord("b1:1", "somebody", 1, 5, progress=DrainProgress(ledgers_left=3))
    await records.create("b1:1", encode_record(record))
    levels = DecommissionLevels(rig.service, lambda: True)
    await levels.look()
    assert shown(levels) == [2, 3, 0, 0]
    await records.delete("b0:1")
    await levels.look()
    assert shown(levels) == [1, 3, 0, 0]


async def test_only_the_auditor_tells_and_only_what_is_known(rig: Rig) -> None:
    service, transport = await rig.connect()
    is_auditor = True
    levels = DecommissionLevels(service, lambda: is_auditor)
    await levels.look()
    assert shown(levels) == [0, 0, 0, 0]
    transport.died.set()
    await levels.look()
    assert all(map(math.isnan, shown(levels)))
    transport.died.clear()
    await levels.look()
    assert shown(levels) == [0, 0, 0, 0]
    is_auditor = False
    await levels.look()
    assert all(map(math.isnan, shown(levels)))
