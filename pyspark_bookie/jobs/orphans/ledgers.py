"""Orphaned ledgers of one piece of work: found by their owners' lists, removed under a guard.

Invariants
- Only a ledger that its owner does not list, and that is old enough by its own metadata, is an orphan; one whose age
  nobody knows is left alone.
- Before a ledger is removed its metadata say so, then the owner's list is read once more, and it is removed only in the
  version that was judged (`bookie_client.streams.publishing`).

Event loop only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from bookie_client.client import Client
from bookie_client.streams.publishing import going, staying
from bookie_protocol.errors import MetadataDamaged, MetadataError, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.versioned import Versioned
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.orphans.finding import (
    GONE_STREAMS,
    MANAGED_LEDGERS,
    SINK_ATTEMPTS,
    STREAM_LEDGERS,
    Fate,
    Orphan,
)
from pyspark_bookie.jobs.owners.index import OwnerKind, Owners, Ownership, Standing
from pyspark_bookie.jobs.replicas.units import Unit, size_of

READ_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Search:
    """What all pieces share. `before_ms`: only ledgers made until then."""

    kinds: frozenset[str]
    before_ms: int
    remove: bool
    managed_ledgers: str


@dataclass(slots=True)
class Searched:
    """`standings`: how many ledgers of each were looked at."""

    ledgers: int = 0
    young: int = 0
    standings: Counter[str] = field(default_factory=Counter)
    orphans: list[Orphan] = field(default_factory=list)


def search_unit(search: Search, unit: Unit, environment: TaskEnvironment) -> Searched:
    """The task."""
    return environment.client().run(lambda client: search_ledgers(client, search, unit))


async def search_ledgers(client: Client, search: Search, unit: Unit) -> Searched:
    """The same on a client's event loop. Raises `MetadataUnavailable`."""
    owners = Owners(client, search.managed_ledgers, among=[each.ledger_id for each in unit.slices])
    result = Searched()
    for each in unit.slices:
        try:
            stored = await client.stored_metadata(each.ledger_id)
        except (NoSuchLedger, MetadataDamaged):
            continue  # an audit tells of damaged metadata
        metadata = stored.value
        result.ledgers += 1
        ownership = await owners.of(metadata)
        result.standings[ownership.standing.value] += 1
        kind = kind_of(ownership)
        if ownership.standing is not Standing.ORPHAN or kind not in search.kinds:
            continue
        if metadata.ctime is None or metadata.ctime > search.before_ms:
            result.young += 1
            continue
        fate, detail = Fate.FOUND, ownership.detail
        if search.remove:
            fate, detail = await _remove(client, owners, stored, detail)
        nbytes = size_of(metadata).replica_bytes
        result.orphans.append(
            Orphan(kind, str(metadata.ledger_id), ownership.name, nbytes, metadata.ctime, fate, detail)
        )
    return result


def kind_of(ownership: Ownership) -> str:
    """The kind of orphan that a ledger would be."""
    if ownership.kind is OwnerKind.MANAGED_LEDGER:
        return MANAGED_LEDGERS
    if ownership.is_gone:
        return GONE_STREAMS
    return SINK_ATTEMPTS if ownership.by_sink else STREAM_LEDGERS


async def _remove(client: Client, owners: Owners, stored: Versioned[LedgerMetadata], detail: str) -> tuple[Fate, str]:
    metadata = stored.value
    try:
        marked = await going(client, stored)
        await owners.forget(metadata)
        now = await owners.of(metadata)
        if now.standing is not Standing.ORPHAN:
            await staying(client, marked)
            return Fate.KEPT, f"its owner lists it by now: {now.detail or now.standing.value}"
        await client.metadata_service.ledgers.delete_this(marked)
    except MetadataError as error:
        return Fate.KEPT, f"it was not removed: {error}"
    return Fate.REMOVED, detail
