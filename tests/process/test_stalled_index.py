"""A disk that holds up an index holds up the thread that writes to it, looks a row up or closes it, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.shim.control import Op, Shim

STALL = 0.5
"""Seconds that each call takes."""
_PROGRAM = """
import sys, threading, time
from bookie_pod.config.sections.ledger_storage import RocksDbConfig
from bookie_pod.storage.index.rocksdb_store import RocksStore

store = RocksStore(sys.argv[1], RocksDbConfig(write_buffer_size_bytes=2 << 20, block_cache_size_bytes=0))
rows = 2000

def key(row):
    return row.to_bytes(16, "big")

def write(batches):
    for number in range(batches):
        batch = store.batch()
        batch.put_many(map(key, range(number * rows, (number + 1) * rows)), [b"location"] * rows)
        batch.commit(sync=False)
    store.sync()

what = {
    "log": lambda: write(1),
    "tables": lambda: write(40),
    "look-up": lambda: store.get(key(7)),
    "close": store.close,
}[sys.argv[2]]
if sys.argv[2] in ("look-up", "close"):
    write(1)
if sys.argv[2] == "look-up":
    store.compact()
print("ready", flush=True)
sys.stdin.readline()
worker = threading.Thread(target=what)
longest, begin = 0.0, time.perf_counter()
worker.start()
last = begin
while worker.is_alive():
    time.sleep(0.001)
    now = time.perf_counter()
    longest, last = max(longest, now - last), now
print(longest, last - begin, flush=True)
"""


@pytest.mark.parametrize("what", ["log", "tables", "look-up", "close"])
def test_others_run_while_it_stalls(tmp_path: Path, what: str) -> None:
    shim = Shim(tmp_path / "shim", tmp_path / "watched")
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "locations"), what],
        env={**os.environ, **shim.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        with shim.rule(Op.READ if what == "look-up" else Op.WRITE, path="/locations/0", delay=STALL) as hits:
            child.stdin.write("\n")
            child.stdin.flush()
            longest, whole = map(float, child.stdout.readline().split())
            assert int(hits) > 0
    assert whole >= STALL, "who uses it waits"
    assert longest < STALL / 2, "and nobody else"
