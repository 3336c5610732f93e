"""The open ledger of a stream's writer: units go to it until it is full, old, or fails; then the next one is begun.

Invariants
- One task (`run`) sends, ends and begins ledgers; nothing else does while it runs.
- A ledger is ended only when nothing that was sent to it is without an answer.
- After a failure nothing is acknowledged or sent again before the end of the failed ledger is known; what lies in front
  of it is acknowledged even if the stream has another owner by now, and nothing is sent again then.
- Failures in a row without an entry stored in between come at ever longer intervals, and end after `patience` seconds.

Event loop only.

Source: docs/internals/client-protocol.md, section 25, items 2 and 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from bookie_client.streams.appends import Appends, Unit
from bookie_client.streams.ledgers import LedgerEnd
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamSettings
from bookie_client.streams.owner import StreamOwner
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.errors import BadRequest, NoSuchStream, PodkeeperError, StreamFenced, Unauthorized, fresh
from bookie_protocol.logs import get_logger

FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 2.0
"""Seconds between two attempts; doubles."""

SWEEP_SECONDS: Final = 120.0
"""Seconds between two passes of retention by an idle writer: as a Pulsar broker does."""

TOGETHER: Final = 128
"""Appends of one entry each that are sent together, if so many are there at once."""

FINAL: Final = (StreamFenced, NoSuchStream, BadRequest, Unauthorized)
"""Trying again does not mend these."""

T = TypeVar("T")

_log = get_logger(__name__)


class RollingLedger:
    """`sweep`: removes what the stream's settings no longer keep; called now and then."""

    def __init__(
        self, owner: StreamOwner, appends: Appends, sweep: Callable[[], Awaitable[object]], *, patience: float
    ) -> None:
        self.name = owner.name
        self.token = owner.token
        self.appends = appends
        self._owner = owner
        self._sweep = sweep
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._ledger: LedgerWriter | None = None
        self._manifest: Manifest | None = None
        self._filling = Filling(StreamSettings(), 0.0)
        self._broken: BaseException | None = None
        self._recorded = False
        self._stopping = False
        self._wake = asyncio.Event()
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE
        self._sweeping: asyncio.Task[None] | None = None
        self._sweep_wanted = False
        self._sweep_at = self._loop.time() + SWEEP_SECONDS

    @property
    def ledger_id(self) -> int:
        return -1 if self._ledger is None else self._ledger.ledger_id

    # --- from outside ---------------------------------------------------------------------------------------

    async def begin(self, *, take_over: bool) -> None:
        """Become the owner, and begin a ledger. Raises as `StreamWriter.start`."""
        await self._owner.claim(take_over=take_over)
        try:
            self._opened(*await self._owner.begin(None))
        except StreamFenced:
            raise
        except PodkeeperError:
            with suppress(PodkeeperError):
                await self._owner.release()
            raise

    def put(self, unit: Unit) -> None:
        """A unit to be sent, for which the caller has room in the window."""
        self.appends.put(unit)
        self._wake.set()

    def stop(self) -> None:
        """Let `run` end as soon as nothing is left."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Send what is put, until `stop`. Raises what ends appending."""
        appends = self.appends
        while True:
            if self._broken is not None:
                await self._replace(self._broken)
            elif self._is_due():
                await self._roll_over()
            elif appends.unsent:
                await self._next()
            elif self._stopping and not appends.sent:
                return
            else:
                await self._wait()

    async def end(self) -> None:
        """End the ledger and give the stream up, once `run` has ended. Raises what keeps from it."""
        await self._stop_sweeping()
        end: LedgerEnd | None = None
        if self._ledger is not None and not self._recorded:
            assert self._manifest is not None
            end = await self._owner.finish(self._ledger, self._manifest)
            await self._owner.record(end)
        await self._owner.release()
        if end is not None and end.entries == 0:
            self._sweep_wanted = True  # writers that come and go without a word leave no ledgers behind
            await self._swept()

    async def abandon(self) -> None:
        """Leave everything to the next owner."""
        await self._stop_sweeping()

    # --- sending --------------------------------------------------------------------------------------------

    async def _next(self) -> None:
        ledger = self._current
        if not self.appends.unsent[0].payloads:
            await self._marked()
            return
        units = self._take()
        sent: asyncio.Future[Any]
        try:
            if len(units) == 1 and len(units[0].payloads) == 1:
                sent = await _begun(units[0], ledger.submit(units[0].payloads[0]))
            else:
                payloads = [payload for unit in units for payload in unit.payloads]
                sent = await _begun(units[0], ledger.submit_many(payloads))
        except PodkeeperError as error:
            self._broken = fresh(error)
        else:
            sent.add_done_callback(partial(self._answered, units, ledger.ledger_id))

    def _take(self) -> list[Unit]:
        """Return the next units, to be sent together: one, or several of one entry each."""
        appends, filling, ledger, now = self.appends, self._filling, self._current, self._loop.time()
        fitting = filling.fitting(now, appends.unsent[0].payloads)
        if fitting < len(appends.unsent[0].payloads):
            appends.split_next(fitting)
        first_id = ledger.last_add_pushed + 1
        units: list[Unit] = []
        while True:
            unit = appends.next_unit(ledger.ledger_id, first_id)
            first_id += len(unit.payloads)
            filling.add(len(unit.payloads), unit.nbytes)
            units.append(unit)
            if len(unit.payloads) > 1 or len(units) == TOGETHER or not appends.unsent:
                return units
            following = appends.unsent[0]
            if len(following.payloads) != 1 or filling.is_full(now, following.nbytes):
                return units

    async def _marked(self) -> None:
        """A call of `roll_over` has its turn."""
        if self._filling.entries:
            await self._roll_over()
        if self._broken is None:
            self.appends.passed()

    def _answered(self, units: list[Unit], ledger_id: int, sent: asyncio.Future[Any]) -> None:
        error = sent.exception()
        if units[0].sent_to != ledger_id:
            return  # the end of their ledger has reported it before
        if error is not None:
            self._broken = self._broken or fresh(error)
            self._wake.set()
            return
        for unit in units:
            self.appends.acknowledge(unit)
        self._progressed()
        if not self.appends.sent:
            self._wake.set()

    # --- the next ledger ------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Return True if the ledger must end before anything else is sent."""
        now, unsent = self._loop.time(), self.appends.unsent
        if self._filling.is_old(now):
            return True
        return bool(unsent and unsent[0].payloads) and self._filling.is_full(now, len(unsent[0].payloads[0]))

    async def _roll_over(self) -> None:
        """Fails by leaving `_broken`, or raises."""
        while self.appends.sent and self._broken is None:
            self._wake.clear()
            await self._wake.wait()
        if self._broken is None:
            await self._move_on(await self._persist(self._finish))

    async def _replace(self, error: BaseException) -> None:
        ledger = self._current
        _log.warning("a stream's ledger failed", stream=self.name, ledger=ledger.ledger_id, error=str(error))
        end = await self._persist(self._finish)
        if self.appends.settle(ledger.ledger_id, end.entries):
            self._progressed()
        if self._failing_since is not None:
            await self._back_off(error)
        else:
            self._failing_since = self._loop.time()
        await self._move_on(end)

    async def _move_on(self, end: LedgerEnd) -> None:
        try:
            self._opened(*await self._persist(lambda: self._owner.begin(end)))
        except PodkeeperError:
            self._recorded = True
            with suppress(PodkeeperError):
                await self._owner.record(end)
            raise
        if not self.appends.unsent:
            self._progressed()  # no caller waits
        self._start_sweeping()

    def _opened(self, manifest: Manifest, ledger: LedgerWriter) -> None:
        self._manifest, self._ledger = manifest, ledger
        self._filling = Filling(manifest.settings, self._loop.time())
        self._broken = None

    async def _finish(self) -> LedgerEnd:
        assert self._manifest is not None
        return await self._owner.finish(self._current, self._manifest)

    # --- patience -------------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        self._failing_since = None
        self._pause = FIRST_PAUSE

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the attempt, as soon as it gives one."""
        while True:
            try:
                return await attempt()
            except FINAL:
                raise
            except PodkeeperError as error:
                await self._back_off(error)

    async def _back_off(self, error: BaseException) -> None:
        """Wait before the next attempt. Raises `error` when patience has run out."""
        if self._failing_since is None:
            self._failing_since = self._loop.time()
        if self._loop.time() - self._failing_since >= self._patience:
            raise fresh(error)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE)

    async def _wait(self) -> None:
        """Wait until there is work to do; meanwhile the passing of time may create work for retention."""
        self._wake.clear()
        now = self._loop.time()
        if now >= self._sweep_at:
            self._start_sweeping()
        until_old = self._filling.seconds_until_old(now)
        until_sweep = self._sweep_at - now
        with suppress(TimeoutError):
            async with asyncio.timeout(until_sweep if until_old is None else min(until_old, until_sweep)):
                await self._wake.wait()

    # --- retention ------------------------------------------------------------------------------------------

    def _start_sweeping(self) -> None:
        self._sweep_at = self._loop.time() + SWEEP_SECONDS
        self._sweep_wanted = True  # one that runs may have looked before this ledger ended
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._loop.create_task(self._swept(), name=f"stream {self.name}: retention")

    async def _swept(self) -> None:
        while self._sweep_wanted:
            self._sweep_wanted = False
            try:
                await self._sweep()
            except PodkeeperError as error:
                _log.warning("retention of a stream could not be applied", stream=self.name, error=str(error))

    async def _stop_sweeping(self) -> None:
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait([sweeping])

    # --- what there is while it runs ------------------------------------------------------------------------

    @property
    def _current(self) -> LedgerWriter:
        assert self._ledger is not None, "the writer was not started"
        return self._ledger


@dataclass(slots=True)
class Filling:
    """The amount that was sent to one ledger."""

    settings: StreamSettings
    begun: float
    entries: int = 0
    nbytes: int = 0

    def add(self, entries: int, nbytes: int) -> None:
        """Count what was sent."""
        self.entries += entries
        self.nbytes += nbytes

    def is_old(self, now: float) -> bool:
        """Return True if the ledger must end although no entry comes. An empty one does not age."""
        return self.seconds_until_old(now) == 0

    def is_full(self, now: float, nbytes: int) -> bool:
        """Return True if the ledger must end before an entry of `nbytes` is sent."""
        settings = self.settings
        if not self.entries or now - self.begun < settings.min_ledger_seconds:
            return False
        return self.entries >= settings.max_ledger_entries or self.nbytes + nbytes > settings.max_ledger_bytes

    def fitting(self, now: float, payloads: Sequence[bytes]) -> int:
        """Return how many of these, from the first on, may be sent to the ledger; the first one always may."""
        settings = self.settings
        if len(payloads) <= 1 or now - self.begun < settings.min_ledger_seconds:
            return len(payloads)
        most = min(len(payloads), settings.max_ledger_entries - self.entries)
        count, nbytes = 0, self.nbytes
        while count < most and (nbytes := nbytes + len(payloads[count])) <= settings.max_ledger_bytes:
            count += 1
        return max(1, count)

    def seconds_until_old(self, now: float) -> float | None:
        """None: never, as long as nothing is sent."""
        if not self.entries:
            return None
        return max(0.0, self.begun + max(self.settings.max_ledger_seconds, self.settings.min_ledger_seconds) - now)


def _begun(first: Unit, call: Awaitable[T]) -> Awaitable[T]:
    """Return a call whose span, if there is one, is within that of the caller of its first unit."""
    return call if first.within is None else first.within(call)
