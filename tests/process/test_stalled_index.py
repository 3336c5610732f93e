"""A disk that holds up what is written to an index holds up the thread that writes it, and nobody else."""

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
from bookie_pod.storage.index.rocksdb_options import RocksOptions
from bookie_pod.storage.index.rocksdb_store import RocksStore

store = RocksStore(sys.argv[1], RocksOptions(write_buffer_size=2 << 20))
batches, rows = int(sys.argv[2]), 2000

def write():
    for number in range(batches):
        batch = store.batch()
        keys = [(number * rows + row).to_bytes(16, "big") for row in range(rows)]
        batch.put_many(keys, [b"location"] * rows)
        batch.commit(sync=False)
    store.sync()

print("ready", flush=True)
sys.stdin.readline()
writer = threading.Thread(target=write)
longest, begin = 0.0, time.perf_counter()
writer.start()
last = begin
while writer.is_alive():
    time.sleep(0.001)
    now = time.perf_counter()
    longest, last = max(longest, now - last), now
print(longest, last - begin, flush=True)
"""


@pytest.mark.parametrize("batches", [1, 40], ids=["the log", "many memory tables"])
def test_a_write_that_stalls_lets_all_other_threads_run(tmp_path: Path, batches: int) -> None:
    shim = Shim(tmp_path / "shim", tmp_path / "watched")
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "locations"), str(batches)],
        env={**os.environ, **shim.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        with shim.rule(Op.WRITE, path="/locations/0", delay=STALL) as hits:
            child.stdin.write("\n")
            child.stdin.flush()
            longest, whole = map(float, child.stdout.readline().split())
            assert int(hits) > 0
    assert whole >= STALL, "the writer waits"
    assert longest < STALL / 2, "and nobody else"
