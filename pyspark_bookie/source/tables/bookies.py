"""Tables of bookies and of what else the metadata service has: `bookies`, `cookies`, `streams`.

A bookie that does not answer is a row with an error, never missing from the table.

Event loop of the client only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup
from pyspark_bookie.common.together import bounded
from pyspark_bookie.source.tables.ledgers import DOWN, Row, bookie_states

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_protocol.metadata_service.service_info import BookieServiceInfo

_INSTANCE: Final = re.compile(r'^instanceId: "(.*)"$', re.MULTILINE)


async def bookie_rows(client: Client) -> AsyncIterator[list[Row]]:
    """All that are registered, and all that have a cookie."""
    states = await bookie_states(client)
    known = await _all_bookies(client)
    yield await bounded(sorted(known | set(states)), lambda bookie: _bookie(client, bookie, states.get(bookie, DOWN)))


async def cookie_rows(client: Client) -> AsyncIterator[list[Row]]:
    """The cookie of each bookie that ever had one."""
    rows = await bounded(sorted(await _all_bookies(client)), lambda bookie: _cookie(client, bookie))
    yield [row for row in rows if row is not None]


async def stream_rows(client: Client) -> AsyncIterator[list[Row]]:
    """All streams; open ledgers count with none of their entries."""
    from bookie_client.streams import Streams
    from bookie_protocol.errors import NoSuchStream

    streams = Streams(client)

    async def row(name: str) -> Row | None:
        try:
            manifest = await streams.manifest(name)
        except NoSuchStream:  # deleted meanwhile
            return None
        ledgers = manifest.ledgers
        return (
            manifest.name,
            manifest.generation,
            len(ledgers),
            manifest.entries,
            manifest.nbytes,
            ledgers[0].ledger_id if ledgers else None,
            ledgers[-1].ledger_id if ledgers else None,
            manifest.open_ledger.ledger_id if manifest.open_ledger is not None else None,
            manifest.created_ms * 1000,
            {application: transaction.batch_id for application, transaction in manifest.transactions.items()},
        )

    rows = await bounded(sorted(await streams.names()), row)
    yield [found for found in rows if found is not None]


# --- inside -----------------------------------------------------------------------------------------------------


async def _all_bookies(client: Client) -> frozenset[str]:
    return (await client.metadata_service.bookies.list(BookieGroup.ALL)).bookies


async def _bookie(client: Client, bookie: str, state: str) -> Row:
    if state == DOWN:
        return bookie, state, None, None, None, None, None, "not registered"
    try:
        about = await client.metadata_service.bookies.service_info(bookie)
    except (MetadataNotFound, MetadataDamaged) as error:
        return bookie, state, None, None, None, None, None, str(error)
    address = about.bookie_address()
    shown = None if address is None else f"{address[0]}:{address[1]}"
    known = bookie, state, shown, _endpoints(about), dict(about.properties)
    try:
        space = await client.bookie_info(bookie)
    except PodkeeperError as error:
        return *known, None, None, str(error)
    return *known, space.total_bytes, space.free_bytes, None


def _endpoints(about: BookieServiceInfo) -> dict[str, str]:
    return {each.id: f"{each.protocol}://{each.host}:{each.port}" for each in about.endpoints}


async def _cookie(client: Client, bookie: str) -> Row | None:
    try:
        stored = await client.metadata_service.cookies.read(bookie)
    except MetadataNotFound:
        return None
    text = stored.value.decode("utf-8", "backslashreplace")
    found = _INSTANCE.search(text)
    return bookie, text, found[1] if found else None, stored.version
