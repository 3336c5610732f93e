"""The owner of a stream: claims it, begins its ledgers, ends them, gives it up.

A crash between any two steps leaves: a claim without more (the next owner claims again), a ledger that no manifest
lists (its custom metadata name its stream), an open ledger that the manifest lists (the next owner recovers it), or
retired ledgers that are not deleted (the next sweep does it). Nothing that was acknowledged is in any of these but the
listed ledger.

Invariants
- The owner is the token in the manifest. An owner that finds another one there has been fenced, and changes nothing.
- A claim is stored before the last ledger is recovered: from then on the former owner can begin no ledger.
- A ledger is created before the manifest lists it, and listed before anything is appended to it.

The functions are pure; `StreamOwner` belongs to the event loop.

Source: docs/internals/client-protocol.md, section 25, items 2 to 4.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from bookie_client.streams.ledgers import LedgerEnd, StreamLedgers, end_of
from bookie_client.streams.manifest import Manifest, with_landmark, with_retired
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_client.streams.store import ManifestStore
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.errors import MetadataVersionConflict, PodkeeperError, StreamFenced, StreamInUse
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)


def claimed(manifest: Manifest, token: str, *, take_over: bool) -> Manifest | None:
    """Return the stream with this owner; None: it has it. Raises `StreamInUse`."""
    if manifest.writer == token:
        return None
    if manifest.open_ledger is not None and not take_over:
        raise StreamInUse(
            f"stream {manifest.name}: a writer has ledger {manifest.open_ledger.ledger_id} open; a writer that may take"
            " over fences it"
        )
    return replace(manifest, writer=token)


def moved_on(
    manifest: Manifest, token: str, end: LedgerEnd | None, next_id: int | None, now_ms: int
) -> Manifest | None:
    """Return the stream with the open ledger ended, and the next one open; None: this was stored before.

    An ended ledger without entries leaves the list. `next_id` None: the stream has no open ledger then. Raises
    `StreamFenced`, and `MetadataVersionConflict` when a ledger would follow an open one.
    """
    check_owner(manifest, token)
    if next_id is not None and next_id in manifest:
        return None
    changed = manifest
    current = manifest.open_ledger
    if current is not None and end is not None and end.ledger_id == current.ledger_id:
        changed = _ended(manifest, current, end, now_ms)
    if next_id is not None:
        if changed.open_ledger is not None:
            raise MetadataVersionConflict(
                f"stream {manifest.name}: its ledger {changed.open_ledger.ledger_id} is open, and another was to follow"
            )
        opened = StreamLedger(next_id, changed.end_ordinal, None, None, None)
        changed = replace(changed, ledgers=(*changed.ledgers, opened))
    return None if changed == manifest else changed


def released(manifest: Manifest, token: str) -> Manifest | None:
    """Return the stream without an owner; None if it has another owner, or none."""
    return replace(manifest, writer=None) if manifest.writer == token else None


def check_owner(manifest: Manifest, token: str) -> None:
    """Raises `StreamFenced`."""
    if manifest.writer != token:
        raise StreamFenced(f"stream {manifest.name}: another writer took it over; this one appends no more")


def _ended(manifest: Manifest, current: StreamLedger, end: LedgerEnd, now_ms: int) -> Manifest:
    before = manifest.ledgers[:-1]
    if end.entries == 0:
        return replace(
            manifest,
            ledgers=before,
            landmarks=with_landmark(
                manifest, StreamPosition(current.ledger_id, 0), current.first_ordinal, manifest.base_ordinal
            ),
            retired=with_retired(manifest.retired, now_ms, [current]),
        )
    closed = replace(current, entries=end.entries, nbytes=end.nbytes, closed_ms=now_ms)
    return replace(manifest, ledgers=(*before, closed))


class StreamOwner:
    """One claim to one stream."""

    def __init__(self, name: str, store: ManifestStore, ledgers: StreamLedgers, now_ms: Callable[[], int]) -> None:
        self.name = name
        self.token = secrets.token_hex(8)
        self._store = store
        self._ledgers = ledgers
        self._now_ms = now_ms

    async def claim(self, *, take_over: bool) -> Manifest:
        """Become the owner, fence the former one, and record how its last ledger ended. Raises as
        `StreamWriter.start`."""
        loose = await self._store.segment_ids(self.name)
        manifest, is_new = await self._store.update(
            self.name, lambda each: claimed(each, self.token, take_over=take_over)
        )
        if is_new:
            await self._store.drop_unnamed(self.name, loose)
        current = manifest.open_ledger
        if current is None:
            return manifest
        _log.info("taking a stream over", stream=self.name, ledger=current.ledger_id)
        end = await self._ledgers.end_of(self.name, current.ledger_id, manifest.settings)
        return await self.record(end)

    async def begin(self, end: LedgerEnd | None) -> tuple[Manifest, LedgerWriter]:
        """Begin a ledger behind the one that ended like this. Raises `StreamFenced`, and as `Client.create`."""
        manifest = (await self._store.read(self.name)).manifest
        check_owner(manifest, self.token)
        current = manifest.open_ledger
        if current is not None and (end is None or current.ledger_id != end.ledger_id):
            # An attempt whose answer was lost has listed it; nothing was appended to it.
            end = await self._ledgers.end_of(self.name, current.ledger_id, manifest.settings)
        writer = await self._ledgers.create(self.name, manifest.settings, self.token)
        try:
            return await self.record(end, writer.ledger_id), writer
        except BaseException:
            await self._discard(writer)
            raise

    async def record(self, end: LedgerEnd | None, next_id: int | None = None) -> Manifest:
        """Store that the open ledger ended, and that the next one is open. Raises `StreamFenced`, and
        `NoSuchLedger` if another client has taken the next one for an orphan meanwhile."""

        async def decide(manifest: Manifest) -> Manifest | None:
            changed = moved_on(manifest, self.token, end, next_id, self._now_ms())
            if changed is not None and next_id is not None:  # in each round: a deletion has made this one lose the last
                await self._ledgers.check_stays(next_id)
            return changed

        return (await self._store.update_by(self.name, decide))[0]

    async def finish(self, ledger: LedgerWriter, manifest: Manifest) -> LedgerEnd:
        """Close a ledger behind the last acknowledged entry, or find where another client has closed it."""
        try:
            await ledger.close()
        except PodkeeperError:
            # Another client closed it, or is about to, or that is unknown. The handle tries once; recovery finds the
            # end, which may lie behind entries whose acknowledgement was not seen.
            return await self._ledgers.end_of(self.name, ledger.ledger_id, manifest.settings)
        return end_of(ledger.metadata)

    async def release(self) -> None:
        """Give the stream up; another owner's is left alone."""
        await self._store.update(self.name, lambda manifest: released(manifest, self.token))

    async def _discard(self, writer: LedgerWriter) -> None:
        """Discard a ledger that was not listed. If that is unknown it stays, and its custom metadata name its
        stream."""
        with suppress(PodkeeperError):
            await writer.close()
            manifest = (await self._store.read(self.name, even_deleting=True)).manifest
            if writer.ledger_id not in manifest:
                await self._ledgers.discard(writer)
