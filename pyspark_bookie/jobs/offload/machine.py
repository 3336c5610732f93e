"""One ledger on its way into an archive: from whatever state its record tells to COMPLETE.

Each step does something that can be done again, makes it durable, and then writes the next state. So a process may die
anywhere, and the next one goes on:

    died while uploading      another attempt begins with a uuid of its own; the old one's files go when it is complete
    died after UPLOADED       the files are read again and compared
    died while publishing     what was moved is where it belongs, the rest is moved

Two processes may do the same ledger at once: compare-and-set lets one of them go on, and what the other did under an
abandoned uuid it removes itself, or the one that replaced it does.

A ledger that is deleted meanwhile is not kept: what was written of it is removed, and its record too.

A ledger number may be used again. What the archive has counts for the ledger that is there now only if that is surely
the one that was archived, or else if its content is the same; otherwise it is archived beside what there is.

One thread uses an `Offloader`; it may be in any process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_protocol.archive import (
    ArchivedFile,
    LedgerIdentity,
    OffloadRecord,
    OffloadState,
)
from bookie_protocol.errors import EntryDamaged, LedgerNotClosed, NoSuchLedger, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import ArchivedFileMissing, Files
from pyspark_bookie.archive.manifest import LedgerShape, Manifest, data_folder, manifest_file, temporary_folder
from pyspark_bookie.archive.places import PlacedLedger
from pyspark_bookie.archive.reading import count_files, find_manifest
from pyspark_bookie.archive.writing import write_ledger
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.ledgers import LedgerRow
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Stored, TakenOver, remove_attempt

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient

MAX_ATTEMPTS: Final = 3
"""Uploads of one ledger in one run, should files turn out bad when they are read again."""


class Fate(Enum):
    """The outcome of a ledger in this run."""

    OFFLOADED = "offloaded"
    ALREADY = "already there"
    GONE = "deleted meanwhile"
    NOT_CLOSED = "not closed"
    EMPTY = "empty"
    ELSEWHERE = "in another archive"
    TAKEN_OVER = "another run works on it"
    PLACED = "its place in the stream was noted"
    NOT_PLACED = "its place in the stream could not be noted"


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """`target`: the archive's URI, as it is recorded."""

    target: str
    partition: str = "date"
    max_file_bytes: int = 1 << 30


