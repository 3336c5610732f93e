"""The blocking client.

    with BlockingClient("zk+null://zk1:2181/ledgers") as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=b"secret") as ledger:
            ledger.append(b"first entry")
        with client.open(ledger.ledger_id, password=b"secret") as reader:
            for entry in reader.entries():
                print(entry.payload)

Works in scripts, threads, Spark tasks and notebooks (the notebook's own event loop is not used). One client serves any
number of threads; a process that was forked needs a client of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import NoReturn, TypeVar

from bookie_client.blocking.handles import (
    BlockingAdvancedLedgerWriter,
    BlockingLedgerReader,
    BlockingLedgerWriter,
    not_picklable,
)
from bookie_client.blocking.loop_thread import LoopEnded, LoopThread, iterate
from bookie_client.client import Client
from bookie_client.connection.network import Connector, tcp_connector
from bookie_client.connection.request import BookieInfo
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementChoice
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.creation import NewLedger, create_writer, takes_new_ledger
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService

_ID_BYTES = 8

T = TypeVar("T")


class BlockingClient:
    """A BookKeeper client with an event loop of its own on a background thread. Takes what `Client` takes.

    An open metadata service can be passed only if it is bound to no event loop.
    """

    def __init__(
        self,
        metadata: str | MetadataService,
        options: ClientOptions | None = None,
        *,
        placement: PlacementChoice | None = None,
        connector: Connector = tcp_connector,
        random: Random | None = None,
    ) -> None:
        self._client = Client(metadata, options, placement=placement, connector=connector, random=random)
        self._running: LoopThread | None = None
        self._last: LoopThread | None = None
        """The thread that runs or is being ended."""

    def __enter__(self) -> BlockingClient:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the background thread and connect to the metadata service. Raises as `Client.start`, and `RuntimeError`
        when it was started before."""
        if self._running is not None:
            raise RuntimeError("this client was started before")
        if self._last is not None:
            self._last.wait()  # another thread may be ending it
        thread = LoopThread("bookie client", self._client.close)
        try:
            thread.run(self._client.start)
        except BaseException:
            thread.stop()
            raise
        self._last = self._running = thread

    def close(self) -> None:
        """Close all connections and end the thread; waiting calls of other threads end with `RuntimeError`. Calling
        it again is fine: every call waits until the client is closed. Writers that were not closed before fail what is
        pending; their ledgers stay open."""
        thread, self._running = self._last, None
        if thread is None or thread.is_inherited:
            return  # what a fork left in the child has nothing to end there
        # Every call ends it, none waits for another: a signal handler may have interrupted the other one.
        try:
            with suppress(LoopEnded):
                thread.run(self._client.close)
        finally:
            thread.stop()

    # --- ledgers --------------------------------------------------------------------------------------------

    @takes_new_ledger
    def create(self, new: NewLedger) -> BlockingLedgerWriter:
        """Create a ledger and its writer's handle. Arguments and errors are those of `Client.create`."""
        writer = self._thread.run(create_writer, self._client.context, LedgerWriter, new)
        return BlockingLedgerWriter(self._thread, writer, self._client.context.traces)

    @takes_new_ledger
    def create_advanced(self, new: NewLedger) -> BlockingAdvancedLedgerWriter:
        """Create a ledger as `create` does, and return a handle whose entry ids the caller chooses."""
        writer = self._thread.run(create_writer, self._client.context, AdvancedLedgerWriter, new)
        return BlockingAdvancedLedgerWriter(self._thread, writer)

    def open(
        self,
        ledger_id: int,
        *,
        password: bytes | None = b"",
        digest: DigestType = DigestType.CRC32C,
        recover: bool = False,
    ) -> BlockingLedgerReader:
        """Open a ledger for reading. Arguments and errors are those of `Client.open`."""

        async def open_it() -> LedgerReader:
            return await self._client.open(ledger_id, password=password, digest=digest, recover=recover)

        return BlockingLedgerReader(self._thread, self._thread.run(open_it))

    def recover(
        self, ledger_id: int, *, password: bytes | None = b"", digest: DigestType = DigestType.CRC32C
    ) -> LedgerMetadata:
        """Close a ledger that its writer has not closed; returns its final metadata. Errors are those of
        `Client.recover`."""
        return self._thread.run(self._client.recover, ledger_id, password=password, digest=digest)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; a ledger that does not exist is fine. Raises `MetadataUnavailable`."""
        self._thread.run(self._client.delete, ledger_id)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's metadata. Raises `NoSuchLedger`, `MetadataUnavailable`."""
        return self._thread.run(self._client.metadata, ledger_id)

    def list(self) -> Iterator[int]:
        """The ids of all ledgers, ascending; complete, or iterating raises `MetadataUnavailable`."""
        return iterate(self._thread, self._client.list, lambda _: _ID_BYTES)

    def writable_bookies(self) -> frozenset[str]:
        """Ids of the bookies that take writes at present. Raises `MetadataUnavailable`."""
        return self._thread.run(self._client.writable_bookies)

    def quarantined_bookies(self) -> frozenset[str]:
        """Ids of the bookies that this client keeps out of new ensembles at present, for their many errors."""
        return self._thread.run(self._client.quarantined_bookies)

    def bookie_info(self, bookie_id: str) -> BookieInfo:
        """Total and free bytes of a bookie, as it says now. Raises `BookieUnavailable`, or what it answered."""
        return self._thread.run(self._client.bookie_info, bookie_id)

    # --- everything else --------------------------------------------------------------------------------------

    def run(self, function: Callable[[Client], Awaitable[T]]) -> T:
        """Await `function(client)` on this client's event loop, with the asynchronous client that is behind this one:
        for what has no blocking twin, such as `bookie_client.replication`. Returns or raises what it does.

            report = client.run(lambda each: LedgerChecker(each).check(ledger_id))
        """
        return self._thread.run(function, self._client)

    def iterate(
        self, make: Callable[[Client], AsyncIterator[T]], size_of: Callable[[T], int] = lambda _: _ID_BYTES
    ) -> Iterator[T]:
        """Iterate over what `make(client)` returns, read ahead on this client's event loop. `size_of`: the bytes of an
        item, which bound how far.

            for batch in client.iterate(lambda each: Streams(each).reader("orders").batches()):
                ...
        """
        return iterate(self._thread, lambda: make(self._client), size_of)

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _thread(self) -> LoopThread:
        if self._running is None:
            raise RuntimeError("this client is not open: use `with BlockingClient(...)`, or call start()")
        return self._running

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)


def parts_of(client: BlockingClient) -> tuple[LoopThread, Client]:
    """The thread of an open client and the client that runs there: for the other blocking twins of this package. Raises
    `RuntimeError` when it is not open."""
    return client._thread, client._client
