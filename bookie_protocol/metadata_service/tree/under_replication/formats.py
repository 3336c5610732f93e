"""Names and bytes of the nodes below `<root>/underreplication`.

A mark is `ledgers/<a>/<b>/<c>/<d>/urL%010d`: a to d are the four 16-bit groups of the ledger id, most significant
first, each four lower-case hexadecimal digits. So every leaf directory holds at most one mark, and its path alone
names the ledger. A lock is `locks/urL%010d`.

| node | bytes |
|---|---|
| `LAYOUT` | text `type: "BASIC"`, `version: 1` |
| a mark | text `replica` (repeated), `ctime` (ms, optional), then a comment `# podkeeper {...}` with its findings |
| a lock | text `bookieId`: the host name of its holder |
| a vote, `auditorelection` | text `bookieId` |
| check times | binary, field 1: ms since the epoch |
| `lostBookieRecoveryDelay` | seconds in decimal |

Text is protobuf text. Java's parser and older releases skip the comment (`metadata_service.findings`); a comment that
cannot be read counts as none. Decoding raises `MetadataDamaged`, which names the node.

Pure; any thread.

Sources: docs/internals/metadata-layout.md, sections 10 and 10.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from google.protobuf.message import DecodeError

from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.ledger_metadata.codec import format_text, parse_text
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID
from bookie_protocol.metadata_service.findings import Failure, Finding, from_stored, to_stored
from bookie_protocol.metadata_service.under_replication import AuditorCheck, UnderreplicatedLedger

LAYOUT: Final = "LAYOUT"
LEDGERS: Final = "ledgers"
LOCKS: Final = "locks"
LEFT_ALONE: Final = "left-alone"
"""Earlier releases kept notes of failures there; nothing reads them any more."""
DISABLE: Final = "disable"
LOST_BOOKIE_RECOVERY_DELAY: Final = "lostBookieRecoveryDelay"
AUDITOR_ELECTION: Final = "auditorelection"
VOTE_PREFIX: Final = "V_"

LEVELS: Final = 4
_PREFIX: Final = "urL"
_GROUP: Final = re.compile(r"[0-9a-f]{4}")
_LEAF: Final = re.compile(r"urL([0-9]{10,19})")
_VOTE: Final = re.compile(r"V_(-?[0-9]+)")


def leaf_name(ledger_id: int) -> str:
    """Return the name of a mark, and of a lock."""
    return f"{_PREFIX}{ledger_id:010d}"


def mark_path(ledger_id: int) -> str:
    """Return the path below `ledgers`, with a leading slash. `ValueError`: no ledger has this id."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"ledger id {ledger_id} is outside 0 to 2^63-1")
    digits = f"{ledger_id:016x}"
    return f"/{digits[0:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:16]}/{leaf_name(ledger_id)}"


def is_group(name: str) -> bool:
    """Return True if a child of one of the four levels is a directory of marks."""
    return _GROUP.fullmatch(name) is not None


def directory_ledger_id(directory: str) -> int | None:
    """Return the id that a leaf directory (its path below `ledgers`) stands for; None: no ledger can have it."""
    ledger_id = int(directory.replace("/", ""), 16)
    return ledger_id if ledger_id <= MAX_LEDGER_ID else None


def lock_ledger_id(name: str) -> int | None:
    """Return the id behind a child of `locks`; None if it is no lock."""
    match = _LEAF.fullmatch(name)
    return None if match is None else int(match[1])


def vote_number(name: str) -> int | None:
    """Return the sequence number of a child of `auditorelection`; None if it is no vote."""
    match = _VOTE.fullmatch(name)
    return None if match is None else int(match[1])


_COMMENT: Final = b"# podkeeper "
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


def encode_mark(
    replicas: Collection[str],
    ctime_ms: int | None,
    findings: Collection[Finding] = (),
    failures: Collection[Failure] = (),
) -> bytes:
    message = UnderreplicatedLedgerFormat(replica=list(replicas))
    if ctime_ms is not None:
        message.ctime = ctime_ms
    stored = to_stored(findings, failures)
    if not stored:
        return format_text(message)
    return format_text(message) + _COMMENT + json.dumps(stored, separators=(",", ":")).encode("ascii") + b"\n"


def decode_mark(ledger_id: int, data: bytes, path: str) -> UnderreplicatedLedger:
    try:
        found = parse_text(data, UnderreplicatedLedgerFormat(), path)
    except MetadataDamaged as error:
        raise MetadataDamaged(
            f"{error}. So it is unknown which copies of ledger {ledger_id} are missing, and no worker removes the mark:"
            " delete this node, and run `bookie cluster force-auditor-checks`, which finds what is missing"
        ) from error
    ctime_ms = found.ctime if found.HasField("ctime") else None
    findings, failures = _decode_comment(data)
    replicas = tuple(dict.fromkeys(found.replica))
    return UnderreplicatedLedger(
        ledger_id, replicas, ctime_ms, None, tuple(each for each in findings if each.bookie in replicas), failures
    )


def _decode_comment(data: bytes) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
    """Decode the comment of a mark; nothing if there is none, or it cannot be read: then everything that the
    bookies hold is read."""
    line = next((line for line in reversed(data.splitlines()) if line.startswith(_COMMENT)), None)
    if line is None:
        return (), ()
    try:
        return from_stored(json.loads(line[len(_COMMENT) :]))
    except UNREADABLE:
        return (), ()


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
