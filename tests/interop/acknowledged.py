"""A Java writer that notes what was acknowledged, and a reader that holds a cluster to it."""

from __future__ import annotations

import time
from pathlib import Path

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
