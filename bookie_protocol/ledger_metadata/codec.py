"""Bytes of a ledger's metadata node: a header line, then the body of one of three formats.

Header: ASCII `BookieMetadataFormatVersion`, TAB, the version in decimal (at most ten digits), LF.

| version | body | module |
|---|---|---|
| 1 | lines of text (BookKeeper 4.0) | here |
| 2 | protobuf text | `protobuf` |
| 3 | varint length and binary protobuf | `protobuf` |

Invariant: every format is read; metadata is written in the format it carries
(`LedgerMetadata.format_version`, 3 for new ledgers), so that a rewrite never changes the format. Bytes that
cannot be read raise `MetadataDamaged`, always.

Format 1:

    <write quorum>
    <ensemble size>
    <length>
    <first entry> TAB <bookie> TAB <bookie> ...        one line for each ensemble
    <last entry> TAB CLOSED                            if closed; -102 if in recovery; no such line if open

Lines are separated, not ended, by LF. The ack quorum is the write quorum. Password, digest type, creation
time, custom metadata and token have no place: writing this format loses them.

Any thread.

Source: reference metadata layout, section 8.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import BadRequest, MetadataDamaged
from bookie_protocol.ledger_metadata import protobuf
from bookie_protocol.ledger_metadata.model import INVALID_ENTRY_ID, Ensemble, LedgerMetadata, LedgerState

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_MAX_VERSION_DIGITS: Final = 10


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes of the node, in `metadata.format_version`."""
    if metadata.format_version == 1:
        body = encode_body(metadata)
    elif metadata.format_version == 2:
        body = protobuf.encode_text_body(metadata)
    else:
        body = protobuf.encode_binary_body(metadata)
    return b"%s%d\n%s" % (_HEADER, metadata.format_version, body)


def decode_ledger_metadata(ledger_id: int, data: bytes, node_ctime_ms: int | None = None) -> LedgerMetadata:
    """Parse a node. `node_ctime_ms`, the node's own creation time, stands in where none was recorded.

    Raises `MetadataDamaged`.
    """
    subject = f"metadata of ledger {ledger_id}"
    version, body = _split_header(subject, data)
    try:
        if version == 1:
            return decode_body(ledger_id, body, node_ctime_ms)
        if version == 2:
            return protobuf.decode_text_body(ledger_id, body, node_ctime_ms)
        if version == 3:
            return protobuf.decode_binary_body(ledger_id, body, node_ctime_ms)
    except (ValueError, OverflowError) as error:
        raise MetadataDamaged(f"{subject} contradicts itself: {error}") from error
    raise MetadataDamaged(f"{subject} has format version {version}; this release reads 1, 2 and 3")


def _split_header(subject: str, data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_HEADER):
        raise MetadataDamaged(f"{subject} does not start with {_HEADER.decode().strip()!r}")
    start = len(_HEADER)
    end = data.find(b"\n", start, start + _MAX_VERSION_DIGITS + 1)
    digits = data[start:end] if end >= 0 else b""
    if not digits.isdigit():
        raise MetadataDamaged(f"{subject} has no format version in its first line")
    return int(digits), data[end + 1 :]


_IN_RECOVERY: Final = -102
_CLOSED: Final = "CLOSED"


def encode_body(metadata: LedgerMetadata) -> bytes:
    """The lines after the header."""
    if metadata.ack_quorum_size != metadata.write_quorum_size:
        raise BadRequest(
            f"ledger {metadata.ledger_id}: metadata format 1 has no ack quorum; use format 3, or make it equal to the "
            "write quorum"
        )
    lines = [str(metadata.write_quorum_size), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(first), *ensemble)) for first, ensemble in metadata.ensembles.items()]
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY}\t{_CLOSED}")
    elif metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry_id}\t{_CLOSED}")
    else:
        lines.append("")
    return "\n".join(lines).encode("utf-8")


def decode_body(ledger_id: int, body: bytes, node_ctime_ms: int | None) -> LedgerMetadata:
    """Parse the lines after the header."""
    lines = body.decode("utf-8").split("\n")
    if len(lines) < 3:
        raise ValueError("fewer than three lines")
    write_quorum, ensemble_size, length = (_number(line) for line in lines[:3])
    ensembles: dict[int, Ensemble] = {}
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    for line in filter(None, lines[3:]):
        if state is not LedgerState.OPEN:
            raise ValueError("lines follow the line that ends the ledger")
        first, *members = line.split("\t")
        if members == [_CLOSED]:
            state, last_entry_id = _end(_number(first))
        elif _number(first) in ensembles:
            raise ValueError(f"two ensembles start at entry {first}")
        else:
            ensembles[_number(first)] = tuple(members)
    return LedgerMetadata(
        ledger_id,
        ensemble_size,
        write_quorum,
        write_quorum,
        ensembles,
        state,
        last_entry_id,
        length if state is LedgerState.CLOSED else 0,
        ctime=node_ctime_ms,
        format_version=1,
    )


def _end(last_entry_id: int) -> tuple[LedgerState, int]:
    if last_entry_id == _IN_RECOVERY:
        return LedgerState.IN_RECOVERY, INVALID_ENTRY_ID
    return LedgerState.CLOSED, last_entry_id


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text)
