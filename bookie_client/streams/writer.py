"""The writer of a stream: its appends survive roll-overs, failed ledgers and the death of other writers.

Invariants
- Entries are in the stream in the order of the calls that appended them, each acknowledged one exactly once.
- An append whose ledger failed is sent again to the next ledger, unless the end of the failed one shows that it is in
  it.
- Only the owner named in the manifest appends. A writer that lost a compare-and-set to another one stops at once.
- What waits is bounded by the client's `write_window_entries` and `write_window_bytes`; beyond, callers wait in order.

Event loop only.

Source: docs/internals/client-protocol.md, section 25.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from bookie_client.client import Client
from bookie_client.streams.appends import Unit
from bookie_client.streams.model import StreamPosition
from bookie_client.streams.rolling import RollingLedger
from bookie_protocol.digest import Buffer, DigestType, as_bytes, digest_manager
from bookie_protocol.errors import BadRequest, LedgerClosed, PodkeeperError, StreamFenced, fresh
from bookie_protocol.lasting import Ending
from bookie_protocol.logs import get_logger

if TYPE_CHECKING:
    from bookie_client.tracing import CallTraces

UNIT_ENTRIES: Final = 256
UNIT_BYTES: Final = 1024 * 1024
"""Entries of one `submit_many` that are sent together."""

_log = get_logger(__name__)


class StreamWriter:
    """Appends to a stream. Made by `Streams.writer`; enter it with `async with`, or call `start` and `close`."""

    def __init__(self, client: Client, rolling: RollingLedger, *, take_over: bool) -> None:
        self.name = rolling.name
        self._client = client
        self._rolling = rolling
        self._take_over = take_over
        self._appends = rolling.appends
        self._max_payload = 0
        self._traces: CallTraces | None = None
        self._running: asyncio.Task[None] | None = None
        self._closes = False
        self._ending = Ending(f"close stream {self.name}")
        self._failure: BaseException | None = None
        self._abandoned = False

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def token(self) -> str:
        """Return the token that names this writer in the manifest."""
        return self._rolling.token

    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to; -1 before `start`."""
        return self._rolling.ledger_id

    @property
    def pending(self) -> int:
        """Entries that are neither acknowledged nor failed."""
        return self._appends.pending

    @property
    def failure(self) -> BaseException | None:
        """Return the error that ended appending before `close`; None if there was none."""
        return self._failure

    # --- appending ------------------------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> StreamPosition:
        """Append one entry and return its position once the ack quorum has it.

        A ledger that fails is replaced without the caller noticing more than the time that it takes. Raises
        `StreamFenced` (another writer took over), `NoSuchStream` (it was deleted), `BadRequest` (the entry does not fit
        a frame; nothing was sent), `LedgerClosed` (this writer was closed), and after `patience` what kept all ledgers
        from taking it. The writer takes no more entries after any of these but `BadRequest`; whether this one survives
        is unknown. Cancelling takes back an entry that still waits for room in the window, and no other.
        """
        return await (await self.submit(payload))

    async def submit(self, payload: Buffer) -> asyncio.Future[StreamPosition]:
        """Send one entry; returns a future that resolves as `append` does. Waits only while the window is full."""
        self._check()
        body = self._body(payload)
        await self._room(len(body))
        return self._put([body], len(body), is_single=True).future

    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[StreamPosition]]:
        """Send entries in order; one future for all of them, which costs much less. Raises what `payloads` raised, or
        what ended appending; what was sent before goes on."""
        self._check()
        units: list[Unit] = []
        chunk: list[bytes] = []
        nbytes = 0
        try:
            for payload in payloads:
                body = self._body(payload)
                if len(chunk) >= UNIT_ENTRIES or nbytes >= UNIT_BYTES:
                    units.append(self._put(chunk, nbytes))
                    chunk, nbytes = [], 0
                    await asyncio.sleep(0)
                    self._check()
                if not self._appends.window.try_acquire(len(body)):
                    if chunk:
                        units.append(self._put(chunk, nbytes))
                        chunk, nbytes = [], 0
                    await self._room(len(body))
                chunk.append(body)
                nbytes += len(body)
        finally:
            if chunk:
                units.append(self._put(chunk, nbytes))
        return _all_of(units)

    async def append_many(self, payloads: Iterable[Buffer]) -> list[StreamPosition]:
        """Append entries in order, pipelined; returns their positions once all are acknowledged."""
        return await (await self.submit_many(payloads))

    async def flush(self) -> None:
        """Wait until everything submitted has ended. Raises what ended appending, if something did."""
        await self._appends.idle()
        if self._failure is not None:
            raise fresh(self._failure)

    async def roll_over(self) -> None:
        """End the ledger behind everything that was submitted before, and begin the next one; a ledger without entries
        stays. Raises as `append`."""
        self._check()
        await self._put([], 0).future

    # --- the handle -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the stream over: fence and recover the last ledger if another writer left it open, record its end (an
        empty one is dropped), begin a new ledger. Raises `NoSuchStream`, `StreamInUse`, `StreamFenced` (another writer
        came in between), and what recovering and creating a ledger raise."""
        if self._running is not None:
            raise RuntimeError("this writer was started before")
        context = self._client.context
        self._traces = context.traces
        overhead = max(digest_manager(each, b"").overhead for each in DigestType)
        self._max_payload = context.options.max_frame_size - context.pool.dialect.add_overhead - overhead
        await self._rolling.begin(take_over=self._take_over)
        context.open_handles.add(self._abandon)
        self._running = asyncio.get_running_loop().create_task(self._run(), name=f"stream {self.name}: appends")

    async def close(self) -> None:
        """Wait for pending appends to end, close the ledger, record its end (an empty one is dropped), and give the
        stream up. Calling it again gives the first call's result; cancelling does not stop it. An earlier failure of
        appends is not raised again. Raises `MetadataUnavailable` if the outcome is unknown: the next writer finds
        the end then."""
        if self._running is None:
            return
        self._closes = True
        await self._ending.reach(self._close)

    async def __aenter__(self) -> StreamWriter:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Raises what ended appending, so that no append fails unseen; an error of the body goes first."""
        try:
            await self.close()
        except PodkeeperError as problem:
            if error is None:
                raise
            _log.warning("stream could not be closed", stream=self.name, error=str(problem))
        if error is None and self._failure is not None:
            raise fresh(self._failure)

    # --- inside ---------------------------------------------------------------------------------------------

    def _body(self, payload: Buffer) -> bytes:
        body = as_bytes(payload)
        if len(body) > self._max_payload:
            raise BadRequest(
                f"stream {self.name}: an entry of {len(body)} bytes is larger than the {self._max_payload} that fit a"
                " frame (max_frame_size): split it"
            )
        return body

    async def _room(self, nbytes: int) -> None:
        self._check()
        window = self._appends.window
        if not window.try_acquire(nbytes):
            await window.acquire(nbytes)
            try:
                self._check()
            except BaseException:
                window.release(1, nbytes)
                raise

    def _check(self) -> None:
        if self._failure is not None:
            raise fresh(self._failure)
        if self._running is None:
            raise RuntimeError("this writer was not started: use `async with`, or call start()")
        if self._closes:
            raise LedgerClosed(f"stream {self.name}: this writer was closed")

    def _put(self, payloads: list[bytes], nbytes: int, *, is_single: bool = False) -> Unit:
        unit = Unit(payloads, nbytes, is_single=is_single, loop=asyncio.get_running_loop())
        if self._traces is not None:
            unit.within = self._traces.here()
        try:
            self._check()
        except BaseException as error:
            self._appends.window.release(unit.room, nbytes)
            unit.fail(error)
        else:
            self._rolling.put(unit)
        return unit

    async def _run(self) -> None:
        try:
            await self._rolling.run()
        except asyncio.CancelledError:
            raise
        except PodkeeperError as error:
            self._failed(error)
        except Exception as error:  # a defect, or the client was closed: no caller may wait for ever
            self._failed(LedgerClosed(f"stream {self.name}: appending ended: {error!r}"))

    def _failed(self, error: BaseException) -> None:
        _log.warning("stream cannot be appended to any more", stream=self.name, error=str(error))
        self._failure = fresh(error)
        self._appends.fail_all(error)

    async def _close(self) -> None:
        assert self._running is not None
        if self._abandoned:
            return
        self._rolling.stop()
        await asyncio.wait([self._running])
        self._client.context.open_handles.discard(self._abandon)
        try:
            await self._rolling.end()
        except StreamFenced as error:
            # Everything that was appended has ended; who took over records the end.
            _log.info("stream was taken over before it was closed", stream=self.name, error=str(error))
        except PodkeeperError:
            if self._failure is None:
                raise

    async def _abandon(self) -> None:
        """The client closes while this writer is open: the ledger is left to the next writer."""
        self._abandoned = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._rolling.abandon()
        if self._failure is None:
            self._failure = LedgerClosed(f"stream {self.name}: the client was closed before this writer")
            self._appends.fail_all(fresh(self._failure))


def _all_of(units: list[Unit]) -> asyncio.Future[list[StreamPosition]]:
    """Return all their positions. Units end in order, and when one fails all behind it do."""
    future: asyncio.Future[list[StreamPosition]] = asyncio.get_running_loop().create_future()

    def ended(last: asyncio.Future[list[StreamPosition]]) -> None:
        if future.done():
            return
        failed = next((error for unit in units if (error := unit.future.exception()) is not None), None)
        if failed is not None:
            future.set_exception(failed)
            future.exception()
        else:
            future.set_result([position for unit in units for position in unit.positions])

    if units:
        units[-1].future.add_done_callback(ended)
    else:
        future.set_result([])
    return future
