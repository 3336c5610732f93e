"""The writers that the gateway keeps, and their ends.

Invariants
- At most `max_open` writers are open, those that are being made included, and what clients gave with their creation is
  at most a part of the memory that clients may have; beyond, `TooManyRequests`.
- A writer belongs to one Append call at a time.
- Every writer ends: its client closes it, the call that made it ends, nothing was appended for `idle_seconds`, or the
  gateway stops. It ends with its ledger closed behind the last entry that was acknowledged; if the metadata service
  cannot tell, the ledger stays open, for a recovery to close.
- Idleness is counted in looks of this process, not in time: while it did not run, no client could append.
- A writer whose creation was cancelled half-way is ended too, once it exists.

Event loop only.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from bookie_client import Client, LedgerWriter
from bookie_client.writing.creation import NewLedger, create_writer
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.gateway.messages import given_bytes
from bookie_protocol.errors import (
    BadRequest,
    LedgerClosed,
    MetadataUnavailable,
    PodkeeperError,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.lasting import heard, lasting_task

GIVEN_SHARE: Final = 8
"""Divisor of the clients' memory that bounds what clients gave with all writers."""
LOOKS_PER_PERIOD: Final = 4
"""An idle writer is found at most a quarter of the period late."""

_log = structlog.get_logger(__name__)


class OpenWriter:
    """One writer. `on_idle` is set by the call that uses it at present, and ends that call."""

    __slots__ = ("given", "handle", "idle_looks", "on_idle", "password")

    def __init__(self, handle: LedgerWriter, password: bytes, given: int) -> None:
        self.handle = handle
        self.password = password
        self.given = given
        """Bytes that its client gave to be kept with it."""
        self.idle_looks = 0
        self.on_idle: Callable[[], None] | None = None

    @property
    def ledger_id(self) -> int:
        return self.handle.ledger_id


class OpenWriters:
    """All writers of one gateway, by ledger id; `start` before use."""

    def __init__(self, client: Client, memory: MemoryGovernor, *, max_open: int, idle_seconds: float) -> None:
        self._client = client
        self._share = memory.share(lambda: None)
        self._most_given = memory.limit // GIVEN_SHARE
        self._max_open = max_open
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._writers: dict[int, OpenWriter] = {}
        self._making: set[asyncio.Task[OpenWriter]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Writers that are open, being made or being ended."""
        return len(self._writers) + len(self._making) + len(self._ending)

    def start(self) -> None:
        """Begin to look for idle writers."""
        self._reaper = lasting_task(self._reap(), "end of idle writers")

    async def stop(self, timeout: float) -> None:
        """End all of them, within `timeout` seconds; those that are not closed by then are left to a recovery."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
        for making in self._making:
            making.cancel()
        for writer in list(self._writers.values()):
            self.end(writer)
        if self._ending or self._making:
            await asyncio.wait(self._ending | self._making, timeout=timeout)

    # --- one writer -----------------------------------------------------------------------------------------

    async def create(self, new: NewLedger) -> OpenWriter:
        """Create a ledger, and keep its writer. Raises `TooManyRequests`, and what `Client.create` raises."""
        if self.count >= self._max_open:
            raise TooManyRequests(
                f"this gateway has {self._max_open} writers open, as many as gatewayMaxOpenWriters allows: try another"
                " gateway, or later"
            )
        if self._share.held + given_bytes(new) > self._most_given:
            raise TooManyRequests(
                f"passwords and custom metadata of the writers that are open here take {self._share.held} bytes, of"
                f" {self._most_given} that there are: try another gateway, or later"
            )
        making = self._loop.create_task(self._make(new), name="create")
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._end_made)
            raise

    def take(self, ledger_id: int, password: bytes) -> OpenWriter:
        """A kept writer, for the one call that may use it. Raises `LedgerClosed` (not kept here), `Unauthorized`,
        `BadRequest` (another call uses it)."""
        writer = self._writers.get(ledger_id)
        if writer is None:
            raise LedgerClosed(
                f"this gateway has no open writer of ledger {ledger_id}: it was ended, or another gateway created it"
            )
        if not hmac.compare_digest(writer.password, password):
            raise Unauthorized(f"ledger {ledger_id} has another password")
        if writer.on_idle is not None:
            raise BadRequest(f"ledger {ledger_id}: another Append call uses its writer")
        return writer

    def holds(self, ledger_id: int) -> bool:
        """Return True if this gateway keeps the ledger's writer."""
        return ledger_id in self._writers

    def used(self, writer: OpenWriter) -> None:
        """Something was appended."""
        writer.idle_looks = 0

    def give_back(self, writer: OpenWriter) -> None:
        """The call is over, and the writer is kept."""
        writer.on_idle = None
        self.used(writer)

    async def close(self, writer: OpenWriter) -> None:
        """Close the ledger, and forget the writer. Raises as `LedgerWriter.close`; it is forgotten all the same.

        Who is cancelled here leaves the closing to itself, and `stop` waits for it.
        """
        self._forget(writer)
        await asyncio.shield(self._ends(writer.handle.close(), f"close ledger {writer.ledger_id}"))

    def end(self, writer: OpenWriter) -> None:
        """Close the ledger in the background, without a waiting caller."""
        if self._forget(writer):
            self._ends(self._end(writer), f"end ledger {writer.ledger_id}")

    # --- inside ---------------------------------------------------------------------------------------------

    def _forget(self, writer: OpenWriter) -> bool:
        """False if it was forgotten before."""
        if self._writers.pop(writer.ledger_id, None) is None:
            return False
        writer.on_idle = None  # the call has the writer, and would be kept by it
        self._share.hold(-writer.given)
        return True

    async def _make(self, new: NewLedger) -> OpenWriter:
        given = given_bytes(new)
        self._share.hold(given)
        try:
            handle = await create_writer(self._client.context, LedgerWriter, new)
        except BaseException as error:
            self._share.hold(-given)
            if not isinstance(error, MetadataUnavailable):
                raise
            which = "a ledger" if new.ledger_id is None else f"ledger {new.ledger_id}"
            raise MetadataUnavailable(f"{error}; {which} may have been created all the same, open and empty") from error
        writer = self._writers[handle.ledger_id] = OpenWriter(handle, new.password, given)
        return writer

    def _ends(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        ending = self._loop.create_task(work, name=name)
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        return ending

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        heard(ending)

    def _end_made(self, making: asyncio.Task[OpenWriter]) -> None:
        if not making.cancelled() and making.exception() is None:
            self.end(making.result())

    async def _end(self, writer: OpenWriter) -> None:
        try:
            await writer.handle.close()
        except PodkeeperError as error:
            _log.warning("ledger could not be closed", ledger=writer.ledger_id, error=str(error))

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / LOOKS_PER_PERIOD)
            for writer in list(self._writers.values()):
                writer.idle_looks += 1
                if writer.idle_looks <= LOOKS_PER_PERIOD or writer.handle.pending:
                    continue
                _log.info("idle writer ended", ledger=writer.ledger_id, after=writer.handle.last_add_confirmed)
                if writer.on_idle is not None:
                    writer.on_idle()
                else:
                    self.end(writer)
