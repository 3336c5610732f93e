"""Moves of ledgers off a bookie, several at once, and how far they are.

Each ledger's copies are made first; then the metadata are exchanged.

Invariants
- All work on a ledger is done under its lock of the under-replication tree, so replication workers, bookies' garbage
  collection and other coordinators (Java's too) keep off it. The lock ends with its session, and so does the work; the
  metadata are exchanged in that session or not at all.
- Data first, metadata last. A ledger counts as drained only when metadata that were read afterwards do not name the
  bookie.
- A ledger that is still being written is recovered, which fences its writer, only after the grace period and only if
  the bookie is still in its last ensemble then: a writer that appends leaves a read-only bookie by itself.
- A failure with one ledger is reported as that ledger's reason, and nothing is lost. Reasons that may be gone at the
  next try have a type of their own (`Passing`): no ledger is given up for them, nor for others before every try for
  `give_up_after` has met one (`DrainMeter.lasting`).
- At most `ledgers_at_once` ledgers are in work; a ledger that is blocked does not hold up the others.
- The meter holds numbers for the whole, and a reason for each blocked ledger, of which `SHOWN_BLOCKERS` are shown.

Threads: event loop.

Sources: docs/internals/auto-recovery.md, sections 6.3, 7 and 8; docs/internals/metadata-layout.md, section 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from bookie_pod.autorecovery.decommission.moving import ClientMover, Passing
from bookie_pod.autorecovery.decommission.state import SHOWN_BLOCKERS, Blocker, DrainProgress
from bookie_protocol import shown
from bookie_protocol.errors import (
    EntriesUnreadable,
    MetadataNotFound,
    NotEnoughBookies,
    PodkeeperError,
    RecoveryFailed,
    SparesUnreachable,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock

LONGEST_REASON: Final = 400
_LASTING: Final = (NotEnoughBookies, RecoveryFailed)
"""Lasting reasons: there is no place for a copy, though every spare answered, or no end can be found."""
MIN_TRIES: Final = 3
"""Tries that have to meet a lasting reason before a ledger is given up."""


class Unreadable(str):
    """A reason: no bookie that is registered has some entries, not even the one that is drained."""


class Locked(Passing):
    """A reason: another process has the ledger's lock, so it is tried again."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The settings of a drain. Times in seconds."""

    ledgers_at_once: int = 4
    open_grace: float = 30.0
    """`openLedgerRereplicationGracePeriod`: time that a writer may take to leave by itself."""
    recover_open: bool = True
    """False: wait for writers, however long that takes."""
    retry_interval: float = 5.0
    """Pause between two tries of a ledger that could not be drained."""
    give_up_after: float = 120.0
    """Time for which a ledger whose loss was accepted is tried before it is given up: bookies restart, networks come
    back."""
    settle: float = 15.0
    """Time between the moment when the bookie takes no new data and the proof.

    Clients may take that long to hear of it, and then to end a request that still names it (`zkTimeout`, 10 s by
    default).
    """


