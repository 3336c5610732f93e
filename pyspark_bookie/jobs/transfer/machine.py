"""One ledger from a source into a cluster: written, closed, read again, compared.

A run that died left a record in WRITING, and perhaps a ledger with the attempt's tag: the next one deletes that ledger
and starts again. Nothing refers to a ledger before its record is COMPLETE; so before a ledger is deleted its record is
written again unchanged, by compare-and-set, and a run that is about to complete it fails.

Entries keep their ids, because a ledger's entries begin at 0 and have no gaps. A ledger that has to keep its own id is
created only where none of this id exists; an existing one that is not of this transfer is left alone and reported.

One thread uses a `Transferrer`; it may be in any process.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_client.streams.model import APPLICATION, GOING_KEY, STREAM_KEY, WRITER_KEY
from bookie_client.streams.store import ManifestStore
from bookie_protocol.archive import Counts
from bookie_protocol.errors import (
    BadRequest,
    EntryDamaged,
    LedgerIdInUse,
    LedgerIdsExhausted,
    MetadataVersionConflict,
    NoSuchLedger,
    Refused,
    SessionEnded,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import Versioned
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.places import PLACE_KEY, StreamPlace
from pyspark_bookie.common.secrets import read_secret
from pyspark_bookie.jobs.framework.ledgers import text_of
from pyspark_bookie.jobs.framework.records import JobRecords, TakenOver
from pyspark_bookie.jobs.transfer.record import KIND, TRANSFER_KEY, TransferRecord, TransferState, record_key
from pyspark_bookie.jobs.transfer.sources import LedgerAtSource, OpenSource

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient

_ID_TRIES: Final = 20
_BATCHES_UNDER_WAY: Final = 4
_STREAM_TAGS: Final = (STREAM_KEY, WRITER_KEY, GOING_KEY, PLACE_KEY)
"""Custom metadata that would make another stream's ledger of the new one, or one that no stream takes: a deletion that
found the ledger listed after all may not have lived to take its mark back."""

Stored = Versioned[TransferRecord]


class TransferFate(Enum):
    """The outcome of a ledger in this run."""

    MADE = "made"
    ALREADY = "already there"
    EXISTS = "another ledger of this id is there"
    TAKEN_OVER = "another run works on it"


@dataclass(frozen=True)
class TransferSettings:
    """`name` of the transfer. `stream`: whose ledgers the new ones are to become. Quorums: None: as at the source.
    `password_file`: that of the new ledgers; None: as at the source, or empty where the source does not tell."""

    name: str
    keep_ids: bool
    stream: str | None = None
    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    password_file: str | None = None


class Transferrer:
    """`client` is that of the cluster that gets the ledgers. `ledger_ids`: of the bundle. `records` and `new_uuid` are
    there for tests."""

    def __init__(
        self,
        client: BlockingClient,
        source: OpenSource,
        settings: TransferSettings,
        *,
        ledger_ids: Collection[int] = (),
        records: JobRecords[TransferRecord] | None = None,
        new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._client = client
        self._source = source
        self._settings = settings
        self._records = records or transfer_records(client)
        self._new_uuid = new_uuid
        self._ledger_ids = ledger_ids
        self._listed: dict[int, frozenset[str]] = {}
        path = settings.password_file
        self._new_password = None if path is None else read_secret("--new-password-file", path)

    def transfer(
        self, source_id: int, uuid: str = "", life: str = "", place: StreamPlace | None = None
    ) -> tuple[TransferFate, TransferRecord | None]:
        """Bring a ledger to COMPLETE; `uuid`, `life` and `place` as in `LedgerRow`.

        Raises `NoSuchLedger` (the source has none), `EntryDamaged` (what was read again is not what was written),
        `Refused` (a transfer of this name has made another ledger of this number), `TakenOver`, and what reading and
        writing raise: then no ledger stays behind."""
        stored = self._records.find(record_key(self._settings.name, source_id))
        if stored is not None and (made := self._made(stored.value)) is not None:
            self._check_stream(made)
            if not life or stored.value.life != life:
                stored = self._recognised(stored, self._source.ledger(source_id, uuid), life)
            return TransferFate.ALREADY, stored.value
        if stored is not None:
            stored = self._records.update(stored, stored.value)  # from here on no other run completes it
            self._remove(stored.value)
        ledger = self._source.ledger(source_id, uuid)
        if self._settings.keep_ids and self._metadata(source_id) is not None:
            return TransferFate.EXISTS, None
        stored = self._begin(source_id, life, stored)
        try:
            counts = self._write(stored.value, ledger, place)
            self._verify(stored.value, ledger, counts)
            stored = self._records.update(stored, stored.value.complete(counts))
        except Exception as error:
            self._give_up(stored)
            if self._settings.keep_ids and isinstance(error, (LedgerIdInUse, Unauthorized)):
                raise type(error)(
                    f"bookies still have a ledger {source_id} of before: give its password by --new-password-file, or"
                    f" wait until their garbage collection has removed it, or leave --keep-ids out ({error})"
                ) from error
            raise
        return TransferFate.MADE, stored.value

    # --- its steps --------------------------------------------------------------------------------------------

    def _recognised(self, stored: Stored, ledger: LedgerAtSource, life: str) -> Stored:
        """The record, if what was made is what the source has now, though that is not known to be the same ledger:
        the content decides. Raises `Refused`."""
        record = stored.value
        if (ledger.expected() or _counted(ledger)) != record.counts:
            raise Refused(
                f"the transfer {record.name} has made ledger {record.target_id} of another ledger {record.source_id},"
                " with other content: give this transfer a --name of its own"
            )
        return self._records.update(stored, replace(record, life=life))

    def _begin(self, source_id: int, life: str, stored: Stored | None) -> Stored:
        record = TransferRecord(
            name=self._settings.name,
            source_id=source_id,
            state=TransferState.WRITING,
            target_id=source_id if self._settings.keep_ids else self._free_id(),
            uuid=self._new_uuid(),
            life=life,
        )
        return self._records.create(record) if stored is None else self._records.update(stored, record)

    def _write(self, record: TransferRecord, ledger: LedgerAtSource, place: StreamPlace | None) -> Counts:
        """Create, fill and close the target."""
        settings, shape = self._settings, ledger.shape
        custom = {key: value for key, value in shape.custom_metadata.items() if key not in _STREAM_TAGS}
        custom[TRANSFER_KEY] = record.tag
        stream = settings.stream or (self._listing(record.target_id) if settings.keep_ids else None)
        if stream is not None:
            custom |= {"application": APPLICATION.encode(), STREAM_KEY: stream.encode()}
        if settings.stream is not None and place is not None:
            custom[PLACE_KEY] = place.encode()
        counter = Counter()
        with self._client.create(
            ensemble=settings.ensemble or shape.ensemble_size,
            write_quorum=settings.write_quorum or shape.write_quorum_size,
            ack_quorum=settings.ack_quorum or shape.ack_quorum_size,
            password=self._password(ledger),
            digest=shape.digest_type,
            metadata=custom,
            ledger_id=record.target_id,
            restored=settings.keep_ids,
        ) as writer:
            under_way: deque[Future[list[int]]] = deque()
            for payloads in ledger.payloads():
                counter.add(payloads)
                under_way.append(writer.submit_many(payloads))
                if len(under_way) > _BATCHES_UNDER_WAY:
                    under_way.popleft().result()
            for batch in under_way:
                batch.result()
        return counter.counts()

    def _verify(self, record: TransferRecord, ledger: LedgerAtSource, counts: Counts) -> None:
        expected = ledger.expected()
        if expected is not None and expected != counts:
            raise EntryDamaged(f"ledger {record.source_id} at the source is not what was recorded of it")
        counter = Counter()
        with self._client.open(record.target_id, password=self._password(ledger)) as reader:
            if counts.entries:
                for batch in reader.batches(0, counts.entries - 1):
                    counter.add([entry.payload for entry in batch])
            end = reader.metadata.last_entry_id
        if counter.counts() != counts or end != counts.entries - 1:
            raise EntryDamaged(f"ledger {record.target_id} does not hold what was written to it")

    # --- what is there ----------------------------------------------------------------------------------------

    def _made(self, record: TransferRecord) -> LedgerMetadata | None:
        """Return the ledger that the transfer has made, if it is there."""
        if record.state is not TransferState.COMPLETE or record.counts is None:
            return None
        metadata = self._metadata(record.target_id)
        is_there = (
            metadata is not None
            and metadata.is_closed
            and metadata.custom_metadata.get(TRANSFER_KEY) == record.tag
            and (metadata.last_entry_id + 1, metadata.length) == (record.counts.entries, record.counts.nbytes)
        )
        return metadata if is_there else None

    def _check_stream(self, made: LedgerMetadata) -> None:
        """A ledger is one stream's, so what was made for another one, or for none, is of no use for this one."""
        name, owner = self._settings.stream, text_of(made.custom_metadata.get(STREAM_KEY))
        if name is not None and name != owner:
            raise Refused(
                f"the transfer {self._settings.name} has made ledger {made.ledger_id} for"
                f" {'no stream' if owner is None else f'stream {owner}'}: give the one into stream {name} a --name of"
                " its own"
            )

    def _give_up(self, stored: Stored) -> None:
        """Remove what this attempt has written, unless it counts by now: the answer may be lost that it is complete."""
        try:
            self._records.update(stored, stored.value)
        except TakenOver:
            found = self._records.find(stored.value.key)
            if found is not None and (found.value.uuid, found.value.state) == (
                stored.value.uuid,
                TransferState.COMPLETE,
            ):
                return
        self._remove(stored.value)

    def _remove(self, record: TransferRecord) -> None:
        """Delete the ledger of an attempt, but not one that another client creates under its id meanwhile."""
        while True:
            try:
                found = self._client.run(lambda client: client.stored_metadata(record.target_id))
            except NoSuchLedger:
                return
            if found.value.custom_metadata.get(TRANSFER_KEY) != record.tag:
                return
            with suppress(MetadataVersionConflict, SessionEnded):  # its writer lives, or it is another one
                self._client.run(lambda client, found=found: client.metadata_service.ledgers.delete_this(found))  # type: ignore[misc]
                return

    def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return self._client.metadata(ledger_id)
        except NoSuchLedger:
            return None

    def _free_id(self) -> int:
        for _ in range(_ID_TRIES):
            ledger_id = self._client.run(lambda client: client.metadata_service.ledgers.generate_id())
            if self._metadata(ledger_id) is None:
                return ledger_id
        raise LedgerIdsExhausted("the cluster gives only ids of ledgers that exist")

    def _listing(self, ledger_id: int) -> str | None:
        """The stream that lists the ledger, which comes back to it: no other one may take it. A stream lists nothing
        that does not exist, so that all are asked once for the bundle."""
        if ledger_id not in self._listed:
            among = {ledger_id, *self._ledger_ids}
            found = self._client.run(lambda client: ManifestStore(client.metadata_service).listing(among))
            self._listed = {each: found.get(each, frozenset()) for each in among}
        return min(self._listed[ledger_id], default=None)

    def _password(self, ledger: LedgerAtSource) -> bytes:
        return self._new_password if self._new_password is not None else (ledger.password or b"")


def _counted(ledger: LedgerAtSource) -> Counts:
    counter = Counter()
    for payloads in ledger.payloads():
        counter.add(payloads)
    return counter.counts()


def transfer_records(client: BlockingClient) -> JobRecords[TransferRecord]:
    """Return the records of all transfers into a cluster."""
    return JobRecords(client, KIND, TransferRecord.decode)


def check_name(name: str) -> str:
    """The name, if a transfer may have it; `BadRequest` otherwise."""
    if not name or len(name) > 200 or not all(character.isalnum() or character in "_-" for character in name):
        raise BadRequest(f"{name[:100]!r} is not a valid name of a transfer: letters, digits, '_' and '-', at most 200")
    return name
