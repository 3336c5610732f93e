"""The metadata service for the garbage collection threads: blocking calls onto the event loop's driver.

Invariants
- Every call ends: after `timeout` seconds, with `close`, or when the loop is closed, with `MetadataUnavailable`.
- At most `READS_AT_ONCE` ledgers are asked for at a time.
- An id that the cluster's layout cannot hold, which any client may write to, is one whose state is unknown.
- A service whose instance id differs from the one that the bookie started with is not asked anything, nor one that was
  put back to an older state (`metadata_witness`). What was found in one session says nothing of the next: a pass whose
  session has ended, or whose service is put back meanwhile, gets no answer.

Threads: the garbage collection threads; never the event loop (it would wait for itself).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as WaitTimeout
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

import structlog

from bookie_pod.storage.gc.storage import READS_PER_REQUEST, StillHeld
from bookie_protocol.errors import (
    BadRequest,
    MetadataDamaged,
    MetadataError,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataWentBack,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerRange, SessionState, Versioned
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 600.0
"""Seconds for looking at all copies of a ledger: where bookies list no entries, every entry is read."""

READS_AT_ONCE: Final = 4 * READS_PER_REQUEST
"""The thread waits for so many: what it costs to hand a question to the loop and the answer back is shared."""

_T = TypeVar("_T")
_Answer = LedgerMetadata | MetadataError | None


async def _at_once() -> None:
    """Do nothing: there is nothing to check."""


class LoopGcMetadata:
    """`GcMetadata` over an open service. `timeout`: seconds for each call (`zkTimeout`, doubled)."""

    def __init__(
        self,
        service: MetadataService,
        loop: asyncio.AbstractEventLoop,
        bookie_id: str,
        instance_id: str | None,
        timeout: float,
        is_whole: Callable[[int], Awaitable[bool]],
        check_seconds: float = CHECK_SECONDS,
        *,
        check_history: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """`is_whole`: whether a ledger has all its copies, asked of its bookies; no longer than `check_seconds`.
        `check_history` raises `MetadataWentBack` (`MetadataWitness.check`)."""
        self.bookie_id = bookie_id
        self._service = service
        self._loop = loop
        self._instance_id = instance_id
        self._timeout = timeout
        self._is_whole = is_whole
        self._check_seconds = check_seconds
        self._check_history = check_history
        self._guard = LedgerGuard(service)
        self._sessions_ended = 0
        self._interruptions = 0
        """Number of interrupted connections. Each may have ended a lock without our knowledge."""
        self._checked_in: int | None = None
        """The session (`_sessions_ended` of then) in which the service was checked last."""
        service.session.add_listener(self._on_session)
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self._closed = False

    def close(self) -> None:
        """End the calls that wait and refuse others, because the bookie stops. Any thread.

        So no thread waits for a service that does not answer.
        """
        with self._lock:
            self._closed = True
            running = list(self._running)
        for call in running:
            call.cancel()

    def _on_session(self, state: SessionState) -> None:
        self._sessions_ended += state is SessionState.EXPIRED
        self._interruptions += state is not SessionState.CONNECTED

    def check_instance(self) -> None:
        self._wait(self._check())

    async def _check(self) -> None:
        session = self._sessions_ended
        await self.check_service()
        self._checked_in = session

    async def check_service(self) -> None:
        """See `check_instance`. On the loop."""
        found = await self._service.cluster.instance_id(timeout=self._timeout)
        if found != self._instance_id:
            raise MetadataDamaged(
                f"the metadata service is that of cluster {found or '(none)'}, this bookie belongs to"
                f" {self._instance_id or '(none)'}: nothing is collected; check metadataServiceUri"
            )
        await self._check_history()

    def _check_session(self) -> None:
        if (position := self._service.session.went_back_to) is not None:  # a restored store may know the session
            raise MetadataWentBack(
                f"the metadata service answered at position {position}, after later ones, so it was put back to an"
                " older state: the next pass says what helps"
            )
        if self._checked_in not in (None, self._sessions_ended):
            raise MetadataUnavailable(
                "the session in which this pass began has ended: the next pass starts from the beginning"
            )

    def ranges(self) -> Iterator[LedgerRange]:
        listing = self._service.ledgers.ranges(timeout=self._timeout)

        async def following() -> LedgerRange | None:
            found = await anext(listing, None)
            self._check_session()
            return found

        while (span := self._wait(following())) is not None:
            yield span

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        return self._wait(self._read(ledger_id))

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        [answer] = await self._read_all([ledger_id])
        if isinstance(answer, MetadataError):
            raise answer
        return answer

    def read_many(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, _Answer]]:
        left = iter(ledger_ids)
        while ids := list(islice(left, READS_AT_ONCE)):
            try:
                answers: Sequence[_Answer] = self._wait(self._read_all(ids))
            except MetadataError as error:
                answers = [error] * len(ids)
            yield from zip(ids, answers, strict=True)

    async def _read_all(self, ledger_ids: Sequence[int]) -> list[_Answer]:
        # Not one by one with `read`: that a ledger is not there, and that the cluster is not, would be the same error.
        found = await self._service.ledgers.read_each(ledger_ids, timeout=self._timeout)
        self._check_session()
        return [_answer(each) for each in found]

    @contextmanager
    def re_replication_lock(self, ledger_id: int) -> Iterator[StillHeld | None]:
        interruptions = self._interruptions
        lock = self._wait(self._guard.lock(ledger_id, timeout=self._timeout))
        if lock is None:
            yield None
            return
        try:
            yield lambda: self._interruptions == interruptions
        finally:
            self._wait(self._guard.give_back(lock, timeout=self._timeout))

    def is_whole_elsewhere(self, ledger_id: int) -> bool:
        return self._wait(self._whole(ledger_id), self._check_seconds + self._timeout)

    async def _whole(self, ledger_id: int) -> bool:
        try:
            async with asyncio.timeout(self._check_seconds):
                return await self._is_whole(ledger_id)
        except MetadataError:
            raise
        except (
            Exception
        ) as error:  # the state of its copies is unknown; that must not end the search, and the pass with it
            _log.warning("ledger kept: its other copies could not be looked at", ledger=ledger_id, reason=repr(error))
            return False

    def _wait(self, call: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        limit = self._timeout * 2 if timeout is None else timeout
        with self._lock:
            try:
                if self._closed:
                    raise RuntimeError("closed")
                running = asyncio.run_coroutine_threadsafe(call, self._loop)
            except RuntimeError as error:
                call.close()
                raise MetadataUnavailable("the bookie has stopped") from error
            self._running.add(running)
        try:
            # The driver has its own time-out; this one is for a loop that stopped meanwhile.
            return running.result(limit)
        except WaitTimeout as error:
            running.cancel()
            raise MetadataUnavailable(f"no answer within {limit:g} s") from error
        except CancelledError as error:
            raise MetadataUnavailable("the bookie has stopped") from error
        finally:
            with self._lock:
                self._running.discard(running)


def _answer(found: Versioned[LedgerMetadata] | MetadataError | BadRequest) -> _Answer:
    if isinstance(found, MetadataNotFound):
        return None
    if isinstance(found, BadRequest):
        return MetadataDamaged(str(found))
    return found.value if isinstance(found, Versioned) else found
