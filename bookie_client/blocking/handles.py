"""The ledger handles of `BlockingClient`: each call as in the asynchronous handle of the same name.

Invariants
- A handle may be used by several threads at once.
- What a property tells is the state of that moment.

Any thread but the client's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypeVar

from bookie_client.blocking.appends import AppendQueue, all_of, as_future
from bookie_client.blocking.loop_thread import LoopThread, iterate
from bookie_client.reading.entry import LedgerEntry, payload_bytes
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter, WriteHandle
from bookie_protocol.digest import Buffer
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata

if TYPE_CHECKING:
    from bookie_client.tracing import CallTraces

Writer = TypeVar("Writer", bound=WriteHandle)


def size_of(entry: LedgerEntry) -> int:
    """Bytes that an entry counts for in a bounded buffer."""
    return len(entry.payload)


class BlockingWriteHandle(Generic[Writer]):
    """The base of the blocking write handles."""

    def __init__(self, thread: LoopThread, writer: Writer) -> None:
        self._thread = thread
        self._writer = writer

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger's id: what readers open it by."""
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last stored it."""
        return self._writer.metadata

    @property
    def is_closed(self) -> bool:
        """Return True once this writer has stored the end of the ledger."""
        return self._writer.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry id such that it and all before are acknowledged, and with deferred sync forced; -1 if
        none."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The highest entry id that was sent."""
        return self._writer.last_add_pushed

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to `last_add_confirmed`."""
        return self._writer.length

    @property
    def pending(self) -> int:
        """Entries that were sent and are neither acknowledged nor failed."""
        return self._writer.pending

    @property
    def ensemble_changes(self) -> int:
        """Return the number of times this writer began to replace failed bookies."""
        return self._writer.ensemble_changes

    @property
    def degraded(self) -> Mapping[int, str]:
        """Positions that get no entries at present: their bookie failed and there is no spare."""
        return self._writer.degraded

    @property
    def failure(self) -> PodkeeperError | None:
        """Return the error that ended appending before `close`; None if there was none."""
        return self._writer.failure

    # --- what is sent ---------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything submitted has ended. Raises what ended appending, if something did."""
        self._hand_over()
        self._thread.run(self._writer.flush)

    def force(self) -> None:
        """Make durable what was acknowledged before this call. Raises as `LedgerWriter.force`."""
        self._thread.run(self._writer.force)

    # --- reading what is confirmed --------------------------------------------------------------------------

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included, up to `last_add_confirmed`. Raises as `LedgerReader.entries`."""
        return self._thread.run(self._writer.read, first, last)

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[LedgerEntry]:
        """Iterate over entries in order, by default up to `last_add_confirmed` as it is now. Raises as
        `LedgerReader.entries`."""
        return iterate(self._thread, lambda: self._writer.entries(first, last), size_of)

    # --- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for pending appends to end, then store the end of the ledger in its metadata. Raises as
        `LedgerWriter.close`, and calling it again does the same."""
        self._hand_over()
        self._thread.run(self._writer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hand_over()
        self._thread.run(self._writer.__aexit__, kind, error, trace)

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

    def _hand_over(self) -> None:
        """Wait until the writer has what this handle was given before."""


class BlockingLedgerWriter(BlockingWriteHandle[LedgerWriter]):
    """Appends to one ledger. Made by `BlockingClient.create`; a context manager, which closes it."""

    def __init__(self, thread: LoopThread, writer: LedgerWriter, traces: CallTraces | None) -> None:
        super().__init__(thread, writer)
        self._appends = AppendQueue(thread, writer, traces)

    def append(self, payload: Buffer) -> int:
        """Append one entry and return its id once the ack quorum has it. Raises as `LedgerWriter.append`.

        Interrupting the wait does not take the entry back.
        """
        return self._appends.submit(payload).result()

    def submit(self, payload: Buffer) -> Future[int]:
        """Send one entry; returns a future of its id. Waits only while the window is full. Errors are those of
        `LedgerWriter.append`, and come with the future.

        Call-backs of the future run on the client's own thread: they must not block, and must not call this client.
        """
        return self._appends.submit(payload)

    def submit_many(self, payloads: Iterable[Buffer]) -> Future[list[int]]:
        """Send entries in order, as `submit` does; one future for all of them."""
        return all_of(self._appends.submit_many(payloads))

    def append_many(self, payloads: Iterable[Buffer]) -> list[int]:
        """Append entries in order, pipelined; returns their ids once all are acknowledged. Entries of other threads
        may come in between. Raises as `append`."""
        return self.submit_many(payloads).result()

    def _hand_over(self) -> None:
        self._appends.wait_sent()


class BlockingAdvancedLedgerWriter(BlockingWriteHandle[AdvancedLedgerWriter]):
    """Appends entries whose ids the caller gives. Made by `BlockingClient.create_advanced`."""

    def append(self, entry_id: int, payload: Buffer) -> int:
        """Append an entry and return its id once it and all in front of it are acknowledged. Raises as
        `AdvancedLedgerWriter.append`."""
        return self._thread.run(self._writer.append, entry_id, payload)

    def submit(self, entry_id: int, payload: Buffer) -> Future[int]:
        """Send an entry, or keep it until those in front of it have come; returns a future of its id.

        Waits while the window is full, or too much waits behind a gap.
        """

        async def submit() -> Future[int]:
            return as_future(await self._writer.submit(entry_id, payload))

        return self._thread.run(submit)


class BlockingLedgerReader:
    """Reads one ledger. Made by `BlockingClient.open`; also a context manager."""

    def __init__(self, thread: LoopThread, reader: LedgerReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader knows it."""
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        """Return True if the ledger is closed, so that its end is final."""
        return self._reader.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read, as far as this reader knows; -1 if none."""
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all entries of a closed ledger; 0 while it is open."""
        return self._reader.length

    @property
    def served_by(self) -> Mapping[str, int]:
        """Return the number of entries that each bookie served through this handle."""
        return self._reader.served_by

    @property
    def damaged_at(self) -> Mapping[str, int]:
        """Return the number of replicas with a wrong digest that each bookie returned."""
        return self._reader.damaged_at

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger is confirmed. Raises as `LedgerReader.read_last_add_confirmed`."""
        return self._thread.run(self._reader.read_last_add_confirmed)

    def try_read_last_add_confirmed(self) -> int:
        """Read the last add confirmed, and return at the first answer that is newer than the known one.

        Raises the errors of `LedgerReader.try_read_last_add_confirmed`."""
        return self._thread.run(self._reader.try_read_last_add_confirmed)

    def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included; one bad entry fails the whole range. Raises as
        `LedgerReader.entries`."""
        return self._thread.run(self._reader.read, first, last)

    def read_payloads(self, first: int, last: int) -> list[bytes | memoryview]:
        """Return the payloads alone, which costs less than `read`. See `LedgerReader.read_payloads`."""
        return self._thread.run(self._reader.read_payloads, first, last)

    def read_ahead(self, nbytes: int) -> None:
        """See `LedgerReader.read_ahead`."""
        self._reader.read_ahead(nbytes)

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[LedgerEntry]:
        """Iterate over entries in order, by default up to the last one confirmed. Raises as
        `LedgerReader.entries`."""
        return chain.from_iterable(self.batches(first, last))

    def batches(self, first: int = 0, last: int | None = None) -> Iterator[Sequence[LedgerEntry]]:
        """The same entries, some at a time, which costs less per entry. Raises as `entries`."""
        return iterate(self._thread, lambda: self._reader.batches(first, last), payload_bytes)

    def read_unconfirmed(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries of an open ledger, whether they are confirmed or not. See `LedgerReader.read_unconfirmed`."""
        return self._thread.run(self._reader.read_unconfirmed, first, last)

    def tail(self, start: int = 0) -> Iterator[LedgerEntry]:
        """Iterate over entries from `start` on as they become confirmed; ends when the ledger is closed and read to
        its end. Waits in between for as long as it takes; closing the reader or the client ends it. Raises as
        `LedgerReader.tail`."""
        return iterate(self._thread, lambda: self._reader.tail(start), size_of)

    def close(self) -> None:
        """Stop following the ledger; tails end with `LedgerClosed`. Calling it again is fine."""
        self._thread.run(self._reader.close)

    def __enter__(self) -> BlockingLedgerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._reader.__aexit__, kind, error, trace)

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)


def not_picklable(thing: object) -> TypeError:
    """Return the error for a program that pickles a client, as a Spark closure does."""
    return TypeError(
        f"a {type(thing).__name__} cannot be sent to another process: make the client where it is used,"
        " in Spark inside the function given to mapPartitions"
    )
