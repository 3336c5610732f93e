"""This bookie as the admin API sees and changes it.

Threads: event loop; `space` and `files` read directories and belong on other threads.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.admin.index_compaction import IndexCompactions
from bookie_pod.admin.ports import DiskFiles, Mark, Space
from bookie_pod.admin.sanity import SanityTest
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.node import options
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.status import NodeState, NodeStatus
from bookie_pod.storage.disks import disk_space, fullest_share
from bookie_pod.storage.entry_log.names import parse_log_name
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.index_file import SUFFIX as INDEX_SUFFIX
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.journal.directory import SUFFIX as JOURNAL_SUFFIX
from bookie_pod.storage.journal.directory import list_journals
from bookie_pod.storage.journal.journal import Journal
from bookie_protocol.errors import (
    BadRequest,
    InvalidCookie,
    MetadataUnavailable,
    PodkeeperError,
    Refused,
    StorageFault,
)

_log = structlog.get_logger(__name__)
ANNOUNCE_S: Final = 10.0
"""Seconds for which a change of mode waits until the metadata service has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieParts:
    """What it is made of. `config`: the one in memory, with changes. `check_cookies` accepts new directories. `flush`
    makes everything durable that was acknowledged. `is_leaving`: whether the decommission of this bookie that began
    then goes on."""

    bookie_id: str
    address: str
    config: Callable[[], BookieConfig]
    started_with: BookieConfig
    files: Files
    status: NodeStatus
    mode: BookieMode
    registration: RegistrationManager
    journals: Sequence[Journal]
    indexes: IndexCompactions
    sanity: SanityTest
    check_cookies: Callable[[BookieConfig], Awaitable[None]]
    flush: Callable[[], Awaitable[None]]
    is_leaving: Callable[[int], Awaitable[bool]]


class ThisBookie:
    """`NodePort`."""

    def __init__(self, parts: BookieParts) -> None:
        self._parts = parts
        directories = parts.started_with.directories
        self._journal_folders = options.current_folders(directories.journal)
        self._ledger_folders = options.current_folders(directories.ledger)
        self._index_folders = options.current_folders(directories.index_or_ledger)

    @property
    def bookie_id(self) -> str:
        return self._parts.bookie_id

    @property
    def address(self) -> str:
        return self._parts.address

    def state(self) -> NodeState:
        return self._parts.status.state()

    def space(self) -> Space:
        try:
            total, free = disk_space(self._parts.files, self._ledger_folders)
            return Space(total, free, 100 * fullest_share(self._parts.files, self._ledger_folders))
        except OSError as error:
            raise StorageFault(f"cannot read the space of {error.filename}: {error.strerror or error}") from error

    def marks(self) -> Sequence[Mark]:
        marks = [journal.last_mark() for journal in self._parts.journals]
        return [Mark(mark.journal_id, mark.offset) for mark in marks]

    def files(self) -> DiskFiles:
        files = self._parts.files
        try:
            return DiskFiles(
                journal=[
                    f"{journal_id:x}{JOURNAL_SUFFIX}"
                    for folder in self._journal_folders
                    for journal_id in list_journals(files, folder)
                ],
                entry_log=[name for folder in self._ledger_folders for name in _entry_logs(files.listdir(folder))],
                index=[name for folder in self._index_folders for name in self._index_files(folder)],
            )
        except OSError as error:
            raise StorageFault(f"cannot list {error.filename}: {error.strerror or error}") from error

    def _index_files(self, folder: str) -> list[str]:
        files = self._parts.files
        names = (name for each in index_folders(files, folder) for name in files.listdir(each))
        return [posixpath.basename(name) for name in names if name.endswith(INDEX_SUFFIX)]

    async def set_read_only(self, read_only: bool, decommission: int | None = None) -> None:
        """A request may be overtaken: by the undo of the decommission for which it was made. So it is asked for once
        more when the mode is changed, and taken back then: an undo that comes later finds the mode that it undoes."""
        parts, disks = self._parts, self._parts.started_with.disks
        if disks.force_read_only and not read_only:
            raise BadRequest("the bookie is read-only by forceReadOnlyBookie=true; change that and restart it")
        if not disks.read_only_mode and read_only:
            raise BadRequest("readOnlyModeEnabled=false forbids that mode; change that and restart the bookie")
        if decommission is not None:
            await self._check(decommission)
        before = parts.mode.manual
        parts.mode.set_by_operator(read_only)
        try:
            if decommission is not None:
                await self._check(decommission)
        except PodkeeperError:
            if read_only and not before:
                parts.mode.set_by_operator(False)
            raise
        finally:
            await self._announced()

    async def _check(self, decommission: int) -> None:
        if not await self._parts.is_leaving(decommission):
            raise Refused("the decommission for which this is asked is over: the mode stays as it is")

    async def drain_clients(self) -> None:
        self._parts.mode.prepare_to_stop()
        await self._announced()
        await self._parts.flush()

    async def _announced(self) -> None:
        """The registration follows by itself, for as long as it takes; wait, so that who asks next sees it."""
        parts = self._parts
        announce = parts.registration.to_read_only if parts.mode.read_only else parts.registration.to_writable
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                await announce()
        except (MetadataUnavailable, TimeoutError) as error:
            _log.warning("mode not announced yet", read_only=parts.mode.read_only, reason=str(error))

    async def check_sanity(self) -> bool:
        return await self._parts.sanity.run()

    async def expand_storage(self) -> None:
        config, started_with = self._parts.config(), self._parts.started_with
        is_db = started_with.ledger_storage.engine is StorageEngine.DB
        if is_db and config.directories.ledger != started_with.directories.ledger:
            raise InvalidCookie(
                "DbLedgerStorage finds a ledger's directory by the number of ledger directories, so it cannot be given"
                " another one: grow the volumes, or add a bookie"
            )
        await self._parts.check_cookies(config)

    def index_compactions(self) -> Mapping[str, bool]:
        return self._parts.indexes.running()

    def compact_indexes(self, paths: Sequence[str] | None) -> None:
        self._parts.indexes.start(paths)


def _entry_logs(names: Sequence[str]) -> list[str]:
    found = {log_id: name for name in names if (log_id := parse_log_name(name)) is not None}
    return [found[log_id] for log_id in sorted(found)]
