"""Readers, a putting event loop, drains, checkpoints and deletions at the same time, with hardly any room for pages."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import NotThere
from tests.support.concurrent_storage import LoopRunner, read_what_was_put
from tests.support.memtable_engine import ENGINES, Checkpoints, memtable_options, open_memtable_engine
from tests.support.storage_engine import entry, put

LEDGERS = 6
ENTRIES = 3000


def _live_and_die(storage: MemTableStorage, stop: threading.Event, failures: list[str]) -> None:
    """Look at a ledger that comes and goes: what is read of it is right, or it is not there."""
    while not stop.is_set():
        try:
            for entry_id in storage.entry_ids(99):
                assert storage.read(99, entry_id) == entry(99, entry_id)
        except NotThere:
            pass
        except Exception as error:
            failures.append(repr(error))


async def _write(storage: MemTableStorage, acknowledged: dict[int, int]) -> None:
    for number in range(ENTRIES):
        ledger_id = number % LEDGERS
        entry_id = acknowledged[ledger_id] + 1
        put(storage, entry(ledger_id, entry_id, 150))
        acknowledged[ledger_id] = entry_id
        if storage.is_full(ledger_id):
            storage.request_flush(ledger_id)
        if number % 40 == 0:
            put(storage, entry(99, number // 40))
        if number % 200 == 199:
            await asyncio.to_thread(storage.delete_ledger, 99)
        if number % 25 == 0:
            await asyncio.sleep(0.001)
        if number % 500 == 0:
            await asyncio.to_thread(storage.flush)


@pytest.mark.parametrize("engine", list(ENGINES))
async def test_everything_at_once(engine: str, tmp_path: Path) -> None:
    options = memtable_options(memtable_bytes=20_000, log_size=60_000, page_bytes=128, page_limit=4, open_files=2)
    directories = [str(tmp_path / name / "current") for name in ("a", "b")]
    storage = open_memtable_engine(engine, PosixFiles(), directories, options, on_loop=LoopRunner())
    storage._background._pause = 0.002
    storage.start(Checkpoints())
    acknowledged = dict.fromkeys(range(LEDGERS), -1)
    stop, failures = threading.Event(), list[str]()
    threads = [
        threading.Thread(target=read_what_was_put, args=(storage, acknowledged, stop, failures, seed))
        for seed in range(2)
    ]
    threads.append(threading.Thread(target=_live_and_die, args=(storage, stop, failures)))
    for thread in threads:
        thread.start()
    try:
        await _write(storage, acknowledged)
        await asyncio.to_thread(storage.flush)
    finally:
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert failures[:3] == []
    assert len(storage.cache.handles) <= 2 + len(threads)
    await asyncio.to_thread(storage.close)
    storage = open_memtable_engine(engine, PosixFiles(), directories, options)
    for ledger_id, last in acknowledged.items():
        assert list(storage.entry_ids(ledger_id)) == list(range(last + 1))
        assert all(storage.read(ledger_id, n) == entry(ledger_id, n, 150) for n in range(last + 1))
    storage.close()
