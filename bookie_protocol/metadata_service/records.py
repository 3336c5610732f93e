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
from collections.abc import Callable
from typing import Final

from bookie_protocol.archive import KIND, ArchivedLedger, OffloadRecord
from bookie_protocol.errors import UNREADABLE, MetadataDamaged, MetadataNotFound
from bookie_protocol.metadata_service.tree.documents import RecordStore

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


async def history_of(records: Callable[[str], RecordStore]) -> str:
    """Return the record `history` as it is stored; empty: the cluster was never moved. Raises `MetadataUnavailable`."""
    try:
        return (await records(HISTORY).read(HISTORY_NAME)).value.decode("utf-8", "replace")
    except MetadataNotFound:
        return ""


def split_history(stored: str) -> tuple[str, str]:
    """Return the name of the place, and of the newest restore. A record that cannot be understood is like no other."""
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