class LedgerDrain:
    """Drains ledgers of some bookies; any number at once, but one ledger once."""

    def __init__(
        self, service: MetadataService, mover: ClientMover, bookies: Collection[str], options: DrainOptions
    ) -> None:
        self._service = service
        self._mover = mover
        self._bookies = frozenset(bookies)
        self._options = options
        self._guard = LedgerGuard(service)
        self._open_since: dict[int, tuple[LedgerLife, float]] = {}
        """The ledgers whose writers have time to leave: which one of the id, and since when."""

    async def drain(self, ledger_id: int, progress: Callable[[int], None]) -> str | None:
        """Try once; return why the ledger, or its mark, still names a bookie; None: neither does.

        `progress` is called with the bytes as they are copied.
        """
        return await self._under_lock(ledger_id, lambda lock: self._drain(lock, progress))

    async def end_recovery(self, ledger_id: int) -> str | None:
        """See that a ledger IN_RECOVERY comes to its end: by its recovering client, or after the grace period by us.

        Why it has not yet; None: it is closed, or gone.
        """
        stored = await self._read(ledger_id)
        if stored is None or stored.value.is_closed:
            self._open_since.pop(ledger_id, None)
            return None
        return await self._under_lock(ledger_id, lambda lock: self._end(stored))

    async def _under_lock(
        self, ledger_id: int, work: Callable[[LedgerLock], Coroutine[Any, Any, str | None]]
    ) -> str | None:
        """Return what this work on a ledger returns, or why it failed or was not begun."""
        try:
            lock = await self._guard.lock(ledger_id)
            if lock is None:
                holder = await self._guard.holder(ledger_id)
                return Locked(f"a replication worker on {holder} works on it: it has the ledger's lock")
            async with self._guard.holding(lock):
                return await self._guard.work(lock, work(lock))
        except PodkeeperError as error:
            return reason_of(error)

    async def _drain(self, lock: LedgerLock, progress: Callable[[int], None]) -> str | None:
        ledger_id = lock.ledger_id
        stored = found = await self._read(ledger_id)
        reason, left_out = Passing(""), ""
        if stored is None or not self._is_being_written(stored.value):
            self._open_since.pop(ledger_id, None)  # its writer has left: another time begins when it is back
        if stored is not None and self._names(stored.value):
            metadata = stored.value
            if self._is_being_written(metadata):
                metadata, reason = await self._see_to_the_writer(stored)
            left_out = await self._mover.move(metadata, self._bookies, lock.session_id, progress)
            found = await self._read(ledger_id)
        if found is not None and self._names(found.value):
            return reason or left_out or Passing("its metadata changed meanwhile; it is tried again")
        self._open_since.pop(ledger_id, None)
        if found is None and lock.mark is not None:
            await self._guard.remove_mark(lock)
        else:
            await self._guard.leave_mark(lock, self._bookies)
        return None

    async def _end(self, stored: Versioned[LedgerMetadata]) -> str | None:
        found, reason = await self._see_to_the_writer(stored)
        return reason or (None if found.is_closed else Passing("another client is recovering it"))

    async def _see_to_the_writer(self, stored: Versioned[LedgerMetadata]) -> tuple[LedgerMetadata, Passing]:
        """Return the metadata to go on with, and why the last segment has to wait."""
        metadata = stored.value
        ledger_id, state = metadata.ledger_id, metadata.state.value
        life, now = LedgerLife.of(stored), asyncio.get_running_loop().time()
        known, since = self._open_since.get(ledger_id, (life, now))
        if known != life:
            since = now
        self._open_since[ledger_id] = life, since
        left = since + self._options.open_grace - now
        if not self._options.recover_open:
            return metadata, Passing(f"{state}: waits for its writer to leave the bookie or to close the ledger")
        if left > 0:
            said = f"{state}: its writer has {left:.0f} s left to leave the bookie, then it is recovered"
            return metadata, Passing(said)
        await self._mover.recover(life)
        return (await self._read(ledger_id) or stored).value, Passing("")

    async def _read(self, ledger_id: int) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._service.ledgers.read(ledger_id)
        except MetadataNotFound:
            return None

    def _names(self, metadata: LedgerMetadata) -> bool:
        return not self._bookies.isdisjoint(metadata.all_bookies())

    def _is_being_written(self, metadata: LedgerMetadata) -> bool:
        return not metadata.is_closed and not self._bookies.isdisjoint(metadata.last_ensemble)


def reason_of(error: PodkeeperError) -> str:
    """Return why a ledger is left, by the error that its drain met."""
    said = one_line(error)
    if isinstance(error, EntriesUnreadable):
        return Unreadable(said)
    lasts = isinstance(error, _LASTING) and not isinstance(error, SparesUnreachable)
    return said if lasts else Passing(said)


def one_line(error: PodkeeperError) -> str:
    """Return the error in one line, for a person."""
    return shown.one_line(error, LONGEST_REASON) or type(error).__name__


