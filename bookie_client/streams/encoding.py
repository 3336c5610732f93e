"""The records of a stream, and the division of a long list of ledgers into them.

A stream is one *head* record, kind "stream", and *segments*, kind "stream-segment", which hold most of a long list: a
record must stay well below the megabyte that ZooKeeper takes. Segments are written before the head that names them, and
never change. A record that no head names belongs to a change that never happened.

Head (JSON, `format` 1): what `Manifest` holds. `segments`: [record id, ledgers in it, leading ones of them that were
removed since], in order; `tail`: the ledgers behind the segments. `retired`: [due_ms, ledger ids or null, record id or
null]. Ledgers as [id, entries, bytes, closed_ms, crc], entries null while open.
A deleted stream leaves a head for a day that `is_deleting`, has nothing in it, and whose `generation` is -1.
Segment (JSON, `format` 1): `ledgers` as in the head, or `retired`: ledger ids.

Records of another format, or with members that this version does not know, are refused: they may forbid what it would
do.

Invariants
- Segments that a head names already stay as they are, as long as the list still has their end: a change of a long list
  writes only what is new.
- The content of the head itself is bounded, so the head stays small whatever the length of the list, and however many
  changes have retired ledgers: small groups become one, due when the last of them is.

Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from bookie_client.streams.manifest import Landmark, Manifest
from bookie_client.streams.model import RetiredLedgers, StreamLedger, StreamPosition, StreamSettings, Transaction
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import UNREADABLE, MetadataDamaged, PodkeeperError
from bookie_protocol.versioned import Identity

FORMAT: Final = 1

Row = tuple[int, int | None, int | None, int | None, int | None]
"""A ledger without its ordinal: id, entries, bytes, closed_ms, crc."""
_SETTINGS: Final = frozenset(field.name for field in fields(StreamSettings))
SEGMENT_LEDGERS: Final = 1_000
"""Ledgers of a segment, and the closed ones that a head holds itself: some 60 KB."""
INLINE_RETIRED: Final = 500
"""Retired ledgers that a head holds itself."""
RETIRED_TOGETHER: Final = 4 * SEGMENT_LEDGERS
"""Retired ledgers of a segment."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment as a head names it."""

    segment_id: str
    ledgers: int
    removed: int


@dataclass(frozen=True, slots=True)
class RetiredRef:
    """Retired ledgers as a head names them: themselves, or the segment that holds their ids."""

    due_ms: int
    ledger_ids: tuple[int, ...]
    segment_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head record, as stored."""

    settings: StreamSettings
    created_ms: int
    generation: int
    epoch: int
    is_deleting: bool
    writer: str | None
    base_ordinal: int
    truncated_before: StreamPosition | None
    landmarks: tuple[Landmark, ...]
    transactions: dict[str, Transaction]
    segments: tuple[SegmentRef, ...]
    tail: tuple[Row, ...]
    retired: tuple[RetiredRef, ...]

    @property
    def is_gone(self) -> bool:
        """Return True if the stream is gone; see `Manifest.is_gone`."""
        return self.is_deleting and self.generation < 0

    @property
    def segment_ids(self) -> frozenset[str]:
        """All records that this head names."""
        listed = {segment.segment_id for segment in self.segments}
        return frozenset(listed | {each.segment_id for each in self.retired if each.segment_id is not None})


def row_of(ledger: StreamLedger) -> Row:
    """Return a ledger as it is stored."""
    return (ledger.ledger_id, ledger.entries, ledger.nbytes, ledger.closed_ms, ledger.crc)


def with_ordinals(rows: Iterable[Row], base_ordinal: int) -> tuple[StreamLedger, ...]:
    """Ledgers from their rows; the first one begins at `base_ordinal`."""
    ledgers, ordinal = [], base_ordinal
    for ledger_id, entries, nbytes, closed_ms, crc in rows:
        ledgers.append(StreamLedger(ledger_id, ordinal, entries, nbytes, closed_ms, crc))
        ordinal += entries or 0
    return tuple(ledgers)


# --- documents ------------------------------------------------------------------------------------------------


def encode_document(document: dict[str, Any]) -> bytes:
    """Return the bytes of a record; the document tells its format."""
    return json.dumps(document, separators=(",", ":")).encode()


def decode_document(data: bytes, format_: int, members: Set[str]) -> dict[str, Any]:
    """Return the document of this format with no other members than these. Raises what is `UNREADABLE`."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != format_:
        raise ValueError(f"it is not a document of format {format_}; a newer version may have written it")
    _known(document, members)
    return document


def _known(document: dict[str, Any], members: Set[str]) -> None:
    if unknown := sorted(document.keys() - members):
        raise ValueError(f"it has members that this version does not know: {', '.join(unknown)}")


