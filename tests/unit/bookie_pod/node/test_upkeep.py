"""Upkeep gives way to clients: what counts as pressure, and who is told of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_pod.node.upkeep import PRESSURE_BYTES, PRESSURE_READ_S, under_pressure
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.storage.index_rebuild.state import RebuildRequest
from bookie_pod.storage.journal import Journal
from tests.support.journal_rig import JournalRig, an_add
from tests.support.live_bookie import live_bookie
from tests.support.memory_files import MemoryFiles
from tests.support.until import until


def test_pressure_is_what_waits_for_the_sync_of_any_journal() -> None:
    files = MemoryFiles()
    with JournalRig(directory="/idle") as idle, JournalRig(files) as busy:
        gate = files.faults.hold("datasync")
        asked = under_pressure([idle.journal, busy.journal], [])
        assert not asked()
        busy.journal.append(an_add(7, 0, bytes(PRESSURE_BYTES // 2)))
        gate.reached()
        assert not asked()
        busy.journal.append(an_add(7, 1, bytes(PRESSURE_BYTES // 2)))
        assert asked()
        gate.open()
        busy.acknowledged.wait_for(2)
        assert not asked()


async def test_pressure_is_a_read_that_is_under_way_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("bookie_pod.server.tcp.read_lanes.time", SimpleNamespace(monotonic=lambda: now[0]))
    gate, waited = threading.Event(), list[float]()
    lanes = ReadLanes("test", 2, 10, asyncio.get_running_loop(), waited.append)
    try:
        asked = under_pressure([], [lanes])
        done = list[int]()
        lanes.run(1, lambda: gate.wait(60), lambda result, error: done.append(1))
        await until(lambda: len(waited) == 1)
        lanes.run(1, lambda: None, lambda result, error: done.append(2))
        now[0] += PRESSURE_READ_S
        assert not asked()
        now[0] += PRESSURE_READ_S / 2
        assert asked()
        gate.set()
        await until(lambda: done == [1, 2])
        await until(lambda: not asked())
        assert waited == [0.0, pytest.approx(1.5 * PRESSURE_READ_S)]  # the second one for the first
    finally:
        gate.set()
        lanes.stop()


async def test_whatever_upkeep_reads_and_writes_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: dict[int, int] = {}
    monkeypatch.setattr(Journal, "queued_bytes", property(lambda journal: waiting.get(journal.index, 0)))
    journals = f"{tmp_path}/journal0,{tmp_path}/journal1"
    async with live_bookie(tmp_path, {"journalDirectories": journals}) as bookie:
        upkeep = bookie.upkeep
        questions = {
            "compaction": [each._rate._under_pressure for each in upkeep.collection.collectors],
            "scrub": [part._pace._under_pressure for part in upkeep.integrity.scrubber.parts],
            "copies": [upkeep.integrity._copies._busy],
        }
        assert {name: len(asked) for name, asked in questions.items()} == {"compaction": 1, "scrub": 3, "copies": 1}
        for journal, nbytes, pressed in ((0, 0, False), (0, PRESSURE_BYTES, False), (1, PRESSURE_BYTES + 1, True)):
            waiting.clear()
            waiting[journal] = nbytes
            answers = {name: [asked() for asked in all_asked] for name, all_asked in questions.items()}
            assert answers == {"compaction": [pressed], "scrub": [pressed] * 3, "copies": [pressed]}
        waiting.clear()


async def test_ledgers_in_limbo_are_compared_when_a_rebuild_has_ended(tmp_path: Path) -> None:
    async with live_bookie(tmp_path) as bookie:
        integrity = bookie.upkeep.integrity
        await until(lambda: integrity.data_check._requested._waiters)
        record = integrity._parts.storage.set_master_key(7, b"")
        integrity._parts.storage.set_ledger(7, replace(record, limbo=True))
        assert integrity.rebuilder.request(RebuildRequest())
        await until(lambda: integrity.data_check.state.in_limbo == 1)
