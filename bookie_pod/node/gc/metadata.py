"""The metadata service for the garbage collection threads: blocking calls onto the event loop's driver.

Invariants
- Every call ends: after `timeout` seconds, with `close`, or when the loop is closed, with `MetadataUnavailable`.
- At most `AT_ONCE` requests are under way.
- A service whose instance id differs from the one that the bookie started with is not asked anything.

Threads: the garbage collection threads; never the event loop (it would wait for itself).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as WaitTimeout
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerRange, MetadataService

AT_ONCE: Final = 64
"""Ledgers read together: as many as go into one request to ZooKeeper."""

_T = TypeVar("_T")
_Answer = LedgerMetadata | MetadataError | None


class LoopGcMetadata:
    """`GcMetadata` over an open service. `timeout`: seconds for each call (`zkTimeout`, doubled)."""

    def __init__(
        self,
        service: MetadataService,
        loop: asyncio.AbstractEventLoop,
        bookie_id: str,
        instance_id: str | None,
        timeout: float,
    ) -> None:
        self.bookie_id = bookie_id
        self._service = service
        self._loop = loop
        self._instance_id = instance_id
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self._closed = False

    def close(self) -> None:
        """The bookie stops: end the calls that wait and refuse others, so that nobody waits for a service that does not
        answer. Any thread."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for call in running:
            call.cancel()

    def check_instance(self) -> None:
        found = self._wait(self._service.cluster.instance_id(timeout=self._timeout))
        if found != self._instance_id:
            raise MetadataDamaged(
                f"the metadata service is that of cluster {found or '(none)'}, this bookie belongs to"
                f" {self._instance_id or '(none)'}: nothing is collected; check metadataServiceUri"
            )

    def ranges(self) -> Iterator[LedgerRange]:
        listing = self._service.ledgers.ranges(timeout=self._timeout)

        async def following() -> LedgerRange | None:
            return await anext(listing, None)

        while (span := self._wait(following())) is not None:
            yield span

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        return self._wait(self._read(ledger_id))

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._service.ledgers.read(ledger_id, timeout=self._timeout)).value
        except MetadataNotFound:
            return None

    def read_many(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, _Answer]]:
        left = iter(ledger_ids)
        while ids := list(islice(left, AT_ONCE)):
            try:
                answers: Sequence[_Answer] = self._wait(self._read_all(ids))
            except MetadataUnavailable as error:
                answers = [error] * len(ids)
            yield from zip(ids, answers, strict=True)

    async def _read_all(self, ledger_ids: Sequence[int]) -> list[_Answer]:
        return await asyncio.gather(*map(self._read_or_error, ledger_ids))

    async def _read_or_error(self, ledger_id: int) -> _Answer:
        try:
            return await self._read(ledger_id)
        except MetadataError as error:
            return error

    @contextmanager
    def re_replication_lock(self, ledger_id: int) -> Iterator[bool]:
        marks = self._service.under_replication
        try:
            lock = self._wait(marks.lock(ledger_id, timeout=self._timeout))
        except MetadataExists:
            yield False
            return
        try:
            yield True
        finally:
            self._wait(marks.release(lock, timeout=self._timeout))

    def _wait(self, call: Coroutine[Any, Any, _T]) -> _T:
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
            return running.result(self._timeout * 2)
        except WaitTimeout as error:
            running.cancel()
            raise MetadataUnavailable(f"no answer within {self._timeout * 2:g} s") from error
        except CancelledError as error:
            raise MetadataUnavailable("the bookie has stopped") from error
        finally:
            with self._lock:
                self._running.discard(running)
