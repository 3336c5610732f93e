"""Which ledgers of a stream stand in an archive: what `bookie job offload` noted of them in the metadata service.

Invariants
- A ledger is in an archive on the word of a record of kind `offload` alone, and with as many entries as the stream
  lists: the Spark source and the jobs go by the same. That bookies still hold it, or do not, is another matter.
- What cannot be told raises, and is never "not there".

The records are written by `pyspark_bookie.archive.record`, which this package does not import; a test holds the two
together.

Event loop of the client only.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from bookie_client.streams import Manifest
from bookie_client.streams.model import StreamLedger
from bookie_client.streams.together import together
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.records import RecordStore

_KIND: Final = "offload"
_VERSION: Final = 1
_ARCHIVED: Final = frozenset({"COMPLETE", "BK_DELETED"})
"""States in which readers find a ledger in the archive."""


async def offloaded(service: MetadataService, manifest: Manifest) -> frozenset[int]:
    """The ledgers of a stream that are in an archive as a whole. Raises `MetadataUnavailable`, `MetadataDamaged`."""
    records = service.records(_KIND)
    names = await records.names()
    noted = [ledger for ledger in manifest.ledgers if not ledger.is_open and str(ledger.ledger_id) in names]
    found = await together([partial(_is_archived, records, ledger) for ledger in noted])
    return frozenset(ledger.ledger_id for ledger, is_archived in zip(noted, found, strict=True) if is_archived)


async def _is_archived(records: RecordStore, listed: StreamLedger) -> bool:
    try:
        stored = await records.read(str(listed.ledger_id))
    except MetadataNotFound:
        return False  # removed since it was listed
    try:
        row = json.loads(stored.value)
        if row["v"] != _VERSION:
            raise ValueError(f"version {row['v']}")
        if row["ledger_id"] != listed.ledger_id:
            raise ValueError(f"it is that of ledger {row['ledger_id']}")
        return row["state"] in _ARCHIVED and bool(row["counts"]["entries"] == listed.entries)
    except (KeyError, ValueError, TypeError) as error:
        raise MetadataDamaged(
            f"the record of kind {_KIND} of ledger {listed.ledger_id} cannot be read: {error!r}"
        ) from error
