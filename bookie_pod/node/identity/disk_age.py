"""The check whether a directory was set back to an earlier time, as by a snapshot of its volume.

A bookie on such a disk lacks what it acknowledged since, and cannot see that: it would deny acknowledged entries, and a
recovery that believes it closes their ledger below them. So the bookie counts. The count is in the file `disk-age` of
every `current` folder, and then in the record `disk-age` of the metadata service:

    {"format": 1, "bookie": "...", "count": 17}

Invariants
- The count rises behind each start and then every minute, in the files first. So a folder whose count is below that of
  the record is of an earlier time, whatever crash came between. If one folder cannot be written, the record stays.
- What the metadata place on a bookie with such a folder is in limbo, durably, before the count rises.
- Where there is a record, a file that cannot be read or understood counts as one of an earlier time. No file, or one
  with another bookie's id, says nothing: the folder is new, of an older release, or was renamed. (Cookies tell a folder
  that came back empty.)
- A service that is put back has a lower count, which accuses no folder.

Limits: what a snapshot lacks that was taken within the last minute of the process is not known to be lost, nor what one
lacks from before the first count, or from while another directory could not be written.

Threads: event loop; files on others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import (
    UNREADABLE,
    MetadataError,
    MetadataNotFound,
    MetadataRefused,
    ResourcesShort,
)
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = structlog.get_logger(__name__)

NAME: Final = "disk-age"
KIND: Final = "disk-age"
FORMAT: Final = 1
RISE_S: Final = 60.0
"""Seconds between two counts."""


class DiskAge:
    """`folders`: every `current` folder of the bookie."""

    def __init__(self, files: Files, folders: Sequence[str], service: MetadataService, bookie_id: str) -> None:
        self._files = files
        self._folders = list(folders)
        self._service = service
        self._bookie_id = bookie_id
        self._count = 0
        self._is_failing = False

    async def earlier(self) -> list[str]:
        """Return the folders that are of an earlier time. Raises `MetadataUnavailable`, `StorageFault`."""
        try:
            recorded = self._count_in((await self._service.records(KIND).read(self._bookie_id)).value) or 0
            if recorded < 0:
                _log.warning(
                    "the recorded age of the disks cannot be understood, so none of them can be found to be set back"
                )
        except (MetadataNotFound, MetadataRefused):
            recorded = 0
        counts = await asyncio.to_thread(self._read)
        self._count = max(recorded, *counts.values(), 0)
        return [folder for folder, count in counts.items() if count < recorded and recorded > 0]

    async def follow(self) -> None:
        """Let the count rise now, and then again and again, until cancelled."""
        while True:
            await self.rise()
            await asyncio.sleep(RISE_S)

    async def rise(self) -> None:
        """Let the count rise, unless a disk or the service does not take it just now."""
        data = json.dumps({"format": FORMAT, "bookie": self._bookie_id, "count": self._count + 1}).encode()
        try:
            await asyncio.to_thread(self._write, data)
            self._count += 1  # also while the service is away: snapshots are taken then too
            await self._record(data)
        except (OSError, MetadataError) as error:
            if not self._is_failing:
                _log.warning("the age of the disks is not noted for now", reason=str(error))
            self._is_failing = True
            return
        self._is_failing = False

    async def _record(self, data: bytes) -> None:
        records = self._service.records(KIND)
        try:
            await records.overwrite(self._bookie_id, data)
        except MetadataNotFound:
            await records.create(self._bookie_id, data)

    def _write(self, data: bytes) -> None:
        for folder in self._folders:
            self._files.write_bytes_atomic(f"{folder}/{NAME}", data)

    def _read(self) -> dict[str, int]:
        """The counts of the folders that have one."""
        counts: dict[str, int] = {}
        for folder in self._folders:
            path = f"{folder}/{NAME}"
            try:
                count = self._count_in(self._files.read_bytes(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                fault = storage_fault(f"cannot read {path}", error)
                if isinstance(fault, ResourcesShort):
                    raise fault from error
                count = -1
            if count is not None:
                counts[folder] = count
        return counts

    def _count_in(self, data: bytes) -> int | None:
        """The count; -1: it cannot be understood; None: it is another bookie's."""
        try:
            stored = json.loads(data)
            if stored["bookie"] != self._bookie_id:
                return None
            return int(stored["count"]) if stored["format"] == FORMAT else -1
        except UNREADABLE:
            return -1
