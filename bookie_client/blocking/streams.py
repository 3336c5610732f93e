"""Streams of ledgers without an event loop: each call as in the asynchronous class of the same name.

    with BlockingClient("zk+null://zk1:2181/ledgers") as client:
        streams = BlockingStreams(client)
        streams.create("orders", if_absent=True)
        with streams.writer("orders") as writer:
            writer.append(b"first")
        for entry in streams.reader("orders").entries():
            print(entry.payload)

Any thread but the client's own; any number of threads may share these, and appends of one thread keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from bookie_client.blocking.appends import AppendQueue, all_of
from bookie_client.blocking.client import BlockingClient, parts_of
from bookie_client.blocking.handles import not_picklable, size_of
from bookie_client.blocking.loop_thread import LoopThread, iterate
from bookie_client.reading.entry import LedgerEntry, payload_bytes
from bookie_client.streams.cursors import StreamCursor
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import PublishedLedger, StreamPosition, StreamSettings, Txn
from bookie_client.streams.publishing import PublishResult
from bookie_client.streams.reader import From, StreamReader
from bookie_client.streams.streams import Streams
from bookie_client.streams.writer import StreamWriter
from bookie_protocol.digest import Buffer

if TYPE_CHECKING:
    from bookie_client.tracing import CallTraces

_MANIFEST_BYTES = 64 * 1024


class BlockingStreams:
    """The streams of a cluster. Arguments and errors are those of `Streams`."""

    def __init__(self, client: BlockingClient, *, password: bytes | None = b"", tail_cache_bytes: int = 0) -> None:
        self._thread, asynchronous = parts_of(client)
        self._traces = asynchronous.context.traces
        self._streams = Streams(asynchronous, password=password, tail_cache_bytes=tail_cache_bytes)

    # --- streams --------------------------------------------------------------------------------------------

    def create(self, name: str, settings: StreamSettings | None = None, *, if_absent: bool = False) -> Manifest:
        """Create a stream without ledgers. Raises `StreamExists`, unless `if_absent`."""
        return self._thread.run(self._streams.create, name, settings, if_absent=if_absent)

    def manifest(self, name: str) -> Manifest:
        """Return the stream as it is now."""
        return self._thread.run(self._streams.manifest, name)

    def settings(self, name: str) -> StreamSettings:
        """Return the settings of a stream, which take one read however long its list is."""
        return self._thread.run(self._streams.settings, name)

    def names(self) -> frozenset[str]:
        """Return the names of all streams."""
        return self._thread.run(self._streams.names)

    def watch(self, name: str) -> Iterator[Manifest]:
        """The stream now, then each newer state of it. Raises as `Streams.watch`."""
        return iterate(self._thread, lambda: self._streams.watch(name), lambda _: _MANIFEST_BYTES)

    def configure(self, name: str, settings: StreamSettings) -> Manifest:
        """Change the settings."""
        return self._thread.run(self._streams.configure, name, settings)

    def delete(self, name: str, *, with_ledgers: bool = True, force: bool = False) -> tuple[int, ...]:
        """Delete a stream; returns the ids of the ledgers that went with it."""
        return self._thread.run(self._streams.delete, name, with_ledgers=with_ledgers, force=force)

    # --- what goes in ---------------------------------------------------------------------------------------

    def writer(self, name: str, *, take_over: bool = True, patience: float = 60.0) -> BlockingStreamWriter:
        """Return a writer, to be entered with `with`, which takes the stream over from any other writer."""

        async def make() -> StreamWriter:
            return self._streams.writer(name, take_over=take_over, patience=patience)

        return BlockingStreamWriter(self._thread, self._thread.run(make), self._traces)

    def publish(
        self,
        name: str,
        ledgers: Sequence[PublishedLedger],
        txn: Txn | None = None,
        *,
        replace: bool = False,
        behind: int | None = None,
    ) -> PublishResult:
        """Add closed ledgers to the end of the stream, all or none, each batch of an application once."""
        return self._thread.run(self._streams.publish, name, ledgers, txn, replace=replace, behind=behind)

    def seal(self, name: str) -> Manifest:
        """Recover and close the open ledger that a dead writer left."""
        return self._thread.run(self._streams.seal, name)

    # --- what comes out -------------------------------------------------------------------------------------

    def reader(self, name: str) -> BlockingStreamReader:
        """Return a reader; it needs no closing."""
        return BlockingStreamReader(self._thread, self._streams.reader(name))

    def end(self, name: str) -> StreamPosition:
        """Return the position behind the last entry that can be read now."""
        return self._thread.run(self._streams.end, name)

    # --- what goes away -------------------------------------------------------------------------------------

    def truncate(self, name: str, before: StreamPosition, *, force: bool = False) -> tuple[int, ...]:
        """Make everything before a position unreadable; returns the ids of the ledgers that were deleted."""
        return self._thread.run(self._streams.truncate, name, before, force=force)

    def apply_retention(self, name: str) -> tuple[int, ...]:
        """Delete the ledgers that the settings no longer keep; returns their ids."""
        return self._thread.run(self._streams.apply_retention, name)

    def retired(self, name: str) -> frozenset[int]:
        """Ids of ledgers that were taken out of the stream and are not deleted yet."""
        return self._thread.run(self._streams.retired, name)

    # --- cursors --------------------------------------------------------------------------------------------

    def cursor(self, name: str, cursor_id: str) -> StreamCursor:
        """Return a cursor. Raises `NoSuchStream`."""
        return self._thread.run(self._streams.cursor, name, cursor_id)

    def cursors(self, name: str) -> Mapping[str, StreamCursor]:
        """Return all cursors of a stream, by id."""
        return self._thread.run(self._streams.cursors, name)

    def move_cursor(self, name: str, cursor_id: str, position: StreamPosition) -> StreamCursor:
        """Store how far a consumer is; only forwards. Returns what is stored then."""
        return self._thread.run(self._streams.move_cursor, name, cursor_id, position)

    def delete_cursor(self, name: str, cursor_id: str) -> None:
        """Forget a cursor; one that does not exist is fine."""
        self._thread.run(self._streams.delete_cursor, name, cursor_id)

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)


class BlockingStreamWriter:
    """Appends to a stream. Made by `BlockingStreams.writer`; enter it with `with`, or call `start` and `close`."""

    def __init__(self, thread: LoopThread, writer: StreamWriter, traces: CallTraces | None) -> None:
        self._thread = thread
        self._writer = writer
        self._appends = AppendQueue(thread, writer, traces)
        self.name = writer.name

    @property
    def token(self) -> str:
        """Return the token that names this writer in the manifest."""
        return self._writer.token

    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to; -1 before `start`."""
        return self._writer.ledger_id

    @property
    def pending(self) -> int:
        """Entries that were sent and are neither acknowledged nor failed."""
        return self._writer.pending

    @property
    def failure(self) -> BaseException | None:
        """Return the error that ended appending before `close`; None if there was none."""
        return self._writer.failure

    def start(self) -> None:
        """Take the stream over. Raises as `StreamWriter.start`."""
        self._thread.run(self._writer.start)

    def append(self, payload: Buffer) -> StreamPosition:
        """Append one entry and return its position once the ack quorum has it. Raises as `StreamWriter.append`.

        Interrupting the wait does not take the entry back.
        """
        return self._appends.submit(payload).result()

    def submit(self, payload: Buffer) -> Future[StreamPosition]:
        """Send one entry; returns a future of its position. Waits only while the window is full.

        Call-backs of the future run on the client's own thread: they must not block, and must not call this client.
        """
        return self._appends.submit(payload)

    def submit_many(self, payloads: Iterable[Buffer]) -> Future[list[StreamPosition]]:
        """Send entries in order; one future for all of them."""
        return all_of(self._appends.submit_many(payloads))

    def append_many(self, payloads: Iterable[Buffer]) -> list[StreamPosition]:
        """Append entries in order, pipelined; returns their positions once all are acknowledged. Entries of other
        threads may come in between."""
        return self.submit_many(payloads).result()

    def flush(self) -> None:
        """Wait until everything submitted has ended. Raises what ended appending, if something did."""
        self._appends.wait_sent()
        self._thread.run(self._writer.flush)

    def roll_over(self) -> None:
        """End the ledger behind everything that was submitted before, and begin the next one."""
        self._appends.wait_sent()
        self._thread.run(self._writer.roll_over)

    def close(self) -> None:
        """Wait for pending appends to end, close the ledger and record its end. Calling it again is fine."""
        self._appends.wait_sent()
        self._thread.run(self._writer.close)

    def __enter__(self) -> BlockingStreamWriter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._appends.wait_sent()
        self._thread.run(self._writer.__aexit__, kind, error, trace)

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)


class BlockingStreamReader:
    """Reads one stream. Made by `BlockingStreams.reader`."""

    def __init__(self, thread: LoopThread, reader: StreamReader) -> None:
        self._thread = thread
        self._reader = reader
        self.name = reader.name

    def end(self) -> StreamPosition:
        """Return the position behind the last entry that can be read now."""
        return self._thread.run(self._reader.end)

    def batches(self, start: From = "earliest", to: StreamPosition | None = None) -> Iterator[Sequence[LedgerEntry]]:
        """Entries from `start` up to, not including, `to`, some at a time. Raises as `StreamReader.batches`."""
        return iterate(self._thread, lambda: self._reader.batches(start, to), payload_bytes)

    def entries(self, start: From = "earliest", to: StreamPosition | None = None) -> Iterator[LedgerEntry]:
        """The same entries one by one."""
        return chain.from_iterable(self.batches(start, to))

    def tail(self, start: From = "latest") -> Iterator[LedgerEntry]:
        """Entries from `start` on as they become confirmed, without an end. Raises as `StreamReader.tail`; closing the
        client ends it."""
        return iterate(self._thread, lambda: self._reader.tail(start), size_of)

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)
