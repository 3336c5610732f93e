"""Records: versioned documents of Podkeeper's own in the metadata service, apart from everything that is BookKeeper's.

A record has a kind and a name below it, such as the decommission of one bookie. Tools that know nothing of records see
one more node beside the ledgers and leave it alone.

Invariants
- A name of one kind is one document; changes of it are compare-and-set.
- Reading and listing never create anything: a cluster that never had a record of a kind has no names of it.
- `read` and `names` see everything that was written, by anybody, before the call.

Errors: those of `interface` (`MetadataUnavailable` where nothing can be told, `MetadataNotFound` without a cluster).

Threads: the event loop on which the service was opened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from bookie_protocol.archive import KIND, ArchivedLedger, OffloadRecord
from bookie_protocol.errors import BadRequest, MetadataDamaged, MetadataNotFound
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.versioned import Identified, Identity, Versioned

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.interface import MetadataService

DECOMMISSION: Final = "decommission"
"""The kind of records that tell which bookies are being taken out of the cluster; names are bookie ids."""
STREAM: Final = "stream"
"""The kind of records that are the heads of streams of ledgers; names are those of the streams."""
STREAM_SEGMENT: Final = "stream-segment"
"""The kind of records that hold parts of long streams; names are "stream:id"."""
STREAM_CURSOR: Final = "stream-cursor"
"""The kind of records that tell how far consumers of streams are; names are "stream:cursor"."""
STREAM_GRAVE: Final = "stream-grave"
"""The kind of records that tell which heads are of streams that were deleted; names are those of the streams."""

_KIND: Final = re.compile(r"[a-z][a-z0-9\-]{0,63}")
_MAX_NAME: Final = 512


class RecordStore(Protocol):
    """The records of one kind. `timeout` as in `interface`: seconds for each request, None for the default."""

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> int:
        """Store a first version and return its token. `MetadataExists` if there is a record of this name."""
        ...

    async def read(self, name: str, *, timeout: float | None = None) -> Identified[bytes]:
        """`MetadataNotFound` if there is none."""
        ...

    async def update(self, name: str, data: bytes, version: int, *, timeout: float | None = None) -> int:
        """Replace and return the new token. `MetadataVersionConflict`, `MetadataNotFound`."""
        ...

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        """Whatever record bears the name. `MetadataNotFound`."""
        ...

    async def delete_this(self, name: str, record: Identity, *, timeout: float | None = None) -> None:
        """Delete this very record as it was read, none that was made under its name since, in the session in which it
        was read or not at all.

        `MetadataVersionConflict`: it was changed, or is another one. `MetadataNotFound`, `SessionEnded`.
        """
        ...

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        """The names of all records of this kind."""
        ...

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        """The record now (None: there is none), then each newer version. Faults are ridden out."""
        ...


def check_kind(kind: str) -> str:
    """The kind, if it may be one; `BadRequest` otherwise."""
    if not _KIND.fullmatch(kind):
        raise BadRequest(
            f"{kind[:100]!r} is not a kind of records: lower-case letters, digits and hyphens, a letter first"
        )
    return kind


def check_name(name: str) -> str:
    """The name, if a node may have it; `BadRequest` otherwise."""
    if not 0 < len(name) <= _MAX_NAME or "/" in name or name in (".", "..") or not name.isprintable():
        raise BadRequest(
            f"{name[:100]!r} is not a valid name of a record: 1 to {_MAX_NAME} printable characters without '/'"
        )
    return name


async def archived_ledger(service: MetadataService, ledger_id: int) -> ArchivedLedger | None:
    """What the archive has of a ledger; None: nothing that is complete. Raises `MetadataUnavailable`,
    `MetadataDamaged`."""
    try:
        stored = await service.records(KIND).read(str(ledger_id))
    except MetadataNotFound:
        return None
    try:
        record = OffloadRecord.decode(stored.value)
    except MetadataDamaged as error:
        raise MetadataDamaged(f"ledger {ledger_id}: {error}") from error
    if record.ledger_id != ledger_id:
        raise MetadataDamaged(f"the record of kind {KIND} of ledger {ledger_id} is that of ledger {record.ledger_id}")
    return record.archived
