"""How a long list of ledgers is cut into segments, and put together again.

Invariants
- Segments that a head names already stay as they are, as long as the list still has their end: a change of a long list
  writes only what is new.
- What stands in the head itself is bounded, so the head stays small whatever the length of the list, and however many
  changes have retired ledgers: small groups become one, due when the last of them is.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie_client.streams.encoding import (
    Head,
    RetiredRef,
    Row,
    SegmentRef,
    encode_retired,
    encode_segment,
    row_of,
    with_ordinals,
)
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import RetiredLedgers

SEGMENT_LEDGERS: Final = 1_000
"""Ledgers of a segment, and the closed ones that a head holds itself: some 60 KB."""
INLINE_RETIRED: Final = 500
"""Retired ledgers that a head holds itself."""
RETIRED_TOGETHER: Final = 4 * SEGMENT_LEDGERS
"""Retired ledgers of a segment."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The segments that a head names, read: rows by segment id, and ids of retired ledgers by segment id."""

    ledgers: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    retired: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A head, its segments, and those of them that must be written before it."""

    head: Head
    loaded: Loaded
    new_segments: Mapping[str, bytes]


def put_together(name: str, version: int, head: Head, loaded: Loaded) -> Manifest:
    """The manifest that a head and its segments stand for."""
    rows: list[Row] = []
    for segment in head.segments:
        rows += loaded.ledgers[segment.segment_id][segment.removed :]
    rows += head.tail
    retired = tuple(
        RetiredLedgers(each.due_ms, loaded.retired[each.segment_id] if each.segment_id else each.ledger_ids)
        for each in head.retired
    )
    return Manifest(
        name=name,
        version=version,
        generation=head.generation,
        ledgers=with_ordinals(rows, head.base_ordinal),
        settings=head.settings,
        transactions=head.transactions,
        writer=head.writer,
        truncated_before=head.truncated_before,
        landmarks=head.landmarks,
        base_ordinal=head.base_ordinal,
        created_ms=head.created_ms,
        retired=retired,
        is_deleting=head.is_deleting,
        epoch=head.epoch,
    )


def lay_out(manifest: Manifest, before: Head | None, loaded: Loaded, new_id: Callable[[], str]) -> LaidOut:
    """The records of a manifest, with as much of the head `before` as still holds. `new_id`: ids that nobody used."""
    rows = [row_of(ledger) for ledger in manifest.ledgers]
    closed = len(rows) - (manifest.open_ledger is not None)
    segments = _kept(rows, before.segments if before else (), loaded)
    ledgers = {each.segment_id: loaded.ledgers[each.segment_id] for each in segments}
    at = sum(each.ledgers - each.removed for each in segments)
    while closed - at > SEGMENT_LEDGERS:
        part = tuple(rows[at : at + SEGMENT_LEDGERS])
        segments.append(SegmentRef(new_id(), len(part), 0))
        ledgers[segments[-1].segment_id] = part
        at += len(part)
    refs, retired = _retired(manifest.retired, before.retired if before else (), loaded, new_id)
    head = Head(
        settings=manifest.settings,
        created_ms=manifest.created_ms,
        generation=manifest.generation,
        epoch=manifest.epoch,
        is_deleting=manifest.is_deleting,
        writer=manifest.writer,
        base_ordinal=manifest.base_ordinal,
        truncated_before=manifest.truncated_before,
        landmarks=manifest.landmarks,
        transactions=dict(manifest.transactions),
        segments=tuple(segments),
        tail=tuple(rows[at:]),
        retired=refs,
    )
    new = {each: encode_segment(part) for each, part in ledgers.items() if each not in loaded.ledgers}
    new |= {each: encode_retired(part) for each, part in retired.items() if each not in loaded.retired}
    return LaidOut(head, Loaded(ledgers, retired), new)


def _kept(rows: Sequence[Row], segments: Sequence[SegmentRef], loaded: Loaded) -> list[SegmentRef]:
    """The segments, with the number of their ledgers that were removed, that the list begins with."""
    kept: list[SegmentRef] = []
    at = 0
    for segment in segments:
        ledgers = loaded.ledgers[segment.segment_id]
        removed = _index_of(rows[at], ledgers) if at < len(rows) else None
        if removed is None:
            if kept:
                break
            continue
        part = rows[at : at + len(ledgers) - removed]
        if part[-1] != ledgers[-1] or len(part) != len(ledgers) - removed:
            break
        kept.append(SegmentRef(segment.segment_id, len(ledgers), removed))
        at += len(part)
    return kept


def _index_of(row: Row, ledgers: Sequence[Row]) -> int | None:
    return next((index for index, each in enumerate(ledgers) if each == row), None)


def _retired(
    retired: Sequence[RetiredLedgers], before: Sequence[RetiredRef], loaded: Loaded, new_id: Callable[[], str]
) -> tuple[tuple[RetiredRef, ...], dict[str, tuple[int, ...]]]:
    """As a head names them, and the segments among them."""
    known = {loaded.retired[each.segment_id]: each.segment_id for each in before if each.segment_id is not None}
    refs: list[RetiredRef] = []
    small: list[RetiredLedgers] = []
    segments: dict[str, tuple[int, ...]] = {}
    for each in retired:
        known_id = known.get(each.ledger_ids) if len(each.ledger_ids) >= INLINE_RETIRED else None
        if known_id is None:
            small.append(each)
        else:
            segments[known_id] = each.ledger_ids
            refs.append(RetiredRef(each.due_ms, (), known_id))
    ids = tuple(each for group in small for each in group.ledger_ids)
    if len(ids) <= INLINE_RETIRED:
        refs += [RetiredRef(each.due_ms, each.ledger_ids, None) for each in small]
        return tuple(refs), segments
    due_ms = max(each.due_ms for each in small)
    for first in range(0, len(ids), RETIRED_TOGETHER):
        segments[part_id := new_id()] = ids[first : first + RETIRED_TOGETHER]
        refs.append(RetiredRef(due_ms, (), part_id))
    return tuple(refs), segments