# --- head -----------------------------------------------------------------------------------------------------


def encode_head(head: Head) -> bytes:
    """Return the bytes of a head."""
    document = {
        "format": FORMAT,
        "settings": {**asdict(head.settings), "digest": head.settings.digest.name},
        "created_ms": head.created_ms,
        "generation": head.generation,
        "epoch": head.epoch,
        "is_deleting": head.is_deleting,
        "writer": head.writer,
        "base_ordinal": head.base_ordinal,
        "truncated_before": _text(head.truncated_before),
        "landmarks": [[str(each.position), each.ordinal] for each in head.landmarks],
        "transactions": {
            app_id: [txn.batch_id, txn.rows, txn.checksum, txn.published_ms]
            for app_id, txn in sorted(head.transactions.items())
        },
        "segments": [[each.segment_id, each.ledgers, each.removed] for each in head.segments],
        "tail": head.tail,
        "retired": [
            [each.due_ms, None if each.segment_id else list(each.ledger_ids), each.segment_id] for each in head.retired
        ],
    }
    return encode_document(document)


def decode_head(name: str, data: bytes) -> Head:
    """Raises `MetadataDamaged`, also for what a newer version wrote."""
    try:
        document = decode_document(data, FORMAT, _HEAD_MEMBERS)
        stored = document["settings"]
        _known(stored, _SETTINGS)
        return Head(
            settings=StreamSettings(**{**stored, "digest": DigestType[stored["digest"]]}),
            created_ms=int(document["created_ms"]),
            generation=int(document["generation"]),
            epoch=int(document["epoch"]),
            is_deleting=bool(document["is_deleting"]),
            writer=document["writer"],
            base_ordinal=int(document["base_ordinal"]),
            truncated_before=_position(document["truncated_before"]),
            landmarks=tuple(Landmark(StreamPosition.parse(at), int(n)) for at, n in document["landmarks"]),
            transactions={app_id: Transaction(*txn) for app_id, txn in document["transactions"].items()},
            segments=tuple(SegmentRef(*each) for each in document["segments"]),
            tail=tuple(_row(each) for each in document["tail"]),
            retired=tuple(RetiredRef(due, tuple(ids or ()), segment) for due, ids, segment in document["retired"]),
        )
    except (*UNREADABLE, PodkeeperError) as error:
        raise MetadataDamaged(f"the record of stream {name} cannot be read: {error!r}") from error


# --- segments -------------------------------------------------------------------------------------------------


def encode_segment(rows: Iterable[Row]) -> bytes:
    """Return the bytes of a segment with ledgers."""
    return encode_document({"format": FORMAT, "ledgers": list(rows)})


def decode_segment(name: str, data: bytes) -> tuple[Row, ...]:
    """Raises `MetadataDamaged`."""
    try:
        return tuple(_row(each) for each in decode_document(data, FORMAT, {"format", "ledgers"})["ledgers"])
    except UNREADABLE as error:
        raise MetadataDamaged(f"segment {name} of a stream cannot be read: {error!r}") from error


def encode_retired(ledger_ids: Iterable[int]) -> bytes:
    """Return the bytes of a segment with retired ledgers."""
    return encode_document({"format": FORMAT, "retired": list(ledger_ids)})


def decode_retired(name: str, data: bytes) -> tuple[int, ...]:
    """Raises `MetadataDamaged`."""
    try:
        return tuple(int(each) for each in decode_document(data, FORMAT, {"format", "retired"})["retired"])
    except UNREADABLE as error:
        raise MetadataDamaged(f"segment {name} of a stream cannot be read: {error!r}") from error


# --- inside ---------------------------------------------------------------------------------------------------

_HEAD_MEMBERS: Final = frozenset({"format", *(field.name for field in fields(Head))})


def _row(stored: list[Any]) -> Row:
    ledger_id, entries, nbytes, closed_ms, crc = stored
    if not isinstance(ledger_id, int) or (entries is None) != (nbytes is None):
        raise ValueError(f"{stored} is not a ledger of a stream")
    return (ledger_id, entries, nbytes, closed_ms, crc)


def _text(position: StreamPosition | None) -> str | None:
    return None if position is None else str(position)


def _position(text: str | None) -> StreamPosition | None:
    return None if text is None else StreamPosition.parse(text)


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


def put_together(name: str, identity: Identity, head: Head, loaded: Loaded) -> Manifest:
    """Return the manifest that a head and its segments stand for."""
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
        identity=identity,
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
    """Return the records of a manifest, with as much of the head `before` as still holds. `new_id` makes unused ids."""
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
    """Return the segments, with the number of their ledgers that were removed, that the list begins with."""
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
    """Return the retired ledgers as a head names them, and the segments among them."""
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
