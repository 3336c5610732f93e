"""What a bookie keeps of ledgers that are written and then left alone: resident memory after a flush.

    python -m benchmarks.idle_memory [--ledgers N] [--kilobytes N] [--budget MB] [--storage CLASS] [--directory PATH]

Short ledgers, one after the other, over one connection of version 2; then a flush, and some seconds of rest. The exit
code is 1 if the bookie holds more than its budget and 60 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.keys import master_key
from bookie_protocol.wire.v2 import Flag, OpCode, header_word
from tests.support.bookie_process import DB_STORAGE, free_port
from tests.support.serve_process import ServeProcess

ALLOWED_MB: Final = 60
_ENTRY_BYTES: Final = 4096
_REST_S: Final = 8.0
_FIRST_LEDGER: Final = 1000
_HEAD: Final = struct.Struct(">II20s")
_ANSWER_BYTES: Final = 28


def resident_mb(bookie: ServeProcess) -> float:
    """Resident memory of its process."""
    assert bookie.process is not None
    pages = int(Path(f"/proc/{bookie.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def flush(http_port: int) -> None:
    """Returns when everything that was acknowledged is flushed."""
    request = urllib.request.Request(f"http://127.0.0.1:{http_port}/api/v1/bookie/drain_clients", method="PUT")
    urllib.request.urlopen(request, timeout=300).close()


async def write(port: int, ledgers: int, nbytes: int) -> None:
    """So many ledgers of so many bytes each. Raises RuntimeError for an add that is refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = os.urandom(_ENTRY_BYTES - ENTRY_HEADER.size)
    head = _HEAD.pack(_ENTRY_BYTES + 24, header_word(2, OpCode.ADDENTRY, Flag.NONE), master_key(b""))
    entries = max(1, nbytes // _ENTRY_BYTES)
    for ledger_id in range(_FIRST_LEDGER, _FIRST_LEDGER + ledgers):
        for entry_id in range(entries):
            header = ENTRY_HEADER.pack(ledger_id, entry_id, entry_id - 1, len(payload) * (entry_id + 1))
            writer.write(head + header + payload)
        answers = await reader.readexactly(_ANSWER_BYTES * entries)
        for start in range(0, len(answers), _ANSWER_BYTES):
            code = int.from_bytes(answers[start + 8 : start + 12])
            if code:
                raise RuntimeError(f"an add to ledger {ledger_id} was answered {code}")
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--kilobytes", type=int, default=100, help="of each ledger")
    parser.add_argument("--budget", type=int, default=64, help="memoryBudgetMb")
    parser.add_argument("--storage", default=DB_STORAGE, help="ledgerStorageClass")
    parser.add_argument("--directory", type=Path, help="parent of the data directories")
    given = parser.parse_args()
    http_port = free_port()
    settings = {
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(http_port),
        "memoryBudgetMb": str(given.budget),
        "ledgerStorageClass": given.storage,
        "flushInterval": "3600000",
    }
    with tempfile.TemporaryDirectory(dir=given.directory) as folder, ServeProcess(Path(folder), settings) as bookie:
        bookie.start()
        before = resident_mb(bookie)
        asyncio.run(write(bookie.port, given.ledgers, given.kilobytes * 1024))
        written = resident_mb(bookie)
        flush(http_port)
        time.sleep(_REST_S)
        after = resident_mb(bookie)
    most = given.budget + ALLOWED_MB
    print(
        f"{given.ledgers} ledgers of {given.kilobytes} KB, budget {given.budget} MB: {before:.0f} MB at the start, "
        f"{written:.0f} MB written, {after:.0f} MB flushed and idle; at most {most} MB"
    )
    return int(after > most)


if __name__ == "__main__":
    sys.exit(main())
