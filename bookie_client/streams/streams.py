"""Streams of ledgers in the metadata service: create, list, publish to, truncate, delete; writers, readers, cursors.

    streams = Streams(client)
    await streams.create("orders", StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2))
    async with streams.writer("orders") as writer:
        await writer.append(b"first")
    async for batch in streams.reader("orders").batches():
        for entry in batch:
            print(entry.ledger_id, entry.entry_id, entry.payload)

Invariants
- Each change of a stream is one compare-and-set of its head record; the next change finishes or removes what a crash
  left half done.
- A ledger is taken out of the list before it is deleted, and stays noted as retired until it is.

Errors of every call here: `NoSuchStream`, `MetadataUnavailable` (the outcome is unknown; do it again),
`MetadataDamaged`, `BadRequest` for invalid names.

Event loop only.

Source: docs/internals/client-protocol.md, section 25; docs/internals/spark.md, section 3.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from bookie_client.client import Client
from bookie_client.streams.appends import Appends
from bookie_client.streams.cursors import StreamCursor, StreamCursors
from bookie_client.streams.ledgers import StreamLedgers
from bookie_client.streams.manifest import Manifest, due, forgotten, retained, truncated
from bookie_client.streams.model import PublishedLedger, StreamPosition, StreamSettings, Txn, check_stream_name
from bookie_client.streams.owner import StreamOwner
from bookie_client.streams.publishing import PublishResult, own_ledgers, published, result_of
from bookie_client.streams.reader import StreamReader
from bookie_client.streams.rolling import RollingLedger
from bookie_client.streams.store import ManifestStore
from bookie_client.streams.tail_cache import TailCache
from bookie_client.streams.writer import StreamWriter
from bookie_client.writing.window import Window
from bookie_protocol.errors import (
    CouldNotTell,
    NoSuchStream,
    PodkeeperError,
    Refused,
    StreamExists,
    StreamInUse,
    StreamPositionGone,
)
from bookie_protocol.logs import get_logger
from bookie_protocol.versioned import UNSTORED

SWEPT_TOGETHER: Final = 1_000
"""Ledgers that one publication deletes at most, or twice as many as it adds: they must not become ever more."""

_log = get_logger(__name__)


class Streams:
    """The streams of a cluster. `password` protects the ledgers that writers create, and opens those that are read;
    None, for administration: the one that each ledger recorded (new ledgers get none then)."""

    def __init__(
        self,
        client: Client,
        *,
        password: bytes | None = b"",
        clock: Callable[[], float] = time.time,
        tail_cache_bytes: int = 0,
    ) -> None:
        """`clock`: seconds since 1970. `tail_cache_bytes`: for each stream that readers of this object follow, one of
        them reads for all and so many bytes of the newest entries are kept; 0: every reader reads by itself."""
        self._tail_cache = TailCache(tail_cache_bytes) if tail_cache_bytes > 0 else None
        self._client = client
        self._clock = clock
        self._store = ManifestStore(client.metadata_service)
        self._ledgers = StreamLedgers(client, password)
        self._cursors = StreamCursors(client.metadata_service, self._store, self._now_ms, self._ledgers)

    # --- streams --------------------------------------------------------------------------------------------

    async def create(self, name: str, settings: StreamSettings | None = None, *, if_absent: bool = False) -> Manifest:
        """Create a stream without ledgers. Raises `StreamExists`, unless `if_absent`: then what is there is returned,
        with its own settings."""
        check_stream_name(name)
        made = Manifest(
            name=name,
            identity=UNSTORED,
            generation=0,
            ledgers=(),
            settings=settings or StreamSettings(),
            created_ms=self._now_ms(),
        )
        try:
            return await self._store.create(made)
        except StreamExists:
            if not if_absent:
                raise
            return await self.manifest(name)

    async def manifest(self, name: str) -> Manifest:
        """Return the stream as it is now."""
        return (await self._store.read(name)).manifest

    async def settings(self, name: str) -> StreamSettings:
        """Return the settings of a stream, which take one read however long its list is."""
        return (await self._store.head(name)).settings

    async def names(self) -> frozenset[str]:
        """Return the names of all streams; also of those whose deletion was not finished."""
        return await self._store.names()

    def watch(self, name: str) -> AsyncGenerator[Manifest, None]:
        """Yield the stream now, then each newer state of it; states in between may be skipped. Faults are waited
        out.

        Ends by `NoSuchStream` when the stream is deleted. A caller that ends it early closes it
        (`contextlib.aclosing`).
        """
        return self._store.watch(name)

    async def configure(self, name: str, settings: StreamSettings) -> Manifest:
        """Change the settings; ledgers that exist stay as they are, and a writer takes them up with its next ledger."""
        return (await self._store.update(name, lambda manifest: dataclasses.replace(manifest, settings=settings)))[0]

    async def delete(self, name: str, *, with_ledgers: bool = True, force: bool = False) -> tuple[int, ...]:
        """Delete a stream with its cursors and, by default, its ledgers; return the ids of the ledgers. Those that
        another stream lists, too, as older versions allowed, are left to that.

        A deletion that was interrupted is finished by calling it again. Raises `StreamInUse` when a writer has a ledger
        open and `force` is not set.
        """
        try:
            stored = await self._store.read(name, even_deleting=True)
        except NoSuchStream:
            await self._store.dig_grave(name, self._now_ms())
            raise
        if stored.manifest.open_ledger is not None and not stored.manifest.is_deleting:
            if not force:
                raise StreamInUse(
                    f"stream {name}: a writer has ledger {stored.manifest.open_ledger.ledger_id} open; close it, or"
                    " `seal` the stream if it is dead"
                )
            with suppress(CouldNotTell):  # its bookies may be gone, and the ledger goes anyway
                await self.seal(name)
        manifest = await self._mark_deleting(name)
        shared = await self._shared(name, manifest.owned_ids)
        ids = tuple(ledger.ledger_id for ledger in manifest.ledgers if ledger.ledger_id not in shared)
        if with_ledgers:
            await self._ledgers.delete(ids)
        await self._ledgers.delete(manifest.retired_ids - shared)
        await self._cursors.delete_all(name)
        await self._store.bury(manifest, self._now_ms())
        return ids if with_ledgers else ()

    # --- what goes in ---------------------------------------------------------------------------------------

    def writer(self, name: str, *, take_over: bool = True, patience: float = 60.0) -> StreamWriter:
        """Return a writer, to be entered with `async with`, which takes the stream over from any other writer.

        `take_over` False: `StreamInUse` instead when a writer has a ledger open, whether it lives or died. `patience`:
        seconds for which appends are tried again while no ledger takes them.
        """
        owner = StreamOwner(name, self._store, self._ledgers, self._now_ms)
        appends = Appends(Window.of(self._client.context.options))
        rolling = RollingLedger(owner, appends, lambda: self.apply_retention(name), patience=patience)
        return StreamWriter(self._client, rolling, take_over=take_over)

    async def publish(
        self,
        name: str,
        ledgers: Sequence[PublishedLedger],
        txn: Txn | None = None,
        *,
        replace: bool = False,
        behind: int | None = None,
    ) -> PublishResult:
        """Add closed ledgers to the end of the stream, in the order given, all or none, by one compare-and-set.

        With `txn` each batch of an application counts once: a batch above the last one is published; the last one once
        more, with as many rows (and the same checksum, if both are known), was published before and changes nothing;
        the last one with another content, or one below it, raises `StreamTransactionConflict`, because the application
        was set back and its entries would be lost or doubled. Without `txn` ledgers that are listed already change
        nothing, so that a call whose answer was lost may be repeated.

        `replace`: the ledgers become the whole content, as the next generation; the replaced ones can be read on for
        `deletion_lag_seconds` and are deleted by a later change. Retention is applied, and what is due is deleted, with
        each new batch; a failure of that is reported by the next.

        `behind`: the ordinal at which the stream has to end; `Refused` is raised where another caller has changed
        that.

        Raises `StreamInUse` when a writer has a ledger open (`seal` ends a dead one), `NoSuchLedger` when a ledger does
        not exist, `BadRequest` when its metadata have another end or none, when it belonged to the stream before, or is
        another stream's. A ledger without a stream becomes this one's: its custom metadata name it.
        """
        given = [each for each in ledgers if each.entries > 0]
        now_ms = self._now_ms()

        async def decide(manifest: Manifest) -> Manifest | None:
            changed = published(manifest, given, txn, replacing=replace, now_ms=now_ms)
            if changed is not None and behind not in (None, manifest.end_ordinal):
                raise Refused(
                    f"stream {name} does not end at {behind} any more: another client has added to it; try again"
                )
            if changed is not None:  # in each round: the deletion of a ledger may have made this one lose the last
                await own_ledgers(self._client, name, given)
            return changed

        manifest, is_new = await self._store.update_by(name, decide)
        if is_new:
            await self._tidy(manifest, max(SWEPT_TOGETHER, 2 * len(given)))
        return result_of(manifest, ledgers, is_new=is_new)

    async def seal(self, name: str) -> Manifest:
        """Recover and close the open ledger that a dead writer left; a living writer is fenced. Fine when there is
        none."""
        owner = StreamOwner(name, self._store, self._ledgers, self._now_ms)
        if (await self.manifest(name)).open_ledger is not None:
            await owner.claim(take_over=True)
            await owner.release()
            await self._sweep(name)
        return await self.manifest(name)

    # --- what comes out -------------------------------------------------------------------------------------

    def reader(self, name: str) -> StreamReader:
        """Return a reader; it needs no closing."""
        return StreamReader(name, self._store, self._ledgers, self._tail_cache)

    async def end(self, name: str) -> StreamPosition:
        """Return the position behind the last entry that can be read now.

        It is the last add confirmed of an open ledger, which is read without disturbing its writer, or the end of the
        closed ones.
        """
        return await self.reader(name).end()

    # --- what goes away -------------------------------------------------------------------------------------

    async def truncate(self, name: str, before: StreamPosition, *, force: bool = False) -> tuple[int, ...]:
        """Make everything before a position unreadable, and delete the ledgers that end there or before; returns their
        ids. A position that is gone already changes nothing.

        Raises `StreamInUse` when a cursor has not passed that position and `force` is not set; `BadRequest` for a
        position in the open ledger other than its beginning.
        """

        def change(manifest: Manifest, passed: int | None) -> Manifest | None:
            with suppress(StreamPositionGone):
                ordinal = manifest.ordinal(before)
                if passed is not None and passed < ordinal and not force:
                    raise StreamInUse(
                        f"stream {name}: a cursor is {ordinal - passed} entries before {before}; truncate with force,"
                        " or delete the cursor, if those entries may go unread"
                    )
            return truncated(manifest, before, self._now_ms())

        await self._with_cursors(name, change)
        return await self._sweep(name)

    async def apply_retention(self, name: str) -> tuple[int, ...]:
        """Delete the ledgers that the settings no longer keep and that every cursor has passed, and retired ones whose
        time has come; returns their ids. Writers do it when they roll over to their next ledger."""
        return await self._retain((await self._store.read(name)).manifest)

    async def retired(self, name: str) -> frozenset[int]:
        """Ids of ledgers that were taken out of the stream and are not deleted yet: they have an owner."""
        return (await self._store.read(name, even_deleting=True)).manifest.retired_ids

    # --- cursors --------------------------------------------------------------------------------------------

    async def cursor(self, name: str, cursor_id: str) -> StreamCursor:
        """Return a cursor. Raises `NoSuchStream` when there is none of this id."""
        return await self._cursors.read(name, cursor_id)

    async def cursors(self, name: str) -> Mapping[str, StreamCursor]:
        """Return all cursors of a stream, by id."""
        await self.manifest(name)
        return await self._cursors.of(name)

    async def move_cursor(self, name: str, cursor_id: str, position: StreamPosition) -> StreamCursor:
        """Store how far a consumer is, and return what is stored then. The first move creates the cursor.

        Cursors only go forwards: a position behind the stored one changes nothing, and of two moves at the same time
        the farther one stays. From then on retention keeps what comes behind it.

        Raises `StreamPositionGone`, `BadRequest` for a position ahead of the end of its ledger, and what asking bookies
        for the end of the open ledger raises.
        """
        return await self._cursors.move(name, cursor_id, position)

    async def delete_cursor(self, name: str, cursor_id: str) -> None:
        """Forget a cursor; one that does not exist is fine."""
        await self._cursors.delete(name, cursor_id)

    # --- inside ---------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _mark_deleting(self, name: str) -> Manifest:
        def marked(manifest: Manifest) -> Manifest | None:
            return None if manifest.is_deleting else dataclasses.replace(manifest, is_deleting=True)

        return (await self._store.update(name, marked, even_deleting=True))[0]

    async def _with_cursors(self, name: str, change: Callable[[Manifest, int | None], Manifest | None]) -> None:
        """Apply a change that depends on the lowest cursor's ordinal, as it was after the stream was read. A
        cursor that is made later changes the stream, and the change loses."""

        async def decide(manifest: Manifest) -> Manifest | None:
            cursors = await self._cursors.of(name)
            return change(manifest, min((cursor.ordinal for cursor in cursors.values()), default=None))

        await self._store.update_by(name, decide)

    async def _shared(self, name: str, ledger_ids: Collection[int]) -> set[int]:
        """Return the ledgers that another stream lists, too."""
        return {each for each, names in (await self._store.listing(ledger_ids)).items() if names != {name}}

    async def _tidy(self, manifest: Manifest, at_most: int) -> None:
        """Retain and delete as a rolling writer does, for streams without a writer; `at_most` ledgers in one call."""
        try:
            await self._retain(manifest, at_most)
        except PodkeeperError as error:
            _log.warning("ledgers of a stream were not removed yet", stream=manifest.name, error=str(error))

    async def _retain(self, manifest: Manifest, at_most: int | None = None) -> tuple[int, ...]:
        """Apply retention to a stream that was just read. It costs nothing when there is nothing to be removed: idle
        writers of many streams do it all the time, and to ask for cursors takes a list of the whole cluster's."""
        name, now_ms = manifest.name, self._now_ms()
        if retained(manifest, None, now_ms) is not None:
            await self._with_cursors(name, lambda each, passed: retained(each, passed, now_ms))
        elif not due(manifest, now_ms):
            return ()
        return await self._sweep(name, at_most)

    async def _sweep(self, name: str, at_most: int | None = None) -> tuple[int, ...]:
        """Delete the retired ledgers whose time has come, but not those that name another stream which has them."""
        ids = due((await self._store.read(name)).manifest, self._now_ms())[:at_most]
        if ids:
            others = await self._ledgers.of_others(name, ids)
            await self._ledgers.delete(set(ids) - (await self._shared(name, others) if others else set()))
            await self._store.update(name, lambda manifest: forgotten(manifest, ids))
            _log.info("ledgers of a stream deleted", stream=name, ledgers=len(ids))
        return ids
