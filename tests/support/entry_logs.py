"""Entries and entry loggers for tests."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.storage.entry_log import EntryLogger, LedgerDirStates
from bookie_pod.storage.entry_log.direct import DIRECT_WRITE_BUFFER_BYTES
from bookie_pod.storage.entry_log.reader import MAX_OPEN_FILES
from bookie_pod.storage.files import Files
from tests.support.memory_files import MemoryFiles
from tests.support.production import production

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
GOLDEN_DISKS = ("disk-db", "disk-sorted", "disk-interleaved")

FOLDER = "/ledgers/current"

PER_LEDGER = {"storage_class": StorageEngine.INTERLEAVED.value, "entry_log_per_ledger": True}
"""Fields of the configuration: one log for each ledger, which DbLedgerStorage does not have."""


def entry(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    """An entry of `size` bytes whose body differs from that of every other entry."""
    head = struct.pack(">qq", ledger_id, entry_id)
    filler = struct.pack(">qq", ledger_id * 31 + 7, entry_id * 17 + 3)
    return (head + filler * (size // 16 + 1))[:size]


def run(ledger_id: int, count: int, size: int = 100, first: int = 0) -> tuple[list[int], list[bytes]]:
    """Ids and entries of `count` consecutive entries."""
    ids = list(range(first, first + count))
    return ids, [entry(ledger_id, i, size) for i in ids]


def make_folders(files: Files, *folders: str) -> None:
    for folder in folders or (FOLDER,):
        if not files.is_dir(folder):
            files.makedirs(folder)


def open_logger(
    files: Files,
    *folders: str,
    dirs: LedgerDirStates | None = None,
    max_open_files: int = MAX_OPEN_FILES,
    direct_buffer_bytes: int = DIRECT_WRITE_BUFFER_BYTES,
    **changes: Any,
) -> EntryLogger:
    """A logger with these fields of the configuration changed. Without preallocation unless asked for, so that file
    names are predictable, and in the ordinary format, of which most tests know the positions."""
    folders = folders or (FOLDER,)
    make_folders(files, *folders)
    if (limit := changes.get("log_size_limit_bytes")) is not None:
        changes.setdefault("min_usable_for_entry_log_bytes", limit * 6 // 5)  # as it is derived
    config = production(**{"entry_log_preallocation": False, "direct_io_entry_logger": False, **changes})
    return EntryLogger(
        files,
        dirs or LedgerDirStates(folders),
        config,
        max_open_files=max_open_files,
        direct_buffer_bytes=direct_buffer_bytes,
    )


def logger_with(data: bytes) -> EntryLogger:
    """The only log that it finds has this content."""
    files = MemoryFiles()
    make_folders(files)
    file = files.create(f"{FOLDER}/0.log")
    file.write(data)
    file.close()
    return open_logger(files)


def golden_description(disk: str) -> dict[str, Any]:
    return json.loads((GOLDEN / disk / "description.json").read_text())


def golden_logs(disk: str) -> dict[str, bytes]:
    """File name to content of the entry logs of a golden disk."""
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / disk).glob("*.log"))}
