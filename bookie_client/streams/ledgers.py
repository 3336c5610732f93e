"""The ledgers of streams: created, opened, recovered and deleted as a stream's settings and password say.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from bookie_client.client import Client
from bookie_client.logs import get_logger
from bookie_client.reading.handle import LedgerReader
from bookie_client.streams.model import APPLICATION, AT_ONCE, STREAM_KEY, WRITER_KEY, StreamSettings
from bookie_client.streams.publishing import check_stays
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How the open ledger of a stream ended."""

    ledger_id: int
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StreamLedgers:
    """`password` as in `Streams`."""

    client: Client
    password: bytes | None = field(repr=False)

    async def create(self, name: str, settings: StreamSettings, writer: str) -> LedgerWriter:
        """A new ledger of a stream. Raises as `Client.create`."""
        return await self.client.create(
            ensemble=settings.ensemble,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=self.password or b"",
            metadata=tags(name, writer),
        )

    async def open(self, ledger_id: int, settings: StreamSettings) -> LedgerReader:
        """Nobody is fenced. Raises as `Client.open`."""
        return await self.client.open(ledger_id, password=self.password, digest=settings.digest)

    async def end_of(self, name: str, ledger_id: int, settings: StreamSettings) -> LedgerEnd:
        """Fence and recover a ledger, if it is not closed. Raises as `Client.recover`, but a ledger that does not exist
        has no entries: somebody deleted it, and whoever comes later must be able to go on."""
        try:
            metadata = await self.client.recover(ledger_id, password=self.password, digest=settings.digest)
        except NoSuchLedger:
            _log.error("the open ledger of a stream was deleted: it leaves the list", stream=name, ledger=ledger_id)
            return LedgerEnd(ledger_id, 0, 0)
        return end_of(metadata)

    async def check_stays(self, ledger_id: int) -> None:
        """Raises `NoSuchLedger` for a ledger that was deleted, or is about to be; `MetadataUnavailable`."""
        check_stays(await self.client.metadata(ledger_id))

    async def of_others(self, name: str, ledger_ids: Iterable[int]) -> set[int]:
        """The ledgers that name another stream than this one as theirs. Raises `MetadataUnavailable`."""

        async def owner(ledger_id: int) -> bytes | None:
            with suppress(NoSuchLedger, MetadataDamaged):
                return (await self.client.metadata(ledger_id)).custom_metadata.get(STREAM_KEY)
            return None

        ids = list(ledger_ids)
        owners = await bounded(ids, owner, AT_ONCE)
        return {each for each, named in zip(ids, owners, strict=True) if named not in (None, name.encode())}

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        """Delete these ledgers; those that do not exist are fine. Raises `MetadataUnavailable`."""
        await bounded(ledger_ids, self.client.delete, AT_ONCE)


def tags(name: str, writer: str) -> dict[str, bytes]:
    """The custom metadata of a stream's ledger: what tells whose it is, also when no manifest does."""
    return {"application": APPLICATION.encode(), STREAM_KEY: name.encode(), WRITER_KEY: writer.encode()}


def end_of(metadata: LedgerMetadata) -> LedgerEnd:
    """The end of a closed ledger."""
    return LedgerEnd(metadata.ledger_id, metadata.last_entry_id + 1, metadata.length)
