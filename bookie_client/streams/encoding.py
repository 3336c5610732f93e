"""The records of a stream.

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

Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from bookie_client.streams.manifest import Landmark
from bookie_client.streams.model import StreamLedger, StreamPosition, StreamSettings, Transaction
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, PodkeeperError

FORMAT: Final = 1

Row = tuple[int, int | None, int | None, int | None, int | None]
"""A ledger without its ordinal: id, entries, bytes, closed_ms, crc."""


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
        """As `Manifest.is_gone`."""
        return self.is_deleting and self.generation < 0

    @property
    def segment_ids(self) -> frozenset[str]:
        """All records that this head names."""
        listed = {segment.segment_id for segment in self.segments}
        return frozenset(listed | {each.segment_id for each in self.retired if each.segment_id is not None})


def row_of(ledger: StreamLedger) -> Row:
    """A ledger as it is stored."""
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
    """The bytes of a record; the document tells its format."""
    return json.dumps(document, separators=(",", ":")).encode()


def decode_document(data: bytes, format_: int, members: Set[str]) -> dict[str, Any]:
    """The document of this format with no other members than these. Raises `ValueError`."""
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
    """The bytes of a head."""
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
    except (ValueError, KeyError, TypeError, AttributeError, PodkeeperError) as error:
        raise MetadataDamaged(f"the record of stream {name} cannot be read: {error!r}") from error


# --- segments -------------------------------------------------------------------------------------------------


def encode_segment(rows: Iterable[Row]) -> bytes:
    """The bytes of a segment with ledgers."""
    return encode_document({"format": FORMAT, "ledgers": list(rows)})


def decode_segment(name: str, data: bytes) -> tuple[Row, ...]:
    """Raises `MetadataDamaged`."""
    try:
        return tuple(_row(each) for each in decode_document(data, FORMAT, {"format", "ledgers"})["ledgers"])
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataDamaged(f"segment {name} of a stream cannot be read: {error!r}") from error


def encode_retired(ledger_ids: Iterable[int]) -> bytes:
    """The bytes of a segment with retired ledgers."""
    return encode_document({"format": FORMAT, "retired": list(ledger_ids)})


def decode_retired(name: str, data: bytes) -> tuple[int, ...]:
    """Raises `MetadataDamaged`."""
    try:
        return tuple(int(each) for each in decode_document(data, FORMAT, {"format", "retired"})["retired"])
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataDamaged(f"segment {name} of a stream cannot be read: {error!r}") from error


# --- inside ---------------------------------------------------------------------------------------------------

_SETTINGS: Final = frozenset(field.name for field in fields(StreamSettings))
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
