"""A bookie is killed while the stock client writes; after its restart every acknowledged entry is read back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.interop.java_programs import run_program, start_program

_ACKNOWLEDGED_BYTES = 40_000  # of the writer's file: some thousand entries
_SECONDS = 60


def read_back(class_path, cluster, acks: Path, protocol: str, kind: str) -> int:
    """Every acknowledged entry is there, and the ledgers recover; returns how many were acknowledged.

    The reference takes a torn record for an entry, which may spoil the recovery: it is only read from.
    """
    how = "read" if kind == "java" else "recover"
    return int(run_program(class_path, "AckVerifier", cluster.metadata_uri, str(acks), protocol, how))


def write_until(class_path, cluster, acks: Path, protocol: str, then) -> None:
    """Starts a writer, waits until it noted enough, calls `then` while it goes on, and ends it."""
    output = acks.with_suffix(".out")
    writer = start_program(class_path, "AckWriter", cluster.metadata_uri, output, str(acks), protocol, "4", "10000000")
    try:
        deadline = time.monotonic() + _SECONDS
        while not (acks.exists() and acks.stat().st_size >= _ACKNOWLEDGED_BYTES):
            assert writer.poll() is None, output.read_text()
            assert time.monotonic() < deadline, f"too few acknowledged adds: {output.read_text()}"
            time.sleep(0.02)
        then()
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("protocol", ["V2", "V3"])
def test_killed_while_writing(class_path, solo, bookie_kind, tmp_path, protocol):
    bookie = solo.bookie(bookie_kind, {"flushInterval": "500"})
    try:
        bookie.start()
        acks = tmp_path / "acks"
        write_until(class_path, solo, acks, protocol, bookie.kill)
        bookie.start()
        count = read_back(class_path, solo, acks, protocol, bookie_kind)
        assert count * 12 >= _ACKNOWLEDGED_BYTES / 2
    finally:
        solo.discard(bookie)


def test_killed_again_during_replay(class_path, solo, bookie_kind, tmp_path):
    """Two crashes in a row, the second before a checkpoint: replay is idempotent."""
    bookie = solo.bookie(bookie_kind, {"flushInterval": "60000"})
    try:
        bookie.start()
        acks = tmp_path / "acks"
        write_until(class_path, solo, acks, "V2", bookie.kill)
        bookie.start()
        bookie.kill()
        bookie.start()
        read_back(class_path, solo, acks, "V3", bookie_kind)
        bookie.stop()
        bookie.start()
        read_back(class_path, solo, acks, "V2", bookie_kind)
    finally:
        solo.discard(bookie)
