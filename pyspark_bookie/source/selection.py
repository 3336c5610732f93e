"""Which ledgers a read is about: the selections of the options, resolved to ledgers and parts of them.

Invariants
- The ledgers of a stream or topic come in its order, all others ascending by id.
- What the metadata service could not tell raises; a ledger is left out only on its word.
- A ledger that does not exist and is in the archive is selected as if it existed (`tiers=all`); so is one that a stream
  lists and that the cluster has otherwise than listed: still being restored, or another one of its number.

Event loop of the client only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, NoSuchLedger, NoSuchStream
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.source.archived import all_archived, custom_metadata, holds_listed, is_as_listed, recorded
from pyspark_bookie.source.options import CustomMetadataPattern, SourceOptions
from pyspark_bookie.source.positions import EARLIEST, LATEST, Positions, check_named
from pyspark_bookie.source.time_search import DatedLedger, positions_in_ledgers, positions_in_streams

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.streams import Streams
    from bookie_client.streams.manifest import Manifest
    from bookie_client.streams.model import StreamLedger

PROBED_IDS: Final = 2_000
"""Ids that are asked for one by one; a wider selection goes through the list of all ledgers."""
_READ_AT_A_TIME: Final = 1_000
Matches = Callable[[Mapping[str, bytes]], bool]
"""Return True if a ledger with this custom metadata is selected."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Entries `first` up to, not including, `end` of a ledger; `end` None: as far as it goes. `stored`: its metadata,
    None if the ledger does not exist, or they are `damaged`; `archive` is what the archive has of it then. `stream` is
    what it was selected by."""

    ledger_id: int
    stored: Versioned[LedgerMetadata] | None
    stream: str | None = None
    first: int = 0
    end: int | None = None
    is_offloaded: bool = False
    """Pulsar moved it to tiered storage and deleted it here."""
    archive: ArchivedLedger | None = None
    listed: StreamLedger | None = None
    """The stream's entry for it; None: ledgers are not compared with the list (Pulsar's)."""
    damaged: str | None = None
    """Reason why its metadata cannot be read."""
    position: int | None = None
    """Entry to begin with in place of what `startingPosition` says, -1 for the end; None: that counts."""


@dataclass(frozen=True, slots=True)
class DamagedLedger:
    """A ledger whose metadata cannot be read: nothing else is known of it."""

    ledger_id: int
    why: str


async def choose(client: Client, options: SourceOptions) -> list[Chosen]:
    """Return everything that the options select. Ledgers named by their id, or listed by a stream, are included
    even if they do not exist. Raises `PodkeeperError`, `PodkeeperSparkError`."""
    if options.reads_streams:
        return await _by_streams(client, options)
    if options.ledgers is not None:
        chosen = await _by_ids(client, options.ledgers, options)
    else:
        chosen = await _by_what_they_say(client, options)
    check_positions(options, {each.ledger_id for each in chosen}, "the selected ledgers")
    return await _timed(client, chosen, options)


async def _timed(client: Client, chosen: list[Chosen], options: SourceOptions) -> list[Chosen]:
    """Return the ledgers with the places of the times that the options give."""
    times = options.starting_times
    if times is None:
        return chosen
    found = await positions_in_ledgers(client, [_dated(each) for each in chosen], times, options)
    return [replace(each, position=found.ledgers.get(each.ledger_id)) for each in chosen]


def _dated(chosen: Chosen) -> DatedLedger:
    if chosen.archive is not None:
        return DatedLedger(chosen.ledger_id, chosen.archive.created_ms, chosen.archive.counts.entries)
    if chosen.stored is None:
        return DatedLedger(chosen.ledger_id, None, 0)  # it is reported, wherever one would begin
    metadata = chosen.stored.value
    entries = metadata.last_entry_id + 1 if metadata.is_closed else None
    return DatedLedger(chosen.ledger_id, metadata.ctime, entries)


async def ids_of(client: Client, ids: LedgerIds | None) -> list[int]:
    """Return the ledgers that exist, ascending; of these, if given."""
    return [each async for each in client.list() if ids is None or each in ids]


async def stored_metadata(client: Client, ledger_id: int) -> Versioned[LedgerMetadata] | None:
    """None: the metadata service says that the ledger does not exist."""
    try:
        return await client.stored_metadata(ledger_id)
    except (NoSuchLedger, MetadataNotFound):
        return None


async def stored_or_damaged(client: Client, ledger_id: int) -> Versioned[LedgerMetadata] | DamagedLedger | None:
    """Return the stored metadata, as `stored_metadata`, but damage as a value: it concerns one ledger alone."""
    try:
        return await stored_metadata(client, ledger_id)
    except MetadataDamaged as error:
        return DamagedLedger(ledger_id, str(error))


def matching(wanted: CustomMetadataPattern) -> Matches:
    """Return a test that custom metadata have every key, with a value that matches as a whole."""

    def matches(custom: Mapping[str, bytes]) -> bool:
        return all(
            key in custom and pattern.fullmatch(custom[key].decode("utf-8", "replace")) is not None
            for key, pattern in wanted.conditions
        )

    return matches


async def of_archived(ledgers: Collection[ArchivedLedger], matches: Matches | None) -> list[ArchivedLedger]:
    """The ledgers that said of themselves what matches, by the archive's manifests; None: all. Raises as
    `archived.custom_metadata`."""
    if matches is None:
        return list(ledgers)
    said = await custom_metadata(ledgers)
    return [each for each in ledgers if matches(said[each.ledger_id])]


# --- by ids, by what ledgers say of themselves ----------------------------------------------------------------


async def _by_ids(client: Client, ids: LedgerIds, options: SourceOptions) -> list[Chosen]:
    named = set(ids.singles())
    is_probed = sum(last - first + 1 for first, last in ids.spans) <= PROBED_IDS
    if is_probed:
        wanted = {ledger_id for first, last in ids.spans for ledger_id in range(first, last + 1)}
    else:
        wanted = named.union(await ids_of(client, ids))
    there, damaged = await _stored(client, wanted)
    found = {each.value.ledger_id: each for each in there}
    gone: dict[int, ArchivedLedger] = {}
    if options.reads_archive and not (is_probed and len(found) == len(wanted)):
        gone = await all_archived(client, await recorded(client, ids) - found.keys() - damaged.keys())
    return [
        Chosen(ledger_id, found.get(ledger_id), archive=gone.get(ledger_id), damaged=damaged.get(ledger_id))
        for ledger_id in sorted(named.union(found, gone, damaged))
    ]


async def _by_what_they_say(client: Client, options: SourceOptions) -> list[Chosen]:
    """Return all ledgers that match; those deleted meanwhile are left out, unless the archive has them. One with
    damaged metadata may match: it is chosen, and lost."""
    pattern = options.ledger_pattern
    matches = None if pattern is None else matching(pattern)
    chosen: list[Chosen] = []
    existing: set[int] = set()
    ids = [each async for each in client.list()]
    for start in range(0, len(ids), _READ_AT_A_TIME):
        found, damaged = await _stored(client, ids[start : start + _READ_AT_A_TIME])
        existing.update(damaged)
        chosen += [Chosen(ledger_id, None, damaged=why) for ledger_id, why in damaged.items()]
        for stored in found:
            existing.add(stored.value.ledger_id)
            if matches is None or matches(stored.value.custom_metadata):
                chosen.append(Chosen(stored.value.ledger_id, stored))
    if options.reads_archive:
        gone = await all_archived(client, await recorded(client) - existing)
        chosen += [Chosen(each.ledger_id, None, archive=each) for each in await of_archived(gone.values(), matches)]
    return sorted(chosen, key=lambda each: each.ledger_id)


async def _stored(client: Client, ledger_ids: Iterable[int]) -> tuple[list[Versioned[LedgerMetadata]], dict[int, str]]:
    """Return the metadata of those that exist, and why those of others cannot be read."""
    found = await bounded(ledger_ids, lambda ledger_id: stored_or_damaged(client, ledger_id))
    return (
        [each for each in found if isinstance(each, Versioned)],
        {each.ledger_id: each.why for each in found if isinstance(each, DamagedLedger)},
    )


# --- by streams -------------------------------------------------------------------------------------------------


async def _by_streams(client: Client, options: SourceOptions) -> list[Chosen]:
    """A list may change while the metadata of its ledgers are read, which takes seconds where it is long. So it counts
    once all that it lists is there, or it says twice that what is not there is listed."""
    before: set[int] = set()
    while True:
        chosen = await _listed_now(client, options)
        lost = {each.ledger_id for each in chosen if each.stored is None and each.archive is None}
        if lost <= before:
            return chosen
        before |= lost


async def _listed_now(client: Client, options: SourceOptions) -> list[Chosen]:
    offloaded: set[int] = set()
    if options.managed_ledger is not None:
        from bookie_client.streams.managed_ledgers import managed_ledger

        topic = await managed_ledger(client, options.managed_ledger)
        offloaded = {each.ledger_id for each in topic.offloaded.values() if each.is_deleted}
        wanted = [topic.manifest]
    else:
        wanted = await manifests(client, options)
    there = {ledger.ledger_id for manifest in wanted for ledger in manifest.ledgers}
    if (times := options.starting_times) is not None:
        starts = await positions_in_streams(client, wanted, times, options)
        options = replace(
            options, starting_position=starts, starting_timestamp=None, starting_offsets_by_timestamp=None
        )
    check_positions(options, there, "any selected stream")
    parts = [part for manifest in wanted for part in _parts(manifest, options)]
    looked = await bounded(parts, lambda part: stored_or_damaged(client, part.ledger_id))
    damaged = {each.ledger_id: each.why for each in looked if isinstance(each, DamagedLedger)}
    found = [None if isinstance(each, DamagedLedger) else each for each in looked]
    gone: dict[int, ArchivedLedger] = {}
    if options.reads_archive:
        missing = [
            part.ledger_id
            for part, stored in zip(parts, found, strict=True)
            if (stored is None or not is_as_listed(stored.value, part.listed)) and part.ledger_id not in damaged
        ]
        listed = {each.ledger_id: each for manifest in wanted for each in manifest.ledgers}
        found_there = await all_archived(client, missing)
        gone = {each: there for each, there in found_there.items() if holds_listed(there, listed[each])}
    return [
        replace(
            part,
            stored=stored,
            is_offloaded=part.ledger_id in offloaded,
            archive=gone.get(part.ledger_id),
            damaged=damaged.get(part.ledger_id),
        )
        for part, stored in zip(parts, found, strict=True)
    ]


def check_positions(options: SourceOptions, ledger_ids: Collection[int], where: str) -> None:
    """Check that positions name ledgers that are read. Raises `PodkeeperSparkError` (OPTION)."""
    check_named(options.starting_position, ledger_ids, "startingPosition", where)
    check_named(options.ending_position, ledger_ids, "endingPosition", where)


async def manifests(client: Client, options: SourceOptions) -> list[Manifest]:
    """The manifest of each selected stream. Raises `NoSuchStream`; a pattern that no name matches selects nothing."""
    from bookie_client.streams import Streams

    streams = Streams(client)
    if options.stream_pattern is not None:
        names = await matching_streams(streams, options.stream_pattern)
    else:
        names = [options.stream] if options.stream is not None else list(dict.fromkeys(options.streams or ()))
    if options.stream_pattern is None:
        return await bounded(names, streams.manifest)

    async def if_there(name: str) -> Manifest | None:
        with suppress(NoSuchStream):  # deleted since the names were listed, or half deleted
            return await streams.manifest(name)
        return None

    return [each for each in await bounded(names, if_there) if each is not None]


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
            listed=None if options.managed_ledger is not None else manifest.ledgers[place],
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
