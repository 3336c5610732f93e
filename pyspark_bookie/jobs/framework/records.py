"""Records of jobs in the metadata service, by a blocking client.

Invariants
- `TakenOver` means that another process has changed the record: this one must not go on.
- A write whose answer was lost is recognised: what is stored equals what was to be stored.

Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataVersionConflict, Refused
from bookie_protocol.together import bounded
from bookie_protocol.versioned import Versioned

if TYPE_CHECKING:
    from bookie_client import Client
    from bookie_client.blocking import BlockingClient

_READ_AT_ONCE: Final = 64


class TakenOver(Refused):
    """Another run works on this ledger."""


class Record(Protocol):
    """A stored record."""

    @property
    def key(self) -> str:
        """The record's name below its kind."""
        ...

    def encode(self) -> bytes: ...


R = TypeVar("R", bound=Record)


class JobRecords(Generic[R]):
    """The records of one kind; `decode` raises `MetadataDamaged`. The client is the caller's."""

    def __init__(self, client: BlockingClient, kind: str, decode: Callable[[bytes], R]) -> None:
        self._client = client
        self._kind = kind
        self._decode = decode

    def find(self, key: str) -> Versioned[R] | None:
        """None: there is no record. Raises `MetadataUnavailable`, `MetadataDamaged`."""
        try:
            found = self._client.run(lambda client: client.metadata_service.records(self._kind).read(key))
        except MetadataNotFound:
            return None
        return Versioned(self._decode(found.value), found.identity)

    def create(self, record: R) -> Versioned[R]:
        """Store a first record. Raises `TakenOver`."""
        data, key = record.encode(), record.key
        try:
            identity = self._client.run(lambda client: client.metadata_service.records(self._kind).create(key, data))
        except MetadataExists:
            return self._as_stored(record)
        return Versioned(record, identity)

    def update(self, stored: Versioned[R], record: R) -> Versioned[R]:
        """Replace what was read. Raises `TakenOver`."""
        data, key = record.encode(), record.key
        try:
            identity = self._client.run(
                lambda client: client.metadata_service.records(self._kind).update(key, data, stored.identity)
            )
        except (MetadataVersionConflict, MetadataNotFound):
            return self._as_stored(record)
        return Versioned(record, identity)

    def delete(self, stored: Versioned[R]) -> None:
        """Remove what was read; a record that is gone is fine. Raises `TakenOver`."""
        key = stored.value.key
        taken = TakenOver(f"{self._kind} {key}: another run works on it")
        try:
            found = self._client.run(lambda client: client.metadata_service.records(self._kind).read(key))
            if Versioned(self._decode(found.value), found.identity) != stored:
                raise taken
            self._client.run(
                lambda client: client.metadata_service.records(self._kind).delete_this(key, found.identity)
            )
        except MetadataNotFound:
            return
        except MetadataVersionConflict as error:
            raise taken from error

    def keys(self) -> frozenset[str]:
        """Return the names of all records of the kind."""
        return self._client.run(lambda client: client.metadata_service.records(self._kind).names())

    def find_all(self, keys: Sequence[str]) -> dict[str, R]:
        """Return the records that there are under these keys. Raises as `find`."""
        return self._client.run(lambda client: self._read_all(client, keys))

    async def _read_all(self, client: Client, keys: Sequence[str]) -> dict[str, R]:
        found: dict[str, R] = {}
        records = client.metadata_service.records(self._kind)

        async def read(key: str) -> None:
            try:
                found[key] = self._decode((await records.read(key)).value)
            except MetadataNotFound:
                return  # removed since it was listed

        await bounded(keys, read, _READ_AT_ONCE)
        return found

    def _as_stored(self, record: R) -> Versioned[R]:
        found = self.find(record.key)
        if found is None or found.value != record:
            raise TakenOver(f"{self._kind} {record.key}: another run works on it")
        return found
