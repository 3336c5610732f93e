"""Rows of the metadata tables `ledgers`, `fragments`, `replicas`, `underreplicated`, `bookies`, `cookies`, `streams`.

Only its bookies know the end of a ledger that is not closed: counts that depend on it are null. A bookie that does not
answer is a row with an error, never missing from its table.

Event loop of the client only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bookie_client.replication.fragments import StripedEntries
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.together import bounded
from pyspark_bookie.source.options import SourceOptions, Table
from pyspark_bookie.source.selection import matching, stored_metadata

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_protocol.metadata_service.service_info import BookieServiceInfo

Row = tuple[Any, ...]
READ_AT_A_TIME: Final = 1_000
WRITABLE: Final = "writable"
READ_ONLY: Final = "read-only"
DOWN: Final = "down"


async def ledger_rows(
    client: Client, table: Table, ledger_ids: Sequence[int], options: SourceOptions
) -> AsyncIterator[list[Row]]:
    """Rows of these ledgers; those deleted meanwhile have none. Raises `MetadataUnavailable`, `MetadataDamaged`."""
    wanted = matching(options.ledger_pattern) if options.ledger_pattern is not None else lambda _: True
    rows_of: Callable[[LedgerMetadata], Iterator[Row]] = _ROWS[table]
    if table is Table.REPLICAS:
        states = await bookie_states(client)
        rows_of = lambda metadata: _replicas(metadata, states)  # noqa: E731 - one of several of the same kind
    for start in range(0, len(ledger_ids), READ_AT_A_TIME):
        some = ledger_ids[start : start + READ_AT_A_TIME]
        found = await bounded(some, lambda ledger_id: stored_metadata(client, ledger_id))
        chosen = [each.value for each in found if each is not None and wanted(each.value.custom_metadata)]
        yield [row for metadata in chosen for row in rows_of(metadata)]


async def underreplicated_rows(client: Client, options: SourceOptions) -> AsyncIterator[list[Row]]:
    """Every mark, with who works on it."""
    service = client.metadata_service.under_replication
    locks = await service.locks()
    rows: list[Row] = []
    async for mark in service.list():
        if options.ledgers is not None and mark.ledger_id not in options.ledgers:
            continue
        marked = _microseconds(mark.ctime_ms)
        rows.append((mark.ledger_id, sorted(mark.replicas), marked, locks.get(mark.ledger_id)))
        if len(rows) == READ_AT_A_TIME:
            yield rows
            rows = []
    yield rows


async def bookie_states(client: Client) -> dict[str, str]:
    """Return `writable` or `read-only` by bookie; a bookie that is not included is registered nowhere."""
    registry = client.metadata_service.bookies
    states = dict.fromkeys((await registry.list(BookieGroup.READ_ONLY)).bookies, READ_ONLY)
    return states | dict.fromkeys((await registry.list(BookieGroup.WRITABLE)).bookies, WRITABLE)


# --- inside -----------------------------------------------------------------------------------------------------


def _ledger(metadata: LedgerMetadata) -> Iterator[Row]:
    closed = metadata.is_closed
    custom = {key: value.decode("utf-8", "backslashreplace") for key, value in metadata.custom_metadata.items()}
    yield (
        metadata.ledger_id,
        metadata.state.value,
        metadata.last_entry_id + 1 if closed else None,
        metadata.length if closed else None,
        metadata.last_entry_id if closed else None,
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        None if metadata.digest_type is None else metadata.digest_type.name,
        _microseconds(metadata.ctime),
        len(metadata.ensembles),
        sorted(metadata.all_bookies()),
        custom,
        metadata.format_version,
    )


def _segments(metadata: LedgerMetadata) -> Iterator[tuple[int, int | None, tuple[str, ...], bool]]:
    """First entry, last one if it is known, ensemble, whether it is the last segment."""
    starts = metadata.first_entry_ids
    for place, first in enumerate(starts):
        is_last = place + 1 == len(starts)
        end = metadata.last_entry_id if metadata.is_closed else None
        last = end if is_last else starts[place + 1] - 1
        yield first, last, metadata.ensembles[first], is_last


def _bytes(metadata: LedgerMetadata, entries: int | None) -> int | None:
    """About: as many as entries of average size have."""
    total = metadata.last_entry_id + 1
    if entries is None or not metadata.is_closed or not total:
        return 0 if entries == 0 else None
    return metadata.length * entries // total


def _fragments(metadata: LedgerMetadata) -> Iterator[Row]:
    for first, last, bookies, is_last in _segments(metadata):
        entries = None if last is None else last - first + 1
        size = _bytes(metadata, entries)
        yield metadata.ledger_id, first, last, entries, size, is_last, metadata.state.value, list(bookies)


def _replicas(metadata: LedgerMetadata, states: dict[str, str]) -> Iterator[Row]:
    for first, last, bookies, _ in _segments(metadata):
        for position, bookie in enumerate(bookies):
            quorums = metadata.ensemble_size, metadata.write_quorum_size
            entries = None if last is None else len(StripedEntries(first, last, position, *quorums))
            state, size = states.get(bookie, DOWN), _bytes(metadata, entries)
            yield metadata.ledger_id, first, last, position, bookie, state, entries, size


_ROWS: Final = {
    Table.LEDGERS: _ledger,
    Table.FRAGMENTS: _fragments,
    Table.REPLICAS: lambda metadata: _replicas(metadata, {}),
}


def _microseconds(ms: int | None) -> int | None:
    """Return a time as Spark has it; None for one that it cannot hold: the ledger's creator chose it."""
    return None if ms is None or abs(ms) >= 1 << 53 else ms * 1000


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