class DrainMeter:
    """Counts of one drain, for people: `progress` is a snapshot."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._sizes: dict[int, int] = {}
        self._done_bytes = 0
        self._done_ledgers = 0
        self._blocked: dict[int, str] = {}
        self._lasting: dict[int, tuple[float, int]] = {}
        """Ledgers whose tries all met a lasting reason: since when, and the number of tries."""
        self._in_work: dict[int, int] = {}
        self.bytes_copied = 0

    @property
    def blocked(self) -> Mapping[int, str]:
        return self._blocked

    @property
    def in_work(self) -> Mapping[int, int]:
        """Ledgers in work, and the bytes copied of each."""
        return self._in_work

    def lasting(self, ledger_id: int, seconds: float) -> str | None:
        """The reason why a ledger stays, if every try for so long has met one that lasts."""
        since, tries = self._lasting.get(ledger_id, (inf, 0))
        if tries < MIN_TRIES or self._clock() - since < seconds:
            return None
        return self._blocked.get(ledger_id)

    def expect(self, sizes: Mapping[int, int]) -> None:
        """The ledgers that are left, with estimates of their bytes."""
        self._sizes = dict(sizes)
        self._blocked = {ledger_id: why for ledger_id, why in self._blocked.items() if ledger_id in self._sizes}

    def begin(self, ledger_id: int) -> Callable[[int], None]:
        """A ledger is in work; the answer takes bytes as they are copied."""
        self._in_work[ledger_id] = 0

        def copied(nbytes: int) -> None:
            self.bytes_copied += nbytes
            self._in_work[ledger_id] += nbytes

        return copied

    def end(self, ledger_id: int, reason: str | None) -> None:
        """It is drained, or blocked."""
        self._in_work.pop(ledger_id, None)
        if reason is None or isinstance(reason, Passing):
            self._lasting.pop(ledger_id, None)
        else:
            since, tries = self._lasting.get(ledger_id, (self._clock(), 0))
            self._lasting[ledger_id] = since, tries + 1
        if reason is not None:
            self._blocked[ledger_id] = reason
            return
        self._blocked.pop(ledger_id, None)
        self._done_bytes += self._sizes.pop(ledger_id, 0)
        self._done_ledgers += 1

    def progress(self) -> DrainProgress:
        """The progress as it is now."""
        ledgers_left, bytes_left = len(self._sizes), sum(self._sizes.values())
        for ledger_id, copied in self._in_work.items():
            bytes_left -= min(copied, self._sizes.get(ledger_id, 0))
        shown = sorted(self._blocked.items())[:SHOWN_BLOCKERS]
        return DrainProgress(
            ledgers_total=self._done_ledgers + ledgers_left,
            ledgers_left=ledgers_left,
            bytes_total=self._done_bytes + sum(self._sizes.values()),
            bytes_left=bytes_left,
            bytes_copied=self.bytes_copied,
            eta_s=self._eta(ledgers_left, bytes_left),
            blocked=len(self._blocked),
            blockers=tuple(Blocker(ledger_id, reason) for ledger_id, reason in shown),
        )

    def _eta(self, ledgers_left: int, bytes_left: int) -> float | None:
        """Estimate the seconds left from the work done so far, by the slower of bytes and ledgers; None while too
        little is known."""
        took = self._clock() - self._began
        if not ledgers_left:
            return 0.0
        if not self._done_ledgers or len(self._blocked) == ledgers_left:
            return None
        estimates = [took * ledgers_left / self._done_ledgers]
        if self._done_bytes:
            estimates.append(took * bytes_left / self._done_bytes)
        return max(estimates)


async def drain_one(ledger_id: int, drain: LedgerDrain, meter: DrainMeter) -> str | None:
    """Try a ledger once, as the meter tells; return why it is not drained."""
    copied = meter.begin(ledger_id)
    reason: str | None = Passing("interrupted")
    try:
        reason = await drain.drain(ledger_id, copied)
    finally:
        meter.end(ledger_id, reason)
    return reason


async def drain_all(
    ledgers: Iterable[int],
    drain: LedgerDrain,
    meter: DrainMeter,
    at_once: int,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Try each ledger once. What could not be drained is in `meter.blocked` afterwards.

    `stop`: no further ledger is begun once it says so; those in work are finished.
    """
    waiting = iter(ledgers)

    async def work() -> None:
        for ledger_id in waiting:
            if stop():
                return
            await drain_one(ledger_id, drain, meter)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
