"""The mode of a bookie: it takes writes or not, by itself or by an operator's word.

Invariants
- A read-only state that an operator set is left by an operator only, whatever the disks say; and an operator cannot
  make a bookie writable whose disks are full.
- A bookie that is being decommissioned is read-only until that is undone, or until an operator takes it back. That is
  written down nowhere but in the record of the decommission, so no restart outlives an undo.
- A bookie that is about to stop is read-only for the rest of its process, and that is not written down: the next one
  is what this one was before.
- A bookie whose configuration forbids read-only mode stops instead (`readOnlyModeEnabled=false`).
- The admission gate changes first and the registration follows, so a client that still finds the bookie in the
  writable list is refused, never half served.

Threads: event loop only.

With `persistBookieStatusEnabled` the file `BOOKIE_STATUS` tells the next start whether the bookie was read-only,
and by whose word:

    1,READ_ONLY,1718000000000,true      version, mode, ms since the epoch, set by an operator

One line in the `current` folder of every ledger directory. The newest file wins; one that cannot be understood does
not count. The old form without the fourth field stands for an operator's. `StatusFiles` may be used by any thread.

Source: docs/internals/bookie-behaviour.md, section 5; docs/internals/on-disk-formats.md, section 11.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.storage.disks import DiskVerdict
from bookie_pod.storage.files import Files
from bookie_protocol.errors import MetadataUnavailable, PodkeeperError, StorageFault

_log = structlog.get_logger(__name__)
STATUS_FILE: Final = "BOOKIE_STATUS"
_VERSION: Final = "1"
_MODES: Final = {"READ_WRITE": False, "READ_ONLY": True}


class BookieMode:
    """The mode, and who chose it."""

    def __init__(
        self,
        options: DisksConfig,
        gate: WriteAdmission,
        run: Callable[[Awaitable[None]], None],
        on_fatal: Callable[[PodkeeperError], None],
        *,
        remembered: BookieStatus | None = None,
        store: StatusFiles | None = None,
        request_flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`remembered` is the mode of an earlier process: an automatic one lasts until the first look at the disks.
        `request_flush` asks for a flush of everything; `flushed` is called when one has succeeded,
        at least in the directories that work."""
        self._options = options
        self._gate = gate
        self._run = run
        self._on_fatal = on_fatal
        self._registrar: RegistrationManager | None = None
        self._request_flush = request_flush
        self._room = True
        self._full = False
        self._unflushed = False
        self._leaving = False
        self._stopping = False
        self._store = store
        self.read_only = options.force_read_only or (remembered is not None and remembered.read_only)
        self.manual = remembered is not None and remembered.read_only and remembered.manual
        self._apply()

    @property
    def high_priority_writes(self) -> bool:
        """Return whether recovery adds pass a read-only bookie: its disks have room for them."""
        return self._room and not self._options.force_read_only

    def attach(self, registrar: RegistrationManager, *, announced_read_only: bool) -> None:
        """Announce changes in the metadata service from now on, which knows `announced_read_only` so far."""
        self._registrar = registrar
        if self.read_only != announced_read_only:
            self._run(self._announce(registrar, self.read_only))

    def detach(self) -> None:
        """Let go of the registration, because the bookie stops: later changes concern no other part."""
        self._registrar = None

    def on_disks(self, verdict: DiskVerdict) -> None:
        """The disk monitor looked at all directories."""
        self._room = verdict.high_priority_room
        self._full = full = verdict.writable == 0 or (self._options.read_only_on_any_disk_full and verdict.full > 0)
        if full and not self.read_only:
            self._change(True, f"full: {', '.join(verdict.full_directories)}")
        elif not full and self._unflushed:
            self._request_flush()
            self._apply()
        elif not full and self.read_only and not self._is_held():
            self._change(False, "the ledger directories have room again")
        else:
            self._apply()

    def no_writable_directory(self, error: BaseException) -> None:
        """A flush or checkpoint found no directory to write to. Room is not enough then: only a flush that succeeds
        shows that this is over."""
        self._unflushed = True
        if not self.read_only:
            self._change(True, str(error))

    def flushed(self) -> None:
        """Note that all waiting data has found its place, but for the part that a failed directory owes."""
        if not self._unflushed:
            return
        self._unflushed = False
        if self.read_only and not self._has_no_place() and not self._is_held():
            self._change(False, "what waited could be flushed")

    def set_by_operator(self, read_only: bool) -> None:
        """An operator asked for it; sticks until an operator takes it back."""
        self.manual = read_only
        self._leaving &= read_only
        self._stopping &= read_only
        if not read_only and self.read_only and (self._options.force_read_only or self._has_no_place()):
            _log.warning("bookie stays read-only", forced=self._options.force_read_only, disks_full=self._full)
        elif read_only != self.read_only:
            self._change(read_only, "set by an operator")
            return
        self._remember()

    @property
    def leaving(self) -> bool:
        """Return whether it is read-only because it is being decommissioned."""
        return self._leaving

    def set_leaving(self, leaving: bool) -> None:
        """The bookie is being decommissioned; False: not any more, because that was undone."""
        if leaving is self._leaving:
            return
        if leaving and not self._options.read_only_mode:
            _log.warning("bookie is being decommissioned, but readOnlyModeEnabled=false: it takes new data")
            return
        self._leaving = leaving
        if leaving and not self.read_only:
            self._change(True, "it is being decommissioned")
        elif not leaving and self.read_only and not self._has_no_place() and not self._is_held():
            self._change(False, "its decommission was undone")

    def prepare_to_stop(self) -> None:
        """The bookie is about to be stopped: writers are sent to others. An operator's word takes it back."""
        if not self._options.read_only_mode:
            _log.warning("bookie is about to stop, but readOnlyModeEnabled=false: it takes writes until then")
            return
        self._stopping = True
        if not self.read_only:
            self._change(True, "it is about to stop", remember=False)

    def _has_no_place(self) -> bool:
        return self._full or self._unflushed

    def _is_held(self) -> bool:
        """Room on the disks does not make it writable."""
        return self.manual or self._leaving or self._stopping or self._options.force_read_only

    def _change(self, read_only: bool, reason: str, *, remember: bool = True) -> None:
        if read_only and not self._options.read_only_mode:
            self._on_fatal(
                StorageFault(
                    f"{reason}, and readOnlyModeEnabled=false: the bookie stops; free space or allow that mode"
                )
            )
            return
        self.read_only = read_only
        _log.warning("bookie mode", read_only=read_only, reason=reason)
        self._apply()
        if remember:
            self._remember()
        if self._registrar is not None:
            self._run(self._announce(self._registrar, read_only))

    def _remember(self) -> None:
        if self._store is not None:
            self._run(asyncio.to_thread(self._store.write, lambda: (self._lasts(), self.manual)))

    def _lasts(self) -> bool:
        """Return whether it is read-only for another reason than that it is about to stop."""
        return self.read_only and (self.manual or not self._stopping)

    def _apply(self) -> None:
        self._gate.set_mode(read_only=self.read_only, high_priority_writes=self.high_priority_writes)

    async def _announce(self, registrar: RegistrationManager, read_only: bool) -> None:
        try:
            await (registrar.to_read_only() if read_only else registrar.to_writable())
        except MetadataUnavailable as error:
            # The registration goes on trying by itself; the gate has changed already.
            _log.warning("mode not announced yet", read_only=read_only, reason=str(error))


