"""Blocking programs on a virtual loop: jobs are written for threads, and a simulation has none.

A program gets a thread of its own, and runs only while the loop stands still for it: whatever it asks the cluster for,
and each access to a file, is handed to the loop, and the thread waits for the answer. So there is one order of events,
the same every time, and the program can be ended between any two effects.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

from bookie_client import Client
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.archive.files import Files, Listed

T = TypeVar("T")
BATCH = 3


class ProgramEnded(BaseException):
    """The process of a program is gone: nothing of it has any effect any more."""


class Steps:
    """One program at a time."""

    def __init__(self) -> None:
        self._asked = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        self._request: Callable[[], Awaitable[Any]] | None = None
        self._answer: tuple[Any, BaseException | None] = (None, None)

    async def run(self, program: Callable[[], T]) -> T:
        """Run it to its end, or until this task is cancelled."""
        outcome: list[tuple[Any, BaseException | None]] = []

        def main() -> None:
            try:
                outcome.append((program(), None))
            except BaseException as error:
                outcome.append((None, error))
            self._request = None
            self._asked.release()

        thread = threading.Thread(target=main, name="a blocking program", daemon=True)
        thread.start()
        cancelled: BaseException | None = None
        while True:
            self._asked.acquire()
            if self._request is None:
                break
            if cancelled is None:
                try:
                    self._answer = (await self._request(), None)
                except asyncio.CancelledError as error:
                    cancelled = error
                except Exception as error:
                    self._answer = (None, error)
            if cancelled is not None:
                self._answer = (None, ProgramEnded())
            self._answered.release()
        thread.join()
        if cancelled is not None:
            raise cancelled
        result, failure = outcome[0]
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]

    def call(self, request: Callable[[], Awaitable[T]]) -> T:
        """For the program: have this awaited on the loop."""
        self._request = request
        self._asked.release()
        self._answered.acquire()
        result, failure = self._answer
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]


class StepClient:
    """What jobs use of a `BlockingClient`."""

    def __init__(self, client: Client, steps: Steps) -> None:
        self._client = client
        self._steps = steps

    def run(self, function: Callable[[Client], Awaitable[T]]) -> T:
        return self._steps.call(lambda: function(self._client))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.run(lambda client: client.metadata(ledger_id))

    def delete(self, ledger_id: int) -> None:
        self.run(lambda client: client.delete(ledger_id))

    def open(self, ledger_id: int, *, password: bytes | None = b"") -> _Reader:
        async def opened(client: Client) -> LedgerReader:
            return await client.open(ledger_id, password=password)

        return _Reader(self._steps, self.run(opened))

    def create(self, **options: Any) -> _Writer:
        async def created(client: Client) -> LedgerWriter:
            return await client.create(**options)

        return _Writer(self._steps, self.run(created))


class _Reader:
    def __init__(self, steps: Steps, reader: LedgerReader) -> None:
        self._steps = steps
        self._reader = reader
        self.metadata = reader.metadata

    def batches(self, first: int, last: int) -> Iterator[list[LedgerEntry]]:
        for at in range(first, last + 1, BATCH):
            yield self._steps.call(lambda at=at: self._reader.read(at, min(last, at + BATCH - 1)))  # type: ignore[misc]

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self._steps.call(self._reader.close)


class _Writer:
    def __init__(self, steps: Steps, writer: LedgerWriter) -> None:
        self._steps = steps
        self._writer = writer

    def submit_many(self, payloads: Iterable[bytes]) -> Future[list[int]]:
        done: Future[list[int]] = Future()
        try:
            done.set_result(self._steps.call(lambda: self._writer.append_many(payloads)))
        except Exception as error:
            done.set_exception(error)
        return done

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self._steps.call(self._writer.close)


class StepFiles(Files):
    """Files whose every access takes a while, of `seconds` in the mean, and is an event."""

    def __init__(self, uri: str, steps: Steps, random: Random, seconds: float, on_access: Callable[[], None]) -> None:
        super().__init__(uri, "the archive")
        self._steps = steps
        self._random = random
        self._seconds = seconds
        self._on_access = on_access

    def _take_time(self) -> None:
        self._on_access()
        seconds = self._random.expovariate(1.0) * self._seconds
        self._steps.call(lambda: asyncio.sleep(seconds))

    def size(self, path: str) -> int | None:
        self._take_time()
        return super().size(path)

    def read(self, path: str) -> bytes:
        self._take_time()
        return super().read(path)

    def write(self, path: str, content: bytes, temporary: str) -> None:
        self._take_time()
        super().write(path, content, temporary)

    def move(self, path: str, to: str) -> None:
        self._take_time()
        super().move(path, to)

    def delete(self, path: str) -> None:
        self._take_time()
        super().delete(path)

    def delete_folder(self, path: str) -> None:
        self._take_time()
        super().delete_folder(path)

    def list(self, folder: str) -> Iterator[Listed]:
        self._take_time()
        return iter(sorted(super().list(folder), key=lambda listed: listed.path))

    def sync(self, path: str) -> None:
        """The disk of an archive does not fail here."""