class Offloader:
    """`new_uuid`, `clock` (seconds since 1970) and `store` are there for tests."""

    def __init__(
        self,
        client: BlockingClient,
        files: Files,
        settings: OffloadSettings,
        password: bytes | None,
        throttle: Throttle,
        *,
        instance_id: str | None = None,
        new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex,
        clock: Callable[[], float] = time.time,
        store: OffloadStore | None = None,
    ) -> None:
        self._client = client
        self._files = files
        self._settings = settings
        self._password = password
        self._throttle = throttle
        self._instance_id = instance_id
        self._new_uuid = new_uuid
        self._clock = clock
        self._store = store or OffloadStore(client)

    def offload(self, ledger_id: int, listed: PlacedLedger | None = None) -> tuple[Fate, OffloadRecord | None]:
        """Bring a ledger to COMPLETE; `listed`: as its stream lists it.

        Raises `TakenOver`, `Unauthorized`, `EntryDamaged` (files do not keep what is written), what reading the ledger
        raises, `ArchivedFileMissing` and `ArchiveUnavailable`."""
        stored = self._store.read(ledger_id)
        try:
            if stored is not None and (known := self._recognised(stored)) is not None:
                if known.value.target != self._settings.target:
                    return Fate.ELSEWHERE, known.value
                return Fate.ALREADY, self._clean(known).value
            return self._offload(ledger_id, stored, listed)
        except TakenOver:
            raise
        except PodkeeperError:
            if self._exists(ledger_id):
                raise
            self._forget(ledger_id)
            return Fate.GONE, None

    def note_place(self, ledger_id: int, listed: PlacedLedger) -> Fate:
        """Write the place in a stream to the manifest of a ledger that was archived before a stream listed it, or by
        an older version. Raises `TakenOver`, `ArchiveUnavailable`, `MetadataDamaged`."""
        stored = self._store.read(ledger_id)
        if stored is None or not is_unplaced(stored.value, listed, self._settings.target):
            return Fate.NOT_PLACED
        record = stored.value
        found = find_manifest(self._files, ledger_id, record.uuid)
        if found is None or not self._files.replaces_at_once:
            return Fate.NOT_PLACED
        path, manifest = found
        if manifest.place is None:
            content = replace(manifest, place=listed.place).encode()
            self._files.write(path, content, f"{temporary_folder(record.uuid)}/manifest.json")
            self._files.delete_folder(temporary_folder(record.uuid))
        self._store.update(stored, record.placed())
        return Fate.PLACED

    # --- from state to state ----------------------------------------------------------------------------------

    def _offload(
        self, ledger_id: int, stored: Stored | None, listed: PlacedLedger | None
    ) -> tuple[Fate, OffloadRecord | None]:
        metadata = self._client.metadata(ledger_id)
        if not metadata.is_closed:
            return Fate.NOT_CLOSED, None
        if metadata.last_entry_id < 0:
            return Fate.EMPTY, None
        stored = self._begin(metadata, stored)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if stored.value.state is OffloadState.PREPARED:
                stored = self._upload(stored)
            try:
                if stored.value.state is OffloadState.UPLOADED:
                    stored = self._verify(stored)
                stored = self._publish(stored, metadata, listed)
                return Fate.OFFLOADED, self._clean(stored).value
            except (EntryDamaged, ArchivedFileMissing):
                if attempt == MAX_ATTEMPTS:
                    raise
                stored = self._restart(stored, metadata)
        raise AssertionError("unreachable")

    def _begin(self, metadata: LedgerMetadata, stored: Stored | None) -> Stored:
        """A record that this process may go on with."""
        if stored is None:
            record = OffloadRecord(
                ledger_id=metadata.ledger_id,
                state=OffloadState.PREPARED,
                target=self._settings.target,
                uuid=self._new_uuid(),
                folder=self._folder(metadata),
                ledger=LedgerIdentity.of(metadata),
            )
            return self._store.create(record)
        found = stored.value
        same = found.target == self._settings.target and found.ledger.is_surely(LedgerIdentity.of(metadata))
        if same and found.state in (OffloadState.UPLOADED, OffloadState.VERIFIED):
            return stored
        return self._restart(stored, metadata)

    def _recognised(self, stored: Stored) -> Stored | None:
        """The record, if what it says is archived is the ledger that is there now, or there is none; None: that ledger
        has to be archived."""
        record = stored.value
        if not record.state.is_archived:
            return None
        try:
            metadata = self._client.metadata(record.ledger_id)
        except NoSuchLedger:
            return stored
        identity = LedgerIdentity.of(metadata)
        is_same = record.ledger.is_surely(identity)
        if is_same and record.state is OffloadState.COMPLETE:
            return stored
        if is_same or (metadata.is_closed and record.ledger.has_size_of(identity) and self._has_content(record)):
            return self._store.update(stored, record.of_life(identity, self._now_ms()))
        return None

    def _has_content(self, record: OffloadRecord) -> bool:
        """Return True if the existing ledger holds what was archived."""
        counter = Counter()
        with self._client.open(record.ledger_id, password=self._password) as reader:
            for batch in reader.batches(0, record.ledger.last_entry_id):
                payloads = [entry.payload for entry in batch]
                self._throttle.take(sum(map(len, payloads)))
                counter.add(payloads)
        return counter.counts() == record.counts

    def _restart(self, stored: Stored, metadata: LedgerMetadata) -> Stored:
        record = stored.value.restarted(
            self._settings.target, self._new_uuid(), self._folder(metadata), LedgerIdentity.of(metadata)
        )
        return self._store.update(stored, record)

    def _upload(self, stored: Stored) -> Stored:
        record = stored.value
        folder = temporary_folder(record.uuid)
        try:
            with self._client.open(record.ledger_id, password=self._password) as reader:
                written = write_ledger(
                    self._files,
                    folder,
                    record.ledger_id,
                    record.uuid,
                    reader.batches(0, record.ledger.last_entry_id),
                    self._settings.max_file_bytes,
                    self._throttle,
                )
            if (written.counts.entries - 1, written.counts.nbytes) != (
                record.ledger.last_entry_id,
                record.ledger.length,
            ):
                raise LedgerNotClosed(f"ledger {record.ledger_id} is not the one that the job began with; run it again")
            for file in written.files:
                self._files.sync(f"{folder}/{file.path}")
            placed = tuple(replace(file, path=f"{record.folder}/{file.path}") for file in written.files)
            return self._store.update(stored, record.uploaded(placed, written.counts))
        except Exception as error:
            self._files.delete_folder(folder)
            self._check_ours(record, error)
            raise

    def _verify(self, stored: Stored) -> Stored:
        record = stored.value
        folder = temporary_folder(record.uuid)
        there = [replace(file, path=f"{folder}/{_name(file.path)}") for file in record.files]
        self._compare(record, there)
        return self._store.update(stored, record.verified())

    def _publish(self, stored: Stored, metadata: LedgerMetadata, listed: PlacedLedger | None) -> Stored:
        record = stored.value
        assert record.counts is not None
        self._client.metadata(record.ledger_id)  # a ledger that is gone is not made public
        folder = temporary_folder(record.uuid)
        try:
            for file in record.files:
                self._place(f"{folder}/{_name(file.path)}", file.path, file.nbytes)
            manifest = Manifest(
                record.ledger_id,
                record.uuid,
                self._instance_id,
                record.counts,
                record.files,
                LedgerShape.of(metadata),
                place=None if listed is None else listed.place_of(record.counts),
            )
            path = manifest_file(record.ledger_id, record.uuid)
            self._files.write(path, manifest.encode(), f"{folder}/manifest.json")
            complete = record.complete(self._now_ms())
            stored = self._store.update(stored, complete.placed() if manifest.place is not None else complete)
        except TakenOver:
            self._take_back(record)
            raise
        return stored

    def _place(self, path: str, to: str, nbytes: int) -> None:
        if self._files.size(to) == nbytes:
            return  # moved by a run that died
        if self._files.size(path) != nbytes:
            raise ArchivedFileMissing(f"neither {path} nor {to} is there as it was written")
        self._files.move(path, to)

    # --- what is left behind ----------------------------------------------------------------------------------

    def _clean(self, stored: Stored) -> Stored:
        """Remove what abandoned attempts, and this one, have left in this archive."""
        record = stored.value
        self._files.delete_folder(temporary_folder(record.uuid))
        here = frozenset(each for each in record.abandoned if each.target == record.target)
        if not here:
            return stored
        for attempt in here:
            remove_attempt(self._files, record.ledger_id, attempt)
        return self._store.update(stored, record.without_abandoned(here))

    def _take_back(self, record: OffloadRecord) -> None:
        """Another run has the record. If it goes on with this very attempt the files are its own now."""
        found = self._store.read(record.ledger_id)
        if found is None or found.value.uuid != record.uuid:
            remove_attempt(self._files, record.ledger_id, record.attempt)

    def _check_ours(self, record: OffloadRecord, error: Exception) -> None:
        """A run that took the ledger over removes the files of this one, which then fails in some way or other."""
        found = self._store.read(record.ledger_id)
        if found is not None and found.value.uuid != record.uuid and not isinstance(error, TakenOver):
            raise TakenOver(f"offload {record.key}: another run works on it") from error

    def _forget(self, ledger_id: int) -> None:
        """The ledger is gone: remove what was written of it, then the record. Raises `TakenOver`."""
        stored = self._store.read(ledger_id)
        if stored is None or stored.value.state.is_archived:
            return
        stored = self._store.update(stored, stored.value)  # from here on no other run completes it
        left = (*stored.value.abandoned, stored.value.attempt)
        for attempt in left:
            if attempt.target == self._settings.target:
                remove_attempt(self._files, ledger_id, attempt)
        if all(attempt.target == self._settings.target for attempt in left):
            self._store.delete(stored)

    def _exists(self, ledger_id: int) -> bool:
        try:
            self._client.metadata(ledger_id)
        except NoSuchLedger:
            return False
        return True

    # --- small things -----------------------------------------------------------------------------------------

    def _compare(self, record: OffloadRecord, there: list[ArchivedFile]) -> None:
        if count_files(self._files, record.ledger_id, there, self._throttle) != record.counts:
            raise EntryDamaged(f"the files of ledger {record.ledger_id} do not hold what was written to them")

    def _folder(self, metadata: LedgerMetadata) -> str:
        row = LedgerRow.of(metadata)
        return data_folder(self._settings.partition, row.created_ms, row.stream)

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


def is_unplaced(record: OffloadRecord, listed: PlacedLedger, target: str) -> bool:
    """Return True if the ledger is in the archive `target`, and its place in the stream is not noted there."""
    is_here = record.state.is_archived and record.target == target and not record.is_placed
    return is_here and record.counts is not None and listed.place_of(record.counts) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
