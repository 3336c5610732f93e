"""Which ledgers a read is about: the selections of the options, resolved to ledgers and parts of them.

Invariants
- The ledgers of a stream or topic come in its order, all others ascending by id.
- What the metadata service could not tell raises; a ledger is left out only on its word.

Event loop of the client only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import MetadataNotFound, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.common.together import bounded
from pyspark_bookie.source.options import CustomMetadataPattern, SourceOptions
from pyspark_bookie.source.positions import EARLIEST, LATEST, Positions

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.streams import Streams
    from bookie_client.streams.manifest import Manifest

PROBED_IDS: Final = 2_000
"""Ids that are asked for one by one; a wider selection goes through the list of all ledgers."""
_LISTED_AT_A_TIME: Final = 1_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """Entries `first` up to, not including, `end` of a ledger; `end` None: as far as it goes. `stored`: its metadata,
    None if the ledger does not exist. `stream` is what it was selected by."""

    ledger_id: int
    stored: Versioned[LedgerMetadata] | None
    stream: str | None = None
    first: int = 0
    end: int | None = None
    is_offloaded: bool = False
    """Pulsar moved it to tiered storage and deleted it here."""


Matches = Callable[[LedgerMetadata], bool]


async def choose(client: Client, options: SourceOptions) -> list[Chosen]:
    """Everything that the options select. Ledgers named by their id, or listed by a stream, are there even if they do
    not exist. Raises `PodkeeperError`, `PodkeeperSparkError`."""
    if options.ledgers is not None:
        return await _by_ids(client, options.ledgers)
    if options.ledger_pattern is not None:
        return [chosen async for chosen in _existing(client, matching(options.ledger_pattern))]
    if options.scope is not None:
        return [chosen async for chosen in _existing(client, lambda _: True)]
    return await _by_streams(client, options)


async def ids_of(client: Client, ids: LedgerIds | None) -> list[int]:
    """The ledgers that exist, ascending; of these, if given."""
    return [each async for each in client.list() if ids is None or each in ids]


async def stored_metadata(client: Client, ledger_id: int) -> Versioned[LedgerMetadata] | None:
    """None: the metadata service says that the ledger does not exist."""
    try:
        return await client.stored_metadata(ledger_id)
    except (NoSuchLedger, MetadataNotFound):
        return None


def matching(wanted: CustomMetadataPattern) -> Matches:
    """Whether a ledger's custom metadata has every key, with a value that matches as a whole."""

    def matches(metadata: LedgerMetadata) -> bool:
        custom = metadata.custom_metadata
        return all(
            key in custom and pattern.fullmatch(custom[key].decode("utf-8", "replace")) is not None
            for key, pattern in wanted.conditions
        )

    return matches


# --- by ids, by what ledgers say of themselves ----------------------------------------------------------------


async def _by_ids(client: Client, ids: LedgerIds) -> list[Chosen]:
    named = set(ids.singles())
    if sum(last - first + 1 for first, last in ids.spans) <= PROBED_IDS:
        wanted = [ledger_id for first, last in ids.spans for ledger_id in range(first, last + 1)]
    else:
        wanted = sorted(named.union(await ids_of(client, ids)))
    found = await bounded(wanted, lambda ledger_id: stored_metadata(client, ledger_id))
    pairs = zip(wanted, found, strict=True)
    return [Chosen(ledger_id, stored) for ledger_id, stored in pairs if stored is not None or ledger_id in named]


async def _existing(client: Client, matches: Matches) -> AsyncIterator[Chosen]:
    """All ledgers whose metadata match; those deleted meanwhile are none."""
    waiting: list[int] = []
    async for ledger_id in client.list():
        waiting.append(ledger_id)
        if len(waiting) == _LISTED_AT_A_TIME:
            for chosen in await _read(client, waiting, matches):
                yield chosen
            waiting = []
    for chosen in await _read(client, waiting, matches):
        yield chosen


async def _read(client: Client, ledger_ids: Sequence[int], matches: Matches) -> list[Chosen]:
    found = await bounded(ledger_ids, lambda ledger_id: stored_metadata(client, ledger_id))
    return [Chosen(stored.value.ledger_id, stored) for stored in found if stored is not None and matches(stored.value)]


# --- by streams -------------------------------------------------------------------------------------------------


async def _by_streams(client: Client, options: SourceOptions) -> list[Chosen]:
    offloaded: set[int] = set()
    if options.managed_ledger is not None:
        from bookie_client.streams.managed_ledgers import managed_ledger

        topic = await managed_ledger(client, options.managed_ledger)
        offloaded = {each.ledger_id for each in topic.offloaded.values() if each.is_deleted}
        wanted = [topic.manifest]
    else:
        wanted = await manifests(client, options)
    parts = [part for manifest in wanted for part in _parts(manifest, options)]
    found = await bounded(parts, lambda part: stored_metadata(client, part.ledger_id))
    return [
        replace(part, stored=stored, is_offloaded=part.ledger_id in offloaded)
        for part, stored in zip(parts, found, strict=True)
    ]


async def manifests(client: Client, options: SourceOptions) -> list[Manifest]:
    """Of each selected stream. Raises `NoSuchStream`; a pattern that no name matches selects nothing."""
    from bookie_client.streams import Streams

    streams = Streams(client)
    if options.stream_pattern is not None:
        names = await matching_streams(streams, options.stream_pattern)
    else:
        names = [options.stream] if options.stream is not None else list(dict.fromkeys(options.streams or ()))
    return await bounded(names, streams.manifest)


async def matching_streams(streams: Streams, pattern: re.Pattern[str]) -> list[str]:
    """Names of the streams there are, sorted."""
    return sorted(name for name in await streams.names() if pattern.fullmatch(name))


def _parts(manifest: Manifest, options: SourceOptions) -> list[Chosen]:
    """The ledgers of a stream between the positions. A position names one of its ledgers: those before it are not
    read."""
    ids = [ledger.ledger_id for ledger in manifest.ledgers]
    first, entry = _place(manifest.name, ids, options.starting_position, EARLIEST, "startingPosition")
    if entry is None:  # behind that ledger's end
        first, entry = first + 1, 0
    last, end = _place(manifest.name, ids, options.ending_position, LATEST, "endingPosition")
    cut = manifest.truncated_before
    if cut is not None and cut.ledger_id in ids and (ids.index(cut.ledger_id), cut.entry_id) > (first, entry):
        first, entry = ids.index(cut.ledger_id), cut.entry_id
    return [
        Chosen(
            ids[place],
            None,
            manifest.name,
            entry if place == first else 0,
            end if place == last else None,
        )
        for place in range(first, min(last + 1, len(ids)))
    ]


def _place(name: str, ids: Sequence[int], chosen: Positions, default: int, option: str) -> tuple[int, int | None]:
    """Which ledger of a stream, and which entry; None: its end."""
    named = [ledger_id for ledger_id in chosen.ledgers if ledger_id in ids]
    if len(named) > 1:
        both = " and ".join(str(ledger_id) for ledger_id in named)
        raise PodkeeperSparkError(OPTION, f"option {option}: a stream has one position, but {both} are both in {name}")
    if named:
        entry = chosen.ledgers[named[0]]
        return ids.index(named[0]), None if entry == LATEST else max(entry, 0)
    whole = default if chosen.everywhere is None else chosen.everywhere
    return (0, 0) if whole == EARLIEST else (len(ids), None)