class BookieStatus(NamedTuple):
    """The contents of one file."""

    read_only: bool
    since_ms: int
    manual: bool

    def to_line(self) -> bytes:
        mode = "READ_ONLY" if self.read_only else "READ_WRITE"
        return f"{_VERSION},{mode},{self.since_ms},{str(self.manual).lower()}\n".encode()


def parse_status(data: bytes) -> BookieStatus | None:
    """Return the status in a file's bytes; None if they are none."""
    try:
        fields = data.decode("ascii").splitlines()[0].split(",")
        if fields[0].strip() != _VERSION or len(fields) not in (3, 4):
            return None
        manual = len(fields) == 3 or {"true": True, "false": False}[fields[3].strip().lower()]
        return BookieStatus(_MODES[fields[1].strip()], int(fields[2]), manual)
    except (ValueError, KeyError, IndexError):
        return None


class StatusFiles:
    """The status files of one bookie."""

    def __init__(
        self,
        files: Files,
        folders: Sequence[str],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._files = files
        self._paths = [os.path.join(folder, STATUS_FILE) for folder in folders]
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def read(self) -> BookieStatus | None:
        """The newest status; None if there is none."""
        found = [status for path in self._paths if (status := self._read_one(path)) is not None]
        return max(found, key=lambda status: status.since_ms, default=None)

    def _read_one(self, path: str) -> BookieStatus | None:
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("status file cannot be read", path=path, error=str(error))
            return None
        status = parse_status(data)
        if status is None:
            _log.warning("status file is ignored: it cannot be understood", path=path)
        return status

    def write(self, mode: Callable[[], tuple[bool, bool]]) -> None:
        """Write to every directory that takes it. `mode`: whether it is read-only, and by an operator's word; asked
        when no other write is under way, so that the last one has the last word."""
        with self._lock:
            read_only, manual = mode()
            line = BookieStatus(read_only, self._now_ms(), manual).to_line()
            for path in self._paths:
                try:
                    self._files.write_bytes_atomic(path, line)
                except OSError as error:
                    _log.warning("status file cannot be written", path=path, error=str(error))


def open_mode(
    config: BookieConfig,
    files: Files,
    admission: WriteAdmission,
    run: Callable[[Awaitable[None]], None],
    on_failure: Callable[[BaseException], None],
    request_flush: Callable[[], None],
) -> BookieMode:
    """Event loop; reads a small file."""
    disks, status = config.disks, None
    if disks.persist_status:
        status = StatusFiles(files, current_folders(config.directories.ledger))
    return BookieMode(
        disks,
        admission,
        run,
        on_failure,
        remembered=status.read() if status is not None else None,
        store=status,
        request_flush=request_flush,
    )
