"""The ledgers of streams: created, opened, recovered and deleted as a stream's settings and password say.

A list of a stream names ledgers by their ids, and a client that deleted a ledger may use its id again. A ledger of a
stream says so in its own metadata. One that says nothing is another ledger, and is left alone: for the stream its own
one was deleted.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bookie_client.client import Client
from bookie_client.connection.request import EntryAnswer
from bookie_client.distribution import Quorums
from bookie_client.reading.handle import LedgerReader
from bookie_client.streams.model import APPLICATION, AT_ONCE, STREAM_KEY, WRITER_KEY, StreamSettings
from bookie_client.streams.publishing import WITH_CUSTOM_METADATA, check_stays
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.errors import (
    BadRequest,
    LedgerDeleted,
    MetadataDamaged,
    MetadataVersionConflict,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.together import bounded

_TRIES: Final = 20
_log = get_logger(__name__)

MOST_UNSEEN: Final = 16
"""Entries behind the last add confirmed that are looked for at their bookies."""


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a stream's open ledger."""

    ledger_id: int
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StreamLedgers:
    """`password` as in `Streams`."""

    client: Client
    password: bytes | None = field(repr=False)

    async def create(self, name: str, settings: StreamSettings, writer: str) -> LedgerWriter:
        """Return a new ledger of a stream. Raises as `Client.create`."""
        return await self.client.create(
            ensemble=settings.ensemble,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=self.password or b"",
            metadata=tags(name, writer),
        )

    async def open(self, ledger_id: int, settings: StreamSettings) -> LedgerReader:
        """Open a ledger without fencing it. Raises as `Client.open`."""
        reader = await self.client.open(ledger_id, password=self.password, digest=settings.digest)
        if not is_of_a_stream(reader.metadata):
            await reader.close()
            raise _replaced(ledger_id)
        return reader

    async def check_written(self, ledger_id: int, entries: int, settings: StreamSettings) -> None:
        """Check that an open ledger will never end in front of its entry number `entries`: all entries before it are
        confirmed, or so many bookies have them that every recovery finds them.

        A writer knows of acknowledged entries before anybody else does; so entries that readers cannot see yet are
        looked for at their bookies, if they are few. Raises `BadRequest`, `NoSuchLedger`, and `CouldNotTell` when too
        few bookies answer.
        """
        async with await self.open(ledger_id, settings) as ledger:
            confirmed, metadata = ledger.last_add_confirmed + 1, ledger.metadata
        unseen = range(confirmed, entries)
        if len(unseen) > (0 if metadata.is_closed else MOST_UNSEEN):
            raise BadRequest(
                f"entry {entries} of ledger {ledger_id} is ahead of its end: {confirmed} entries are confirmed"
            )
        for entry_id in unseen:
            if not await self._is_kept(metadata, entry_id):
                raise BadRequest(
                    f"entry {entries} of ledger {ledger_id} is ahead of its end: it has no entry {entry_id}"
                )

    async def _is_kept(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Return whether an ack quorum has the entry. Raises `CouldNotTell`."""
        read = partial(self.client.operations.read_entry, ledger_id=metadata.ledger_id, entry_id=entry_id)
        bookies, needed = metadata.bookies_for(entry_id), Quorums.of(metadata).ack
        found = await asyncio.gather(*map(read, bookies), return_exceptions=True)
        if sum(isinstance(each, EntryAnswer) for each in found) >= needed:
            return True
        absent = sum(isinstance(each, NotThere) for each in found)
        if len(bookies) - absent < needed:
            return False
        error = next(each for each in found if isinstance(each, BaseException) and not isinstance(each, NotThere))
        raise fresh(error) if isinstance(error, PodkeeperError) else error

    async def end_of(self, name: str, ledger_id: int, settings: StreamSettings) -> LedgerEnd:
        """Fence and recover a ledger, if it is not closed. Raises as `Client.recover`, but a ledger that was
        deleted counts as empty, so that later owners can continue."""
        try:
            if not is_of_a_stream(await self.client.metadata(ledger_id)):
                raise _replaced(ledger_id)
            metadata = await self.client.recover(ledger_id, password=self.password, digest=settings.digest)
        except NoSuchLedger:
            _log.error("the open ledger of a stream was deleted: it leaves the list", stream=name, ledger=ledger_id)
            return LedgerEnd(ledger_id, 0, 0)
        return end_of(metadata)

    async def check_stays(self, ledger_id: int) -> None:
        """Raises `NoSuchLedger` for a ledger that was deleted, or is about to be; `MetadataUnavailable`."""
        check_stays(await self.client.metadata(ledger_id))

    async def of_others(self, name: str, ledger_ids: Iterable[int]) -> set[int]:
        """Return the ledgers that name another stream than this one as theirs. Raises `MetadataUnavailable`."""

        async def owner(ledger_id: int) -> bytes | None:
            with suppress(NoSuchLedger, MetadataDamaged):
                return (await self.client.metadata(ledger_id)).custom_metadata.get(STREAM_KEY)
            return None

        ids = list(ledger_ids)
        owners = await bounded(ids, owner, AT_ONCE)
        return {each for each, named in zip(ids, owners, strict=True) if named not in (None, name.encode())}

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        """Delete these ledgers; those that do not exist are fine. Raises `MetadataUnavailable`."""
        await bounded(ledger_ids, self._delete, AT_ONCE)

    async def discard(self, writer: LedgerWriter) -> None:
        """Delete a ledger as its writer stored it last. Raises `MetadataVersionConflict`, `MetadataUnavailable`."""
        await self.client.metadata_service.ledgers.delete_this(writer.stored)

    async def _delete(self, ledger_id: int) -> None:
        for _ in range(_TRIES):
            try:
                stored = await self.client.stored_metadata(ledger_id)
            except NoSuchLedger:
                return
            except MetadataDamaged:
                await self.client.delete(ledger_id)  # the list alone can tell whose it is
                return
            if not is_of_a_stream(stored.value):
                _log.warning("ledger of a stream is not deleted: a different ledger now has its id", ledger=ledger_id)
                return
            with suppress(MetadataVersionConflict):
                await self.client.metadata_service.ledgers.delete_this(stored)
                return
        raise MetadataVersionConflict(f"the metadata of ledger {ledger_id} change all the time: try again")


def is_of_a_stream(metadata: LedgerMetadata) -> bool:
    """Return True if this can be the ledger that a list means. Formats before 2 cannot say so."""
    return STREAM_KEY in metadata.custom_metadata or metadata.format_version < WITH_CUSTOM_METADATA


def _replaced(ledger_id: int) -> LedgerDeleted:
    return LedgerDeleted(
        f"ledger {ledger_id} was deleted: a different ledger, which does not belong to a stream, now has this id"
    )


def tags(name: str, writer: str) -> dict[str, bytes]:
    """Return the custom metadata of a stream's ledger: what tells whose it is, also when no manifest does."""
    return {"application": APPLICATION.encode(), STREAM_KEY: name.encode(), WRITER_KEY: writer.encode()}


def end_of(metadata: LedgerMetadata) -> LedgerEnd:
    """The end of a closed ledger."""
    return LedgerEnd(metadata.ledger_id, metadata.last_entry_id + 1, metadata.length)
