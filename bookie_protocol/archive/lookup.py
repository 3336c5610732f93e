"""Whether a ledger is in an archive, on the word of its record in the metadata service.

Invariants
- A ledger is in the archive on the record's word alone; without one, on the metadata service's word, it is not. What
  cannot be told raises, and is never "not there". That bookies still hold the ledger, or do not, is another matter.

Threads: the event loop on which the service was opened.
"""

from __future__ import annotations

from bookie_protocol.archive.model import ArchivedLedger
from bookie_protocol.archive.record import KIND, OffloadRecord
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.metadata_service.interface import MetadataService


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
