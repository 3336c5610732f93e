"""The reference's own reader on entry logs that we wrote: every entry and every ledgers map (scenario A21)."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from bookie_pod.storage.files_posix import PosixFiles
from tests.interop.java_programs import dump_entry_logs
from tests.support.entry_logs import PER_LEDGER, entry, open_logger

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    "shape",
    [
        {"log_size_limit_bytes": 1 << 20},
        {"log_size_limit_bytes": 1 << 20, "direct_io_entry_logger": True, "direct_buffer_bytes": 65536},
        {"log_size_limit_bytes": 1 << 20, **PER_LEDGER, "max_active_entry_logs": 5},
    ],
    ids=["ordinary", "direct", "per ledger"],
)
def test_the_reference_reads_our_logs(shape: dict[str, int], class_path: str, tmp_path: Path) -> None:
    logger = open_logger(PosixFiles(), str(tmp_path / "current"), **shape)
    expected = set()
    sizes: dict[tuple[int, int], int] = {}
    for round_number in range(4):
        for ledger_id in range(20):
            ids = range(round_number * 50, round_number * 50 + 50)
            entries = [entry(ledger_id, i, 16 + (i * 131 + ledger_id * 17) % 1500) for i in ids]
            for location, i, body in zip(logger.append_run(ledger_id, ids, entries), ids, entries, strict=True):
                log_id, position = location >> 32, location & 0xFFFFFFFF
                expected.add(f"entry {log_id} {position - 4} {ledger_id} {i} {len(body)} {zlib.crc32(body)}")
                sizes[log_id, ledger_id] = sizes.get((log_id, ledger_id), 0) + 4 + len(body)
    expected |= {f"map {log_id} {ledger_id} {size}" for (log_id, ledger_id), size in sizes.items()}
    logger.close()
    log_ids = sorted({log_id for log_id, _ in sizes})
    assert len(log_ids) > 2
    assert set(dump_entry_logs(class_path, tmp_path, log_ids)) == expected


def test_a_map_of_25000_ledgers(class_path: str, tmp_path: Path) -> None:
    logger = open_logger(PosixFiles(), str(tmp_path / "current"))
    for ledger_id in range(25_000):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0, 36)])
    logger.close()
    lines = dump_entry_logs(class_path, tmp_path, [0])
    assert {line for line in lines if line.startswith("map")} == {f"map 0 {i} 40" for i in range(25_000)}
    assert len([line for line in lines if line.startswith("entry")]) == 25_000
