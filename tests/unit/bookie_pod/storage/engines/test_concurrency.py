"""Readers, a putting event loop, flushes and deletions at the same time, on RocksDB and real files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.files_posix import PosixFiles
from tests.support.concurrent_storage import LoopRunner, read_what_was_put
from tests.support.storage_engine import CountingMetrics, entry, open_engine, put, small_options


async def _write(storage: DbLedgerStorage, acknowledged: dict[int, int]) -> None:
    """Put 500 entries into each of 4 ledgers, wait where a cache is full, delete every twentieth of 500 small
    ledgers."""
    for entry_id in range(500):
        for ledger_id in range(4):
            put(storage, entry(ledger_id, entry_id, 150))
            acknowledged[ledger_id] = entry_id
        doomed = 100 + entry_id
        put(storage, entry(doomed, 0, 100))
        if entry_id % 20 == 0:
            await asyncio.to_thread(storage.delete_ledger, doomed)
        for ledger_id in range(2):
            while storage.is_full(ledger_id):
                storage.request_flush(ledger_id)
                await asyncio.sleep(0.001)
    await asyncio.to_thread(storage.flush)


async def test_every_entry_is_readable_at_every_moment(tmp_path: Path) -> None:
    metrics = CountingMetrics()
    directories = [str(tmp_path / name / "current") for name in ("a", "b")]
    options = small_options(half_bytes=20_000, directories=2, read_cache_bytes=7_000, log_size=33_000)
    storage: DbLedgerStorage = open_engine(PosixFiles(), directories, options, on_loop=LoopRunner(), metrics=metrics)
    acknowledged = dict.fromkeys(range(4), -1)
    stop = threading.Event()
    failures: list[str] = []
    readers = [
        threading.Thread(target=read_what_was_put, args=(storage, acknowledged, stop, failures, n)) for n in range(2)
    ]
    for reader in readers:
        reader.start()
    try:
        await _write(storage, acknowledged)
    finally:
        stop.set()
        for reader in readers:
            await asyncio.to_thread(reader.join)
    assert failures == []
    assert len(metrics.sizes) > 10
    for ledger_id in range(4):
        assert list(storage.entry_ids(ledger_id)) == list(range(500))
    assert len(storage.ledger_ids()) == 4 + 500 - 25
    await asyncio.to_thread(storage.close)
