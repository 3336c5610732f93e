"""All commands of `bookie disk`."""

from __future__ import annotations

from bookie_pod.cli.disk import (
    check,
    convert,
    empty,
    index,
    journal,
    logs,
    look,
    rebuild,
    rebuild_index_files,
    rename_bookie,
)
from bookie_pod.cli.disk.group import disk

__all__ = [
    "check",
    "convert",
    "disk",
    "empty",
    "index",
    "journal",
    "logs",
    "look",
    "rebuild",
    "rebuild_index_files",
    "rename_bookie",
]
