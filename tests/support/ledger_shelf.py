"""A blocking client whose metadata are real, in an embedded store of this process, and whose ledgers are lists of
payloads: for what moves closed ledgers about and does not care for bookies.

    with LedgerShelf(folder) as shelf:
        shelf.put(7, [b"one", b"two"])
        with shelf.open(7) as reader: ...

One thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from bookie_client import BlockingClient
from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import NoSuchLedger, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

BATCH = 3


class ShelfReader:
    def __init__(self, metadata: LedgerMetadata, payloads: Sequence[bytes], before_batch: Callable[[], None]) -> None:
        self.metadata = metadata
        self._payloads = payloads
        self._before_batch = before_batch

    def batches(self, first: int = 0, last: int | None = None) -> Iterator[list[LedgerEntry]]:
        end = len(self._payloads) if last is None else last + 1
        length = 0
        for start in range(first, end, BATCH):
            self._before_batch()
            batch = []
            for entry_id in range(start, min(start + BATCH, end)):
                length += len(self._payloads[entry_id])
                batch.append(LedgerEntry(self.metadata.ledger_id, entry_id, length, self._payloads[entry_id]))
            yield batch

    def __enter__(self) -> ShelfReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ShelfWriter:
    def __init__(self, shelf: LedgerShelf, ledger_id: int, payloads: list[bytes]) -> None:
        self._shelf = shelf
        self.ledger_id = ledger_id
        self._payloads = payloads

    def submit_many(self, payloads: Iterable[bytes]) -> Future[list[int]]:
        first = len(self._payloads)
        self._payloads += payloads
        done: Future[list[int]] = Future()
        done.set_result(list(range(first, len(self._payloads))))
        return done

    def close(self) -> None:
        self._shelf.close_ledger(self.ledger_id)

    def __enter__(self) -> ShelfWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()


class LedgerShelf(BlockingClient):
    """`before_batch` is called before each batch that is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"file://{folder}/metadata")
        self.before_batch: Callable[[], None] = lambda: None
        self._payloads: dict[int, list[bytes]] = {}

    def start(self) -> None:
        super().start()
        self.run(lambda client: client.metadata_service.cluster.initialize())

    def put(
        self,
        ledger_id: int,
        payloads: Sequence[bytes],
        *,
        state: LedgerState = LedgerState.CLOSED,
        custom: Mapping[str, bytes] | None = None,
        created_ms: int | None = 1_700_000_000_000,
        password: bytes = b"secret",
        format_version: int = 3,
    ) -> LedgerMetadata:
        closed = state is LedgerState.CLOSED
        metadata = LedgerMetadata(
            ledger_id,
            1,
            1,
            1,
            {0: ("bookie-1",)},
            state,
            len(payloads) - 1 if closed else -1,
            sum(map(len, payloads)) if closed else 0,
            digest_type=DigestType.CRC32C,
            password=password,
            ctime=created_ms,
            store_ctime=created_ms is not None,
            custom_metadata=custom or {},
            format_version=format_version,
        )
        self._payloads[ledger_id] = list(payloads)
        self.run(lambda client: client.metadata_service.ledgers.create(metadata))
        return metadata

    def create(  # type: ignore[override]
        self,
        *,
        ensemble: int,
        write_quorum: int,
        ack_quorum: int,
        password: bytes,
        digest: DigestType,
        metadata: Mapping[str, bytes],
        ledger_id: int | None = None,
        restored: bool = False,
    ) -> ShelfWriter:
        if ledger_id is None:
            ledger_id = self.run(lambda client: client.metadata_service.ledgers.generate_id())
        made = LedgerMetadata(
            ledger_id,
            ensemble,
            write_quorum,
            ack_quorum,
            {0: tuple(f"bookie-{number}" for number in range(ensemble))},
            digest_type=digest,
            password=password,
            custom_metadata=metadata,
        )
        self.run(lambda client: client.metadata_service.ledgers.create(made))
        payloads = self._payloads[ledger_id] = []
        return ShelfWriter(self, ledger_id, payloads)

    def close_ledger(self, ledger_id: int) -> None:
        payloads = self._payloads[ledger_id]
        found = self.run(lambda client: client.stored_metadata(ledger_id))
        closed = found.value.closed(len(payloads) - 1, sum(map(len, payloads)))
        self.run(lambda client: client.metadata_service.ledgers.write(closed, found.identity))

    def payloads(self, ledger_id: int) -> list[bytes]:
        return self._payloads[ledger_id]

    def open(self, ledger_id: int, *, password: bytes | None = b"", **_: object) -> ShelfReader:  # type: ignore[override]
        metadata = self.metadata(ledger_id)
        if password is not None and password != metadata.password:
            raise Unauthorized(f"ledger {ledger_id} has another password")

        def before_batch() -> None:
            self.before_batch()
            try:
                self.metadata(ledger_id)
            except NoSuchLedger:
                raise NoSuchLedger(f"bookies have dropped ledger {ledger_id}") from None

        return ShelfReader(metadata, self._payloads[ledger_id], before_batch)
