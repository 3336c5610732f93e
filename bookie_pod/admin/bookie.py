"""This bookie: its mode, its space, its journals and files, its sanity.

Threads: event loop; `space` and `files` read directories and belong on other threads.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace as replace_members

from bookie_pod.admin.sanity import SanityTest
from bookie_pod.admin.settings import Settings
from bookie_pod.audit import audited
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.node.garbage_collection import GarbageCollection
from bookie_pod.node.identity.leaving import is_under_way
from bookie_pod.node.identity.published import check_cookies
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.node.metadata_witness import MetadataWitness
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource, should_be
from bookie_pod.server.status import NodeState, NodeStatus
from bookie_pod.storage.disks import disk_space, fullest_share
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.entry_log.names import parse_log_name
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.index_file import SUFFIX as INDEX_SUFFIX
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.journal.directory import SUFFIX as JOURNAL_SUFFIX
from bookie_pod.storage.journal.directory import list_journals
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.admin_api.bookie import (
    BookieSpace,
    FilesQuery,
    ReadOnlyQuery,
    ReadOnlyState,
    SanityResult,
    SpaceQuery,
)
from bookie_protocol.errors import (
    BadRequest,
    InvalidCookie,
    MetadataUnavailable,
    Refused,
)
from bookie_protocol.metadata_service.embedded.processes import this_boot
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery

_log = structlog.get_logger(__name__)
ANNOUNCE_S: Final = 10.0
"""Seconds for which a change of mode waits until the metadata service has it."""
DRAIN_S: Final = 600.0
"""Maximum duration of a flush before a stop, in seconds."""
SANITY_S: Final = 60.0
"""Maximum duration of a sanity test, in seconds: a bookie that is slow is slow at every step."""
_ONLY_GET: Final = should_be("GET")
_ONLY_PUT: Final = should_be("PUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBookie:
    """The parts of a bookie that serves."""

    config: BookieConfig
    """Configuration with which it started."""
    files: Files
    metadata: MetadataService
    bookie_id: str
    port: int
    address: str
    """Host and port that clients get."""
    storage: LedgerStorage
    journals: Sequence[Journal]
    gc: GarbageCollection
    witness: MetadataWitness
    integrity: Integrity
    mode: BookieMode
    registration: RegistrationManager
    status: NodeStatus
    flush: Callable[[], Awaitable[None]]
    """Makes everything durable that was acknowledged."""
    find_auto_recovery: Callable[[], RunningAutoRecovery | None] = lambda: None
    """Auto-recovery, if this bookie runs it and it has started."""


@dataclass(frozen=True, slots=True)
class DiskFiles:
    """Names of files, without their folders."""

    journal: Sequence[str]
    entry_log: Sequence[str]
    index: Sequence[str]


class ThisBookie:
    """Its mode, its space and its files. `settings`: the configuration in memory, with changes."""

    def __init__(self, bookie: RunningBookie, settings: Settings, sanity: SanityTest) -> None:
        self._bookie = bookie
        self._settings = settings
        self._sanity = sanity
        self._changing = asyncio.Lock()
        directories = bookie.config.directories
        self._journal_folders = current_folders(directories.journal)
        self._ledger_folders = current_folders(directories.ledger)
        self._index_folders = current_folders(directories.index_or_ledger)

    @property
    def bookie_id(self) -> str:
        return self._bookie.bookie_id

    @property
    def address(self) -> str:
        return self._bookie.address

    def state(self) -> NodeState:
        return self._bookie.status.state()

    def disk_space(self) -> BookieSpace:
        """The space alone, whatever is stored: cheap, however many files there are."""
        files = self._bookie.files
        try:
            total, free = disk_space(files, self._ledger_folders)
            fullest = round(100 * fullest_share(files, self._ledger_folders), 2)
            numbers = {files.usage(folder).file_system for folder in self._ledger_folders} - {0}
            # XFS makes its number of the device's, which the disk of another machine has too.
            ids = sorted(f"{this_boot()}/{one:x}" for one in numbers)
            return BookieSpace(free, total, fullest, file_systems=ids)
        except OSError as error:
            raise storage_fault("cannot read the space of the disks", error) from error

    def space(self) -> BookieSpace:
        try:
            return replace_members(self.disk_space(), entry_log_bytes=self._entry_log_bytes())
        except OSError as error:
            raise storage_fault("cannot read the space of the disks", error) from error

    def _entry_log_bytes(self) -> int:
        files, found = self._bookie.files, 0
        for folder in self._ledger_folders:
            for name in _entry_logs(files.listdir(folder)):
                with suppress(FileNotFoundError):  # collected meanwhile
                    found += files.size(f"{folder}/{name}")
        return found

    def marks(self) -> Sequence[LogMark]:
        """Return the synced position of each journal."""
        return [journal.last_mark() for journal in self._bookie.journals]

    def files(self) -> DiskFiles:
        files = self._bookie.files
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
            raise storage_fault("cannot list the files", error) from error

    def _index_files(self, folder: str) -> list[str]:
        files = self._bookie.files
        names = (name for each in index_folders(files, folder) for name in files.listdir(each))
        return [posixpath.basename(name) for name in names if name.endswith(INDEX_SUFFIX)]

    async def set_read_only(self, read_only: bool, decommission: int | None = None) -> None:
        """A request may be overtaken: by the undo of the decommission for which it was made. So it is asked for once
        more when the mode is changed, and taken back then: an undo that comes later finds the mode that it undoes."""
        mode, disks = self._bookie.mode, self._bookie.config.disks
        if disks.force_read_only and not read_only:
            raise BadRequest("the bookie is read-only by forceReadOnlyBookie=true; change that and restart it")
        if not disks.read_only_mode and read_only:
            raise BadRequest("readOnlyModeEnabled=false forbids that mode; change that and restart the bookie")
        if decommission is not None:
            await self._check(decommission)
        if not read_only:
            try:
                await self._bookie.registration.admit()
            except InvalidCookie as error:
                raise Refused(f"the bookie stays as it is: {error}") from error
        try:
            async with self._changing:  # only this request's own change is taken back
                if read_only and decommission is not None:
                    await self._leave(decommission)
                else:
                    mode.set_by_operator(read_only)
        finally:
            await self._announced()

    async def _leave(self, decommission: int) -> None:
        """Read-only for as long as the decommission goes on: if it is undone while the bookie is down, the next start
        finds nothing of it."""
        mode = self._bookie.mode
        before = mode.leaving
        mode.set_leaving(True)
        try:
            await self._check(decommission)
            await self._bookie.registration.admit()  # follows the decommission, so that its end is noticed
        except BaseException:  # also if no caller waits for the answer any more
            if not before:
                mode.set_leaving(False)
            raise

    async def _check(self, decommission: int) -> None:
        if not await is_under_way(self._bookie.metadata, self._bookie.bookie_id, decommission):
            raise Refused("the decommission for which this is asked is over: the mode stays as it is")

    async def drain_clients(self) -> None:
        self._bookie.mode.prepare_to_stop()
        await self._announced()
        await self._bookie.flush()

    async def _announced(self) -> None:
        """The registration follows by itself, for as long as it takes; wait, so that who asks next sees it."""
        mode, registration = self._bookie.mode, self._bookie.registration
        announce = registration.to_read_only if mode.read_only else registration.to_writable
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                await announce()
        except (MetadataUnavailable, TimeoutError) as error:
            _log.warning("mode not announced yet", read_only=mode.read_only, reason=str(error))

    async def check_sanity(self) -> bool:
        return await self._sanity.run()

    async def expand_storage(self) -> None:
        bookie, config, started_with = self._bookie, self._settings.config, self._bookie.config
        is_db = started_with.ledger_storage.engine is StorageEngine.DB
        if is_db and config.directories.ledger != started_with.directories.ledger:
            raise InvalidCookie(
                "DbLedgerStorage finds a ledger's directory by the number of ledger directories, so it cannot be given"
                " another one: grow the volumes, or add a bookie"
            )
        directories = replace(config.directories, allow_storage_expansion=True)
        await check_cookies(
            replace(config, directories=directories),
            bookie.metadata,
            bookie.files,
            bookie.bookie_id,
            replace(started_with.network, bookie_port=bookie.port),
        )


def _entry_logs(names: Sequence[str]) -> list[str]:
    found = {log_id: name for name in names if (log_id := parse_log_name(name)) is not None}
    return [found[log_id] for log_id in sorted(found)]


# --- mode -------------------------------------------------------------------------------------------------


async def _read_only(context: Context, call: Call) -> Reply:
    return Json(ReadOnlyState(context.room(ThisBookie).state().read_only))


async def _set_read_only(context: Context, call: Call) -> Reply:
    wanted = None if call.is_blank else switch(call.members(), "readOnly")
    if wanted is None:
        raise BadRequest('no mode is named: send {"readOnly": true} or {"readOnly": false}')
    audited(read_only=wanted)
    node = context.room(ThisBookie)
    await node.set_read_only(wanted, call.asked(ReadOnlyQuery).decommission)
    return Json(ReadOnlyState(node.state().read_only))


async def _drain_clients(context: Context, call: Call) -> Reply:
    node = context.room(ThisBookie)
    await node.drain_clients()
    return Json(ReadOnlyState(node.state().read_only))


async def _sanity(context: Context, call: Call) -> Reply:
    node = context.room(ThisBookie)
    if node.state().read_only:
        return Json(SanityResult(passed=False, read_only=True))
    passed = await node.check_sanity()
    return Json(SanityResult(passed, node.state().read_only))


# --- space, journals, files -------------------------------------------------------------------------------


async def _info(context: Context, call: Call) -> Reply:
    space = await context.workers.run(context.room(ThisBookie).space, call.caller)
    return Json(space if call.asked(SpaceQuery).fullest else BookieSpace(space.free_space, space.total_space))


async def _last_log_mark(context: Context, call: Call) -> Reply:
    return Json(
        {
            f"LastLogMark: Journal Id - {mark.journal_id}({mark.journal_id:x}.txn)": f"Pos - {mark.offset}"
            for mark in context.room(ThisBookie).marks()
        }
    )


async def _files(context: Context, call: Call) -> Reply:
    kind = call.asked(FilesQuery).file_type
    found = await context.workers.run(context.room(ThisBookie).files, call.caller)
    names = {"index": found.index, "journal": found.journal, "entrylog": found.entry_log}
    return Json({f"{each} files": _tabbed(names[each]) for each in names if kind in (None, each)})


def _tabbed(names: Sequence[str]) -> str:
    return "".join(f"{name}\t" for name in names)


async def _expand(context: Context, call: Call) -> Reply:
    await context.room(ThisBookie).expand_storage()
    return Text("Success expand storage")


# --- the table --------------------------------------------------------------------------------------------


def _get(operation: Operation, refusal: Text = _ONLY_GET) -> Resource:
    return Resource((operation,), refusal, own=False)


RESOURCES: Final = (
    Resource(
        (
            Operation(bookie_api.READ_ONLY, Role.VIEWER, "Whether it takes writes", _read_only, "The mode."),
            Operation(
                bookie_api.SET_READ_ONLY,
                Role.OPERATOR,
                "Change the mode",
                _set_read_only,
                "The mode now; a bookie whose disks are full stays read-only.",
                (
                    Answer("The configuration forbids that mode.", 400),
                    Answer("The decommission that asks for it is over.", 409),
                ),
            ),
        ),
        _ONLY_PUT,
        own=False,
    ),
    Resource(
        (
            Operation(
                bookie_api.DRAIN_CLIENTS,
                Role.OPERATOR,
                "Before a stop: take no more writes, so that writers go to other bookies, and flush. Unlike"
                " `state/readonly` it is forgotten by the next start, and goes with `state/readonly` too",
                _drain_clients,
                "Everything acknowledged is flushed; the mode now.",
                (Answer("The flush failed; the journal has everything.", 503),),
                timeout_s=DRAIN_S,
            ),
        ),
        _ONLY_PUT,
    ),
    _get(
        Operation(
            bookie_api.SANITY,
            Role.OPERATOR,
            "Write a ledger on this bookie, read it back, delete it",
            _sanity,
            "The result.",
            timeout_s=SANITY_S,
        ),
    ),
    _get(
        Operation(bookie_api.INFO, Role.VIEWER, "Space of this bookie", _info, "The space."),
    ),
    _get(
        Operation(
            bookie_api.LAST_LOG_MARK,
            Role.VIEWER,
            "How far each journal is synced",
            _last_log_mark,
            "One member per journal.",
        ),
    ),
    _get(
        Operation(
            bookie_api.DISK_FILES,
            Role.VIEWER,
            "Names of the files of journals, entry logs and index",
            _files,
            "Names by kind, a tab behind each.",
        ),
    ),
    _get(
        Operation(
            bookie_api.EXPAND_STORAGE,
            Role.ADMIN,
            "Accept new, empty ledger and index directories of the configuration; they are used from the next start on",
            _expand,
            "Done.",
            (Answer("A cookie forbids it.", 409),),
        ),
        _ONLY_PUT,
    ),
)
