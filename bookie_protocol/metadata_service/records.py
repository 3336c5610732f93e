"""Records: versioned documents of Podkeeper's own in the metadata service, apart from everything that is BookKeeper's.

A record has a kind and a name below it, such as the decommission of one bookie. Tools that know nothing of records see
one more node beside the ledgers and leave it alone.

Invariants
- A name of one kind is one document; changes of it are compare-and-set.
- Reading and listing never create anything: a cluster that never had a record of a kind has no names of it.
- `read` and `names` see everything that was written, by any client, before the call.

Errors: those of `interface` (`MetadataUnavailable` where the state is unknown, `MetadataNotFound` without a cluster).

Threads: the event loop on which the service was opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from bookie_protocol.archive import KIND, ArchivedLedger, OffloadRecord
from bookie_protocol.errors import UNREADABLE, BadRequest, MetadataDamaged, MetadataNotFound
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.versioned import Identity, Versioned

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
HISTORY: Final = "history"
"""The kind of the record that names the place to which a cluster was moved."""
HISTORY_NAME: Final = "metadata"
"""The name of that record: {"format": 1, "history": "<random>", "restore": "<random>", "at_ms": ...}. Each move and
each restore writes a new one. `restore` names the newest restore from a backup, and moves carry it on; empty: none."""

_KIND: Final = re.compile(r"[a-z][a-z0-9\-]{0,63}")
_MAX_NAME: Final = 512


class RecordStore(Protocol):
    """The records of one kind. `timeout` as in `interface`: seconds for each request, None for the default."""

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        """Store a first version. `MetadataExists` if there is a record of this name."""
        ...

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """`MetadataNotFound` if there is none."""
        ...

    async def update(self, name: str, data: bytes, record: Identity, /, *, timeout: float | None = None) -> Identity:
        """Replace this very record. `MetadataVersionConflict`, `MetadataReplaced`, `MetadataNotFound`."""
        ...

    async def overwrite(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        """Replace whatever record bears the name. `MetadataNotFound`."""
        ...

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        """Delete whatever record bears the name. `MetadataNotFound`."""
        ...

    async def delete_this(self, name: str, record: Identity, /, *, timeout: float | None = None) -> None:
        """Delete this very record as it was read, none that was made under its name since, in the session in which it
        was read or not at all.

        `MetadataVersionConflict`: it was changed. `MetadataReplaced`: it is another one. `MetadataNotFound`,
        `SessionEnded`.
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


async def history_of(records: Callable[[str], RecordStore]) -> str:
    """The record `history` as it is stored; empty: the cluster was never moved. Raises `MetadataUnavailable`."""
    try:
        return (await records(HISTORY).read(HISTORY_NAME)).value.decode("utf-8", "replace")
    except MetadataNotFound:
        return ""


def split_history(stored: str) -> tuple[str, str]:
    """The name of the place, and of the newest restore. A record that cannot be understood is like no other."""
    try:
        found = json.loads(stored or '{"history": "", "restore": ""}')
        return str(found["history"]), str(found["restore"])
    except UNREADABLE:
        return stored, stored


async def archived_ledger(records: Callable[[str], RecordStore], ledger_id: int) -> ArchivedLedger | None:
    """Return the archived copy of a ledger; None if there is no complete one. Raises `MetadataUnavailable`,
    `MetadataDamaged`."""
    try:
        stored = await records(KIND).read(str(ledger_id))
    except MetadataNotFound:
        return None
    try:
        record = OffloadRecord.decode(stored.value)
    except MetadataDamaged as error:
        raise MetadataDamaged(f"ledger {ledger_id}: {error}") from error
    if record.ledger_id != ledger_id:
        raise MetadataDamaged(f"the record of kind {KIND} of ledger {ledger_id} is that of ledger {record.ledger_id}")
    return record.archived
