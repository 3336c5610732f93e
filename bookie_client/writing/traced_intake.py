"""The intake of a client that has a tracer: each call is a span, and its first entry carries the span's context.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bookie_client.writing.intake import AddBatch, AddIntake, Waiter
from bookie_protocol.digest import Buffer

if TYPE_CHECKING:
    from bookie_client.tracing import CallTrace, CallTraces

T = TypeVar("T")
_CALL: Final[ContextVar[CallTrace | None]] = ContextVar("bookie_client.append", default=None)
"""The call whose entries are taken in. Entries that have waited for others (`submit_overdrawn`) belong to none."""


class TracedIntake(AddIntake):
    """See `AddIntake`."""

    def __init__(self, traces: CallTraces, *parts: Any, **sizes: Any) -> None:
        """`traces` begins the spans; the rest as for `AddIntake`."""
        super().__init__(*parts, **sizes)
        self._traces = traces

    def try_submit(self, payload: Buffer) -> asyncio.Future[int] | None:
        return None  # `submit` begins the span before it waits for room

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        return await self._traced(super().submit(payload))

    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[int]]:
        return await self._traced(super().submit_many(payloads))

    async def _traced(self, submitting: Awaitable[asyncio.Future[T]]) -> asyncio.Future[T]:
        trace = self._traces.append(self._state.ledger_id)
        call = _CALL.set(trace)
        try:
            waiter = await submitting
        except BaseException as error:
            trace.end(error)
            raise
        finally:
            _CALL.reset(call)
        waiter.add_done_callback(trace.end_appends)
        return waiter

    def _add(self, body: bytes, nbytes: int, waiter: Waiter) -> int:
        self._mark_next()
        return super()._add(body, nbytes, waiter)

    def _add_run(self, run: list[bytes], nbytes: int, batch: AddBatch) -> int:
        if run:
            self._mark_next()
        return super()._add_run(run, nbytes, batch)

    def _mark_next(self) -> None:
        trace = _CALL.get()
        if trace is not None and (mark := trace.take_mark()):
            self._outbox.marks[self._state.last_pushed + 1] = mark
