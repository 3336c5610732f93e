"""What a read costs that no cache answers, part by part: microseconds of the processor for each entry.

    python -m benchmarks.misses [--entries N] [--size BYTES] [--directory PATH]

Reads at random and in order over what was flushed, with a read cache of 1 MB. The files are in the page cache, so that
nothing waits for the disk.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.registry import DbStorageOptions, StorageParts, StorageSettings, open_storage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.integrity.entry_check import ReadCheck
from bookie_protocol.digest import DigestType, digest_manager

LEDGER: Final = 1
READS: Final = 20_000
TOGETHER: Final = 32
"""Reads that a lane takes at once."""


def run(folder: Path, count: int, size: int) -> None:
    options = DbStorageOptions(write_cache_bytes=4 << 30, read_cache_bytes=1 << 20)
    storage = open_storage(
        StorageSettings([str(folder / "current")], db=options), StorageParts(PosixFiles(), lambda action: action())
    )
    assert isinstance(storage, DbLedgerStorage)
    _fill(storage, count, size)
    logs, locations = storage.directories[0].logs, storage.directories[0].locations
    chosen = random.Random(1)
    at_random = [chosen.randrange(count) for _ in range(READS)]
    in_order = range(min(READS, count))
    places = {entry_id: locations.get(LEDGER, entry_id) for entry_id in {*at_random, *in_order}}

    def look_up(ids: Sequence[int]) -> None:
        locations.get_each(LEDGER, ids)

    def read_log(ids: Sequence[int], more: int = 0) -> None:
        for entry_id in ids:
            logs.read_run(places[entry_id], LEDGER, entry_id, more, 1 << 20)

    def read(ids: Sequence[int]) -> None:
        deque(storage.read_each(LEDGER, ids), maxlen=0)

    for title, ids in (("at random", at_random), ("in order", in_order)):
        _line(f"{title}: index, one by one", look_up, ids, 1)
        _line(f"{title}: index, {TOGETHER} together", look_up, ids, TOGETHER)
        _line(f"{title}: log", read_log, ids, 1)
        _line(f"{title}: log, with 4 entries behind it", lambda some: read_log(some, 4), ids, 1)
        _line(f"{title}: whole read, one by one", read, ids, 1)
        _line(f"{title}: whole read, {TOGETHER} together", read, ids, TOGETHER)
    logs.check_with(ReadCheck(lambda _: None, lambda _: None))  # type: ignore[arg-type, return-value]
    for title, ids in (("at random", at_random), ("in order", in_order)):
        _line(f"{title}: whole read, {TOGETHER} together, digests checked", read, ids, TOGETHER)
    storage.close()


def _fill(storage: DbLedgerStorage, count: int, size: int) -> None:
    digest, payload = digest_manager(DigestType.CRC32C, b""), random.Random(2).randbytes(size)
    storage.set_master_key(LEDGER, bytes(20))
    active = storage.active_entries(LEDGER)
    for entry_id in range(count):
        active[entry_id] = digest.encode(LEDGER, entry_id, entry_id - 1, (entry_id + 1) * size, payload)
    storage.account(LEDGER, count * size, count)
    storage.flush()


def _line(what: str, read: Callable[[Sequence[int]], None], ids: Sequence[int], together: int) -> None:
    began = time.process_time()
    for first in range(0, len(ids), together):
        read(ids[first : first + together])
    print(f"{what:60} {(time.process_time() - began) / len(ids) * 1e6:7.2f} us", flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--directory", type=Path, help="a folder on the disk to measure; default: a temporary one")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="misses-", dir=given.directory))
    try:
        run(folder, given.entries, given.size)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
