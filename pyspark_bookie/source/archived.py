"""The archived copies of ledgers that are gone from the cluster, and their custom metadata.

Copies are found by the records that `offload` keeps in the metadata service, custom metadata by the archive's
manifests.

Invariants
- A ledger is in the archive on the record's word alone; without one, on the metadata service's word, it is not. An
  unknown state raises, and is never "not there".

Event loop of the client only; files are read by threads beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie_protocol.archive import KIND, ArchivedLedger
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.shown import shown_uri
from bookie_protocol.together import bounded
from pyspark_bookie.archive.files import ArchivedFileMissing, ArchiveUnavailable, Files
from pyspark_bookie.archive.reading import read_manifest
from pyspark_bookie.common.ledger_ids import LedgerIds

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.streams.model import StreamLedger

_MANIFESTS_AT_A_TIME: Final = 16


async def all_archived(client: Client, ledger_ids: Iterable[int]) -> dict[int, ArchivedLedger]:
    """Return those of these ledgers that are in the archive. Raises as `archived`."""
    found = await bounded(list(ledger_ids), partial(archived_ledger, client.metadata_service.records))
    return {each.ledger_id: each for each in found if each is not None}


def is_as_listed(metadata: LedgerMetadata, listed: StreamLedger | None) -> bool:
    """Return True if the cluster's ledger can be the one that a stream lists; `listed` None: no list has its length."""
    if listed is None or listed.entries is None:
        return True
    return metadata.is_closed and (metadata.last_entry_id + 1, metadata.length) == (listed.entries, listed.nbytes)


def holds_listed(archive: ArchivedLedger, listed: StreamLedger | None) -> bool:
    """The same of the archive's."""
    if listed is None or listed.entries is None:
        return True
    counts = archive.counts
    is_same = listed.crc in (None, counts.payload_crc)
    return is_same and (counts.entries, counts.nbytes) == (listed.entries, listed.nbytes)


async def recorded(client: Client, ids: LedgerIds | None = None) -> frozenset[int]:
    """Return the ledgers that `offload` has a record of; of these, if given. Raises `MetadataUnavailable`."""
    names = await client.metadata_service.records(KIND).names()
    found = (int(name) for name in names if name.isascii() and name.isdigit())
    return frozenset(each for each in found if ids is None or each in ids)


async def custom_metadata(ledgers: Iterable[ArchivedLedger]) -> dict[int, Mapping[str, bytes]]:
    """Return the custom metadata of ledgers, by id. Raises `ArchivedFileMissing`, `ArchiveUnavailable`,
    `MetadataDamaged`."""
    opened: dict[str, Files] = {}

    async def one(ledger: ArchivedLedger) -> tuple[int, Mapping[str, bytes]]:
        return ledger.ledger_id, await asyncio.to_thread(_custom_metadata, ledger, opened)

    return dict(await bounded(list(ledgers), one, _MANIFESTS_AT_A_TIME))


def _custom_metadata(ledger: ArchivedLedger, opened: dict[str, Files]) -> Mapping[str, bytes]:
    what = f"the manifest of ledger {ledger.ledger_id} in {shown_uri(ledger.target)}"
    remedy = "tiers=bookies leaves the archive out"
    try:
        files = opened.get(ledger.target)
        if files is None:
            files = opened[ledger.target] = Files(ledger.target, "the archive")
        manifest = read_manifest(files, ledger.ledger_id, ledger.uuid)
    except (ArchiveUnavailable, MetadataDamaged) as error:
        raise type(error)(f"{what}: {error}; {remedy}") from None
    if manifest is None:
        raise ArchivedFileMissing(f"{what} is not there; {remedy}")
    return manifest.shape.custom_metadata
