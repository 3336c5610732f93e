"""Which ledgers of a stream stand in an archive: what `bookie job offload` noted of them in the metadata service.

Invariants
- A ledger counts with as many entries as the stream lists, as for the Spark source and the jobs.
- What cannot be told raises, and is never "not there".

Event loop of the client only.
"""

from __future__ import annotations

from functools import partial

from bookie_client.streams import Manifest
from bookie_client.streams.model import StreamLedger
from bookie_client.streams.together import together
from bookie_protocol.archive.lookup import archived_ledger
from bookie_protocol.archive.record import KIND
from bookie_protocol.metadata_service.interface import MetadataService


async def offloaded(service: MetadataService, manifest: Manifest) -> frozenset[int]:
    """The ledgers of a stream that are in an archive as a whole. Raises `MetadataUnavailable`, `MetadataDamaged`."""
    names = await service.records(KIND).names()
    noted = [ledger for ledger in manifest.ledgers if not ledger.is_open and str(ledger.ledger_id) in names]
    found = await together([partial(_is_archived, service, ledger) for ledger in noted])
    return frozenset(ledger.ledger_id for ledger, is_archived in zip(noted, found, strict=True) if is_archived)


async def _is_archived(service: MetadataService, listed: StreamLedger) -> bool:
    there = await archived_ledger(service, listed.ledger_id)
    return there is not None and there.counts.entries == listed.entries
