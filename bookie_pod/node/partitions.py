"""Directories that share a file system: one disk that fails or fills takes all of them.

Blocking; called once at start-up, before anything is written.

Source: reference bookie behaviour, section 1.3 (`allowMultipleDirsUnderSameDiskPartition`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import structlog

from bookie_pod.config.sections.journal import DirectoriesConfig
from bookie_pod.storage.files import Files
from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)


def check_partitions(directories: DirectoriesConfig, files: Files) -> None:
    """Warn of ledger or index directories on one file system, or refuse them with `InvalidConfiguration`.

    Journal directories, and a ledger directory beside its index directory, may share one.
    """
    for key, paths in (("ledgerDirectories", directories.ledger), ("indexDirectories", directories.index)):
        for together in _sharing(files, paths):
            if not directories.allow_same_disk_partition:
                raise InvalidConfiguration(
                    f"{key}: {', '.join(together)} are on one file system; give each a disk of its own, or set"
                    " allowMultipleDirsUnderSameDiskPartition=true"
                )
            _log.warning("directories share a file system", key=key, directories=together)


def _sharing(files: Files, paths: Sequence[str]) -> list[list[str]]:
    """Groups of two and more paths on one file system. One that cannot be looked at is for others to complain of."""
    by_device: dict[int, list[str]] = {}
    for path in paths:
        try:
            device = files.usage(_existing(files, path)).device
        except OSError:
            continue
        by_device.setdefault(device, []).append(path)
    return [together for together in by_device.values() if len(together) > 1]


def _existing(files: Files, path: str) -> str:
    """The path, or the nearest folder above it: where it will be made."""
    folder = os.path.abspath(path)
    while not files.is_dir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder
