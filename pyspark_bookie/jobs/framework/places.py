"""Reading where streams list ledgers.

Driver only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bookie_client.streams.store import ManifestStore
from bookie_protocol.errors import BadRequest, MetadataDamaged, NoSuchStream
from bookie_protocol.together import bounded
from pyspark_bookie.archive.places import PlacedLedger, StreamPlace

if TYPE_CHECKING:
    from bookie_client import BlockingClient, Client
    from bookie_client.streams import Manifest

_READ_AT_ONCE = 16


def placed_ledgers(
    client: BlockingClient, streams: Iterable[str], log: Callable[[str], None]
) -> dict[int, PlacedLedger]:
    """Return the ledgers of these streams. A stream that does not exist, or whose list cannot be read, gives
    none. Raises `MetadataUnavailable`."""
    found: dict[int, PlacedLedger] = {}

    async def read(inner: Client, name: str) -> None:
        try:
            manifest = (await ManifestStore(inner.metadata_service).read(name, even_deleting=True)).manifest
        except (NoSuchStream, BadRequest):  # custom metadata may name anything
            return
        except MetadataDamaged as error:
            log(f"the places of ledgers in stream {name} are unknown: {error}")
            return
        found.update(places_in(manifest))

    names = sorted(set(streams))
    client.run(lambda inner: bounded(names, lambda name: read(inner, name), _READ_AT_ONCE))
    return found


def places_in(manifest: Manifest) -> dict[int, PlacedLedger]:
    """Return the ledgers that a stream lists, by id."""
    return {
        ledger.ledger_id: PlacedLedger(
            StreamPlace(manifest.name, manifest.created_ms, manifest.generation, ledger.first_ordinal),
            ledger.entries,
            ledger.nbytes,
            ledger.crc,
        )
        for ledger in manifest.ledgers
    }
