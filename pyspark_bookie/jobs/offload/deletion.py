"""Deleting offloaded ledgers from the cluster, and taking them out of the streams that list them.

A ledger goes when its record has been COMPLETE for the lag, it still is the ledger that was archived, nothing else
refers to it, and its files were read once more, whole, and are what was written. The metadata is deleted by its
version: a change in between, such as a re-replication, is a reason to look again and not a race.

Readers of a stream rely on the ledgers that it lists, so these stay, unless the settings say that they read archives
(`keep_listed`). Then a ledger goes and stays listed; a cursor that has not passed it keeps it even so, because the
cursor's reader is unknown. What a stream has retired is the stream's to delete, when its readers have had their time.

Invariants
- Nothing is deleted of which the archive was not proved good in this very call.
- Nothing refers to a ledger when it goes: lists, cursors and the ledger itself are looked at before the proof, which
  may take minutes, and again behind it. All streams are asked, whatever the ledger says of itself; those that list
  nothing of the bundle are asked once, because from then on they can list a ledger only if its metadata name them, or
  change; each time where metadata have no room for a name. A client that was about to list it in the stream that it
  names fails: its metadata say that it goes, and that stream is changed, before it is looked at last.
- A stream loses only its oldest ledgers, by truncation, so that its readers get an error rather than a hole; it is cut
  only behind ledgers whose archive was proved good, and a cursor that has not passed them keeps them.
- A crash between the deletion and the record's last state is repaired by the next run: the ledger is gone then.

One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from bookie_client.streams.cursors import StreamCursors
from bookie_client.streams.model import STREAM_KEY
from bookie_client.streams.publishing import WITH_CUSTOM_METADATA, going, staying
from bookie_client.streams.store import ManifestStore
from bookie_protocol.archive import LedgerIdentity, OffloadRecord, OffloadState
from bookie_protocol.errors import (
    EntryDamaged,
    MetadataVersionConflict,
    NoSuchLedger,
    NotThere,
    SessionEnded,
    StreamInUse,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from pyspark_bookie.archive.files import ArchivedFileMissing, Files
from pyspark_bookie.archive.reading import count_files, read_manifest
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.ledgers import text_of
from pyspark_bookie.jobs.framework.owners import APPLICATION_KEY, MANAGED_LEDGER_KEY, PULSAR
from pyspark_bookie.jobs.offload.cleaning import OffloadStore

if TYPE_CHECKING:
    from bookie_client import Client
    from bookie_client.blocking import BlockingClient
    from bookie_client.streams import Manifest, StreamCursor, StreamPosition

_TRIES: Final = 5
_stores: WeakKeyDictionary[Client, ManifestStore] = WeakKeyDictionary()


class DeletionFate(Enum):
    """The outcome of the deletion of a ledger."""

    DELETED = "deleted"
    NOT_DUE = "not due yet"
    IN_STREAM = "a stream lists it"
    UNREAD = "a cursor of its stream has not passed it"
    OWNED = "it belongs to a Pulsar topic"
    ANOTHER_LEDGER = "there is another ledger of this id now, or one of which nobody can tell"
    ALREADY = "already deleted"
    PROVEN = "it may go"


@dataclass(frozen=True, slots=True)
class DeletionSettings:
    """`lag`: seconds since COMPLETE. `target`: records of other archives are left alone. `keep_listed`: what streams
    list goes, too, and stays in them, for readers that look into archives."""

    target: str
    lag: float
    keep_listed: bool = False


class Deleter:
    """`ledger_ids`: of the bundle. `clock` (seconds since 1970) and `store` are there for tests."""

    def __init__(
        self,
        client: BlockingClient,
        files: Files,
        settings: DeletionSettings,
        throttle: Throttle,
        *,
        ledger_ids: Collection[int] = (),
        clock: Callable[[], float] = time.time,
        store: OffloadStore | None = None,
    ) -> None:
        self._client = client
        self._ledger_ids = ledger_ids
        self._listed: dict[int, frozenset[str]] = {}
        self._files = files
        self._settings = settings
        self._throttle = throttle
        self._clock = clock
        self._store = store or OffloadStore(client)

    def delete(self, ledger_id: int) -> DeletionFate:
        """Delete a ledger if it may go. Raises `EntryDamaged`, `ArchivedFileMissing` and `ArchiveUnavailable` when
        the archive is not good: the ledger stays; `TakenOver`, `MetadataUnavailable`."""
        stored = self._store.read(ledger_id)
        if stored is None or not is_due(stored.value, self._settings, self._clock()):
            return _not_now(stored.value if stored is not None else None)
        fate = self._delete(stored.value)
        if fate is DeletionFate.DELETED:
            self._store.update(stored, stored.value.deleted(round(self._clock() * 1000)))
        return fate

    def prove(self, ledger_id: int) -> bool:
        """Return True if only the one stream that lists it keeps a ledger from being deleted now. Raises as
        `delete`."""
        stored = self._store.read(ledger_id)
        if stored is None or not is_due(stored.value, self._settings, self._clock()):
            return False
        if self.obstacle(stored.value) not in (None, DeletionFate.IN_STREAM) or len(self._listing(ledger_id)) > 1:
            return False
        self._prove(stored.value)
        return True

    def obstacle(self, record: OffloadRecord) -> DeletionFate | None:
        """Return why a ledger that is due stays nevertheless; None: only the proof of its archive is missing."""
        try:
            return self._obstacle(record, self._client.metadata(record.ledger_id))
        except NoSuchLedger:
            return None

    def _delete(self, record: OffloadRecord) -> DeletionFate:
        for _ in range(_TRIES):
            try:
                found = self._client.run(lambda client: client.stored_metadata(record.ledger_id))
            except NoSuchLedger:
                return DeletionFate.DELETED
            obstacle = self._obstacle(record, found.value)
            if obstacle is not None:
                return obstacle
            self._prove(record)
            try:
                marked = self._client.run(partial(going, stored=found))
                self._overtake(found.value)
                if (obstacle := self.obstacle(record)) is not None:
                    self._client.run(partial(staying, stored=marked))
                    return obstacle
                self._delete_marked(marked)
            except (MetadataVersionConflict, SessionEnded):
                continue
            return DeletionFate.DELETED
        return DeletionFate.NOT_DUE  # its metadata changes all the time: the next run

    def _delete_marked(self, marked: Versioned[LedgerMetadata]) -> None:
        self._client.run(lambda client: client.metadata_service.ledgers.delete_this(marked))

    def _obstacle(self, record: OffloadRecord, metadata: LedgerMetadata) -> DeletionFate | None:
        # If it is unknown whether this ledger was archived, the offload compares its content.
        if not metadata.is_closed or not record.ledger.is_surely(LedgerIdentity.of(metadata)):
            return DeletionFate.ANOTHER_LEDGER
        if _is_pulsars(metadata):
            return DeletionFate.OWNED
        named = text_of(metadata.custom_metadata.get(STREAM_KEY))
        if metadata.format_version < WITH_CUSTOM_METADATA:
            self._listed.pop(record.ledger_id, None)
        streams = self._listing(record.ledger_id).union([] if named is None else [named])
        found = (self._streams_obstacle(stream, record) for stream in sorted(streams))
        return next((each for each in found if each is not None), None)

    def _listing(self, ledger_id: int) -> frozenset[str]:
        if ledger_id not in self._listed:
            among = {ledger_id, *self._ledger_ids}
            found = self._client.run(lambda client: lists_of(client).listing(among))
            self._listed = {each: found.get(each, frozenset()) for each in among}
        return self._listed[ledger_id]

    def _overtake(self, metadata: LedgerMetadata) -> None:
        """Change the ledger's stream, so that a client that was about to list the ledger in it has to look again."""
        named = text_of(metadata.custom_metadata.get(STREAM_KEY))

        def change(manifest: Manifest) -> Manifest | None:
            return None if metadata.ledger_id in manifest.owned_ids else replace(manifest, epoch=manifest.epoch + 1)

        if named is not None:
            with suppress(NotThere):  # nor can anything be added to one that is being deleted
                self._client.run(lambda client: lists_of(client).update(named, change))

    def _streams_obstacle(self, stream: str, record: OffloadRecord) -> DeletionFate | None:
        try:
            stored = self._client.run(lambda client: lists_of(client).read(stream, even_deleting=True))
        except NotThere:
            return None
        ledger_id, manifest = record.ledger_id, stored.manifest
        listed = manifest.ledger(ledger_id)
        if listed is None:
            return DeletionFate.IN_STREAM if ledger_id in manifest.retired_ids else None
        # The stream does not know the length of a ledger that it lists as open. A stream that is being
        # deleted is left to the deletion.
        is_settled = listed.entries == record.ledger.last_entry_id + 1 and not manifest.is_deleting
        if not self._settings.keep_listed or not is_settled:
            return DeletionFate.IN_STREAM
        end = listed.first_ordinal + (listed.entries or 0)
        cursors = self._client.run(lambda client: self._cursors_of(client, stream))
        return DeletionFate.UNREAD if any(each.ordinal < end for each in cursors.values()) else None

    async def _cursors_of(self, client: Client, stream: str) -> Mapping[str, StreamCursor]:
        now_ms = partial(round, self._clock() * 1000)
        return await StreamCursors(client.metadata_service, lists_of(client), now_ms).of(stream)

    def _prove(self, record: OffloadRecord) -> None:
        manifest = read_manifest(self._files, record.ledger_id, record.uuid)
        if manifest is None:
            raise ArchivedFileMissing(f"the archive has no manifest of ledger {record.ledger_id}: the ledger stays")
        if manifest.files != record.files:
            raise EntryDamaged(f"the manifest of ledger {record.ledger_id} names other files: the ledger stays")
        if count_files(self._files, record.ledger_id, record.files, self._throttle) != record.counts:
            raise EntryDamaged(f"the files of ledger {record.ledger_id} are not what was written: the ledger stays")


def lists_of(client: Client) -> ManifestStore:
    """One store for all bundles of a process, because it knows what did not change of a long list: then a bundle asks
    for the heads of the streams alone."""
    store = _stores.get(client)
    if store is None:
        store = _stores[client] = ManifestStore(client.metadata_service)
    return store


def _is_pulsars(metadata: LedgerMetadata) -> bool:
    custom = metadata.custom_metadata
    return MANAGED_LEDGER_KEY in custom or custom.get(APPLICATION_KEY) == PULSAR.encode()


def is_due(record: OffloadRecord, settings: DeletionSettings, now: float) -> bool:
    """Return True if the lag has passed."""
    return (
        record.state is OffloadState.COMPLETE
        and record.target == settings.target
        and record.completed_ms is not None
        and record.completed_ms / 1000 + settings.lag <= now
    )


def _not_now(record: OffloadRecord | None) -> DeletionFate:
    return (
        DeletionFate.ALREADY if record is not None and record.state is OffloadState.BK_DELETED else DeletionFate.NOT_DUE
    )


def oldest(manifest: Manifest, ledger_ids: Collection[int]) -> tuple[int, ...]:
    """The ledgers at the beginning of a stream that are all among these."""
    return tuple(
        ledger.ledger_id
        for ledger in takewhile(lambda ledger: not ledger.is_open and ledger.ledger_id in ledger_ids, manifest.ledgers)
    )


def behind(manifest: Manifest, count: int) -> StreamPosition:
    """The place behind the first `count` ledgers, at least one."""
    from bookie_client.streams import StreamPosition

    if count < len(manifest.ledgers):
        return StreamPosition(manifest.ledgers[count].ledger_id, 0)
    last = manifest.ledgers[-1]
    return StreamPosition(last.ledger_id, last.entries or 0)


def cut(client: BlockingClient, manifest: Manifest, proven: Collection[int]) -> str | None:
    """Truncate a stream behind its oldest ledgers, which are proven; they are deleted with it. Returns why nothing was
    done, in words; None: done, or there was nothing to do."""
    from bookie_client.streams import Streams

    going = oldest(manifest, proven)
    if not going:
        return None
    position = behind(manifest, len(going))
    try:
        client.run(lambda inner: Streams(inner).truncate(manifest.name, position))
    except StreamInUse as error:
        return str(error)
    return None
