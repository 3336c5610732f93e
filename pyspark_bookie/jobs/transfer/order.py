"""The order in which a stream gets its ledgers back: that of the stream that had them, not that of their ids.

`in_order` sorts and checks what the source has; `parted` tells what of it the stream has, or has had; `check_behind`
checks that the rest goes on where the stream ends. They raise `Refused` with the way on, before anything is written.

What a stream has had: it loses its oldest ledgers first, and notes the last one that it lost. So of the ledgers that
an earlier run of the transfer has made, those before the first that it lists, and those up to the last one that it
lost, were in it. They are not added again.

Driver only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import NoSuchLedger, Refused
from pyspark_bookie.archive.places import PLACE_KEY, StreamPlace
from pyspark_bookie.jobs.framework.ledgers import LedgerRow

if TYPE_CHECKING:
    from bookie_client import BlockingClient
    from bookie_client.streams import Manifest

BY_ID: Final = "or --order-by-id takes the order of their ids, unchecked"
"""The end of a refusal: what does not check."""
_TOGETHER: Final = (
    "select with it those that were added before, by the --name of their transfer (none comes twice), use another"
    " --to-stream"
)
"""The end of a refusal: the end of the stream is unknown."""
_BETWEEN: Final = (
    "select what is between, too (restore takes several --source), or --allow-gaps adds the ledgers without it"
)
"""The end of a refusal: a gap."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """`allow_gaps`: ledgers in between may be missing. `placed_only`: those without a place are left out. `by_id`: the
    order of ids counts, and nothing is checked."""

    allow_gaps: bool = False
    placed_only: bool = False
    by_id: bool = False


def in_order(rows: Sequence[LedgerRow], settings: OrderSettings) -> list[LedgerRow]:
    """Return the ledgers as their stream had them; by id where none has a place. Raises `Refused` for a mix, a gap or
    a double."""
    by_id = sorted(rows, key=lambda row: row.ledger_id)
    placed = [(row.place, row) for row in by_id if row.place is not None]
    if settings.placed_only and by_id and not placed:
        raise Refused(
            f"the place in a stream is unknown of all {len(by_id)} ledgers, so --placed-only leaves out all: without it"
            " they have the order of their ids"
        )
    if settings.by_id or not placed:
        return by_id
    if len(placed) < len(by_id) and not settings.placed_only:
        raise Refused(
            f"the place in a stream is unknown of {len(by_id) - len(placed)} of {len(by_id)} ledgers, such as"
            f" {next(row.ledger_id for row in by_id if row.place is None)}: --placed-only leaves them out, {BY_ID}"
        )
    placed.sort(key=lambda each: (each[0].ordinal, each[1].entries, each[1].ledger_id))
    first = placed[0]
    for place, row in placed[1:]:
        if not place.is_comparable(first[0]):
            raise Refused(
                f"ledgers {first[1].ledger_id} and {row.ledger_id} are not of one stream"
                f" ({_life(first[0])}, {_life(place)}): select those of one by --ledgers or --where, {BY_ID}"
            )
    _, previous = first
    end = first[0].ordinal + previous.entries
    for place, row in placed[1:]:
        between = f"between ledgers {previous.ledger_id} and {row.ledger_id} of stream {place.stream}"
        if place.ordinal < end:
            raise Refused(
                f"ledgers {previous.ledger_id} and {row.ledger_id} have the same entries of stream {place.stream}:"
                f" leave one out by --ledgers or --where, {BY_ID}"
            )
        if place.ordinal > end and not settings.allow_gaps:
            raise Refused(f"{place.ordinal - end} entries {between} are missing: {_BETWEEN}")
        previous, end = row, place.ordinal + row.entries
    return [row for _, row in placed]


@dataclass(frozen=True, slots=True)
class Parted:
    """The ledgers of a source, in order, as a stream has them. `lost`: it had them, and retention or truncation took
    them out. `listed`: it has them. `new`: it never had them."""

    lost: Sequence[LedgerRow]
    listed: Sequence[LedgerRow]
    new: Sequence[LedgerRow]


def parted(manifest: Manifest, rows: Sequence[LedgerRow], made: Mapping[int, int], earlier: Collection[int]) -> Parted:
    """Part the ledgers of a source, which have entries. `made`: the target ledgers by source id. `earlier`: source ids
    of those that an earlier run has made. Raises `Refused`."""
    removed = {each.position.ledger_id for each in manifest.landmarks}
    ids = [made.get(row.ledger_id) for row in rows]
    behind_lost = next((index + 1 for index, each in enumerate(ids) if each in removed), None)
    start = next((index for index, each in enumerate(ids) if each in manifest), behind_lost or 0)
    end = next((index for index in range(start, len(ids)) if ids[index] not in manifest), len(ids))
    lost = rows[:start]
    if (
        behind_lost not in (None, start)
        or any(row.ledger_id not in earlier for row in lost)
        or sum(row.entries for row in lost) > manifest.base_ordinal
        or any(each in manifest for each in ids[end:])
    ):
        raise Refused(
            f"stream {manifest.name} has ledgers that come behind others which it does not have, so those would be"
            " out of order: give the transfer another --name and --to-stream"
        )
    return Parted(lost, rows[start:end], rows[end:])


def check_behind(
    client: BlockingClient, manifest: Manifest, parts: Parted, made: Mapping[int, int], settings: OrderSettings
) -> None:
    """Check that the new ledgers may come behind what the stream has, or has had. Raises `Refused`."""
    if settings.by_id or not parts.new:
        return
    first = parts.new[0]
    place = first.place
    here = StreamPlace(manifest.name, manifest.created_ms, manifest.generation, manifest.end_ordinal)
    if place is None or not place.is_comparable(here):
        had = [*parts.lost, *parts.listed]
        if not manifest.ledgers and not had and manifest.end_ordinal:
            raise Refused(
                f"stream {manifest.name} has lost all that it had, and it is unknown whether it had ledger"
                f" {first.ledger_id}: {_TOGETHER}, {BY_ID}"
            )
        if place is None or not (manifest.ledgers or had):
            return
        here = _end(client, manifest, had[-1] if had else None, made, place)
    what = f"ledger {first.ledger_id} begins at entry {place.ordinal} of stream {place.stream}"
    if place.ordinal < here.ordinal:
        raise Refused(
            f"{what}, and stream {manifest.name} has those up to {here.ordinal} already, or had them: use another"
            f" --to-stream and select all ledgers at once, {BY_ID}"
        )
    if place.ordinal > here.ordinal and not settings.allow_gaps:
        raise Refused(f"{what}, and stream {manifest.name} ends before {here.ordinal}: {_BETWEEN}")


def _end(
    client: BlockingClient, manifest: Manifest, had: LedgerRow | None, made: Mapping[int, int], wanted: StreamPlace
) -> StreamPlace:
    """Return the place at which the stream ends, in the stream of `wanted`. `had`: the last of the source's ledgers
    that it has, or has had. Raises `Refused`."""
    last = manifest.ledgers[-1] if manifest.ledgers else None
    if had is not None and had.place is not None and (last is None or made.get(had.ledger_id) == last.ledger_id):
        return replace(had.place, ordinal=had.place.ordinal + had.entries)
    assert last is not None  # of ledgers in order all have places, or none
    put = _place_of(client, last.ledger_id)
    if put is None:
        raise Refused(
            f"stream {manifest.name} ends with ledger {last.ledger_id}, whose place in {_life(wanted)} is unknown:"
            f" {_TOGETHER}, {BY_ID}"
        )
    if not put.is_comparable(wanted):
        raise Refused(
            f"stream {manifest.name} ends with ledger {last.ledger_id}, which is not of {_life(wanted)}: use another"
            f" --to-stream, {BY_ID}"
        )
    return replace(put, ordinal=put.ordinal + (last.entries or 0))


def _life(place: StreamPlace) -> str:
    return f"stream {place.stream} created at {place.created_ms}, generation {place.generation}"


def _place_of(client: BlockingClient, ledger_id: int) -> StreamPlace | None:
    try:
        return StreamPlace.decode(client.metadata(ledger_id).custom_metadata.get(PLACE_KEY))
    except NoSuchLedger:
        return None
