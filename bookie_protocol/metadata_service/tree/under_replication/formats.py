"""Bytes of the nodes below `underreplication`.

| node | bytes |
|---|---|
| `LAYOUT` | text `type: "BASIC"`, `version: 1` |
| a mark | text `replica` (repeated), `ctime` (ms, optional) |
| a lock | text `bookieId`: the host name of its holder |
| a vote, `auditorelection` | text `bookieId` |
| check times | binary, field 1: ms since the epoch |
| `lostBookieRecoveryDelay` | seconds in decimal |

Text is protobuf text. Decoding raises `MetadataDamaged`, which names the node.

Pure; any thread.

Source: reference metadata layout, section 10.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from google.protobuf.message import DecodeError

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)
from bookie_protocol.ledger_metadata.protobuf import format_text, parse_text
from bookie_protocol.metadata_service.under_replication import AuditorCheck, UnderreplicatedLedger

_LAYOUT_TYPE: Final = "BASIC"
_LAYOUT_VERSION: Final = 1
_MAX_DELAY: Final = 2**31 - 1


def encode_layout() -> bytes:
    return format_text(LedgerRereplicationLayoutFormat(type=_LAYOUT_TYPE, version=_LAYOUT_VERSION))


def check_layout(data: bytes, path: str) -> None:
    """`MetadataDamaged` unless the tree has the one layout there is."""
    found = parse_text(data, LedgerRereplicationLayoutFormat(), path)
    if (found.type, found.version) != (_LAYOUT_TYPE, _LAYOUT_VERSION):
        raise MetadataDamaged(
            f"{path} names the layout {found.type!r} {found.version}, which this release does not know"
        )


def encode_mark(replicas: Collection[str], ctime_ms: int | None) -> bytes:
    message = UnderreplicatedLedgerFormat(replica=list(replicas))
    if ctime_ms is not None:
        message.ctime = ctime_ms
    return format_text(message)


def decode_mark(ledger_id: int, data: bytes, path: str) -> UnderreplicatedLedger:
    found = parse_text(data, UnderreplicatedLedgerFormat(), path)
    ctime_ms = found.ctime if found.HasField("ctime") else None
    return UnderreplicatedLedger(ledger_id, tuple(dict.fromkeys(found.replica)), ctime_ms)


def encode_lock(host: str) -> bytes:
    return format_text(LockDataFormat(bookieId=host))


def decode_lock(data: bytes, path: str) -> str:
    return parse_text(data, LockDataFormat(), path).bookieId


def encode_vote(bookie_id: str) -> bytes:
    return format_text(AuditorVoteFormat(bookieId=bookie_id))


def decode_vote(data: bytes, path: str) -> str:
    return parse_text(data, AuditorVoteFormat(), path).bookieId


def encode_check_time(check: AuditorCheck, time_ms: int) -> bytes:
    if check is AuditorCheck.ALL_LEDGERS:
        return CheckAllLedgersFormat(checkAllLedgersCTime=time_ms).SerializeToString()
    if check is AuditorCheck.PLACEMENT_POLICY:
        return PlacementPolicyCheckFormat(placementPolicyCheckCTime=time_ms).SerializeToString()
    return ReplicasCheckFormat(replicasCheckCTime=time_ms).SerializeToString()


def decode_check_time(data: bytes, path: str) -> int | None:
    """None: no time is recorded. The three messages differ in nothing but names."""
    try:
        found = CheckAllLedgersFormat.FromString(data)
    except DecodeError as error:
        raise MetadataDamaged(f"{path} is not valid protobuf: {error}") from error
    return found.checkAllLedgersCTime if found.HasField("checkAllLedgersCTime") else None


def encode_delay(seconds: int) -> bytes:
    if not 0 <= seconds <= _MAX_DELAY:
        raise ValueError(f"lostBookieRecoveryDelay={seconds}: must be between 0 and 2^31-1 seconds")
    return str(seconds).encode()


def decode_delay(data: bytes, path: str) -> int:
    text = data.decode("utf-8", "replace").strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 10:
        raise MetadataDamaged(f"{path} is not a number of seconds: {text[:40]!r}; write one, such as 0")
    return int(text)
