"""Pulsar's managed ledgers, to be read only: which ledgers a topic consists of.

    topic = await managed_ledger(client, "persistent://public/default/orders")
    for span in topic.manifest.spans(topic.manifest.earliest):
        print(span.ledger.ledger_id, span.first, span.last)

Invariants
- Nothing of Pulsar's is ever changed, and no ledger is fenced: a topic's open ledger has a living broker.

Event loop only.

Source: reference metadata layout, section 15.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from bookie_client.client import Client
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.handle import LedgerReader
from bookie_client.streams.encoding import Row, with_ordinals
from bookie_client.streams.managed_ledger_format import (
    ListedLedger,
    OffloadedLedger,
    decode_cursor,
    decode_managed_ledger,
    decode_position,
)
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamPosition, StreamSettings
from bookie_client.streams.together import together
from bookie_protocol.errors import BadRequest, CouldNotTell, MetadataNotFound, NoSuchStream, NotThere
from bookie_protocol.metadata_service.managed_ledgers import ROOT, ManagedLedgerNodes

_LEVELS: Final = 4
"""Tenant, namespace, domain, topic."""
_DOMAIN: Final = "persistent"
_UNCONFIRMED: Final = 100
"""Entries at most that are looked for behind the last add confirmed of a cursor's ledger: more than a broker has under
way."""


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """A topic's ledgers as Pulsar lists them."""

    name: str
    manifest: Manifest
    """The ledgers as a stream's: positions, spans and ordinals work as there. The last one is open unless Pulsar has
    recorded its end. Ordinals count from the oldest ledger that is listed."""
    offloaded: Mapping[int, OffloadedLedger]
    """By ledger id. Those that `is_deleted` cannot be read from BookKeeper."""
    cursors: Mapping[str, StreamPosition]
    """By subscription: behind the last entry marked deleted, also where a broker was not told yet that bookies have
    stored it. One whose ledger is gone is left out."""
    properties: Mapping[str, str]
    terminated: StreamPosition | None
    """Behind the last entry of a topic that takes no more."""


def stored_name(name: str) -> str:
    """The name under which Pulsar stores a topic. "tenant/namespace/persistent/topic" is one already; of
    "persistent://tenant/namespace/topic" the topic's own name is encoded. Raises `BadRequest`."""
    domain, separator, rest = name.partition("://")
    if separator:
        tenant, _, rest = rest.partition("/")
        namespace, _, topic = rest.partition("/")
        name = f"{tenant}/{namespace}/{domain}/{quote_plus(topic)}"
    if len(name.split("/")) != _LEVELS or not all(name.split("/")):
        raise BadRequest(
            f"{name[:200]!r} is not a managed ledger: it looks like tenant/namespace/persistent/topic, or"
            " persistent://tenant/namespace/topic"
        )
    return name


async def managed_ledger(client: Client, name: str, *, root: str = ROOT) -> ManagedLedger:
    """A topic's managed ledger; `name` as in `stored_name`. Of a partitioned topic each partition is one, with a name
    that ends in "-partition-0" and so on.

    Raises `NoSuchStream`, `MetadataDamaged` (also for a compression that needs pyarrow where that is not installed),
    `MetadataUnavailable`, and what reading a cursor's ledger raises.
    """
    name = stored_name(name)
    nodes = client.metadata_service.managed_ledgers(root)
    try:
        node = await nodes.read(name)
    except MetadataNotFound as error:
        raise NoSuchStream(f"there is no managed ledger {name} below {root}") from error
    stored = decode_managed_ledger(name, node.value)
    manifest = Manifest(
        name=name,
        version=node.version,
        generation=0,
        ledgers=with_ordinals(_rows(stored.ledgers), 0),
        settings=StreamSettings(),
    )
    offloaded = {each.ledger_id: each.offloaded for each in stored.ledgers if each.offloaded is not None}
    cursors = await _cursors(client, nodes, name)
    return ManagedLedger(name, manifest, offloaded, cursors, stored.properties, stored.terminated)


async def managed_ledger_names(client: Client, under: str = "", *, root: str = ROOT) -> tuple[str, ...]:
    """The names of all managed ledgers, sorted, or of those of a tenant or "tenant/namespace". Raises `BadRequest`,
    `MetadataUnavailable`."""
    nodes = client.metadata_service.managed_ledgers(root)
    names = [under]
    for level in range(len(under.split("/")) if under else 0, _LEVELS):
        below = await together([partial(nodes.children, name) for name in names])
        names = [
            f"{name}/{child}" if name else child
            for name, children in zip(names, below, strict=True)
            for child in children
            if level != 2 or child == _DOMAIN
        ]
    return tuple(sorted(names))


def _rows(ledgers: tuple[ListedLedger, ...]) -> list[Row]:
    rows: list[Row] = []
    for index, each in enumerate(ledgers):
        if index == len(ledgers) - 1 and not each.entries:
            rows.append((each.ledger_id, None, None, None, None))
        else:
            rows.append((each.ledger_id, each.entries, each.nbytes, each.closed_ms, None))
    return rows


async def _cursors(client: Client, nodes: ManagedLedgerNodes, name: str) -> dict[str, StreamPosition]:
    subscriptions = await nodes.children(name)
    found = await together([partial(_cursor, client, nodes, name, each) for each in subscriptions])
    return dict(chain.from_iterable(each.items() for each in found))


async def _cursor(client: Client, nodes: ManagedLedgerNodes, name: str, child: str) -> dict[str, StreamPosition]:
    what = f"{unquote_plus(child)} of {name}"
    with suppress(NotThere):  # deleted meanwhile, or its ledger
        stored = decode_cursor(what, (await nodes.read(f"{name}/{child}")).value)
        if stored.cursors_ledger_id < 0:
            return {unquote_plus(child): stored.position}
        async with client.open(stored.cursors_ledger_id, password=None) as ledger:
            newest = await _newest(ledger)
        position = stored.position if newest is None else decode_position(what, newest.payload)
        return {unquote_plus(child): position}
    return {}


async def _newest(ledger: LedgerReader) -> LedgerEntry | None:
    """The last entry of a cursor's ledger. While a broker has it open, that is one which only the next one would
    confirm, and a subscription at rest makes no next one: so what follows the last add confirmed counts, where the
    bookies can tell."""
    newest = None
    if (last := ledger.last_add_confirmed) >= 0:
        (newest,) = await ledger.read(last, last)
    with suppress(NotThere, CouldNotTell):
        for entry_id in range(last + 1, last + 1 + _UNCONFIRMED):
            if ledger.is_closed and entry_id > ledger.last_add_confirmed:
                break
            (newest,) = await ledger.read_unconfirmed(entry_id, entry_id)
    return newest
