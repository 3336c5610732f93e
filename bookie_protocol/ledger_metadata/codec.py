"""Bytes of a ledger's metadata node: a header line, then the body of one of three formats.

Header: ASCII `BookieMetadataFormatVersion`, TAB, the version in decimal (at most ten digits), LF.

| version | body | module |
|---|---|---|
| 1 | lines of text | `v1_text` |
| 2 | protobuf text | `protobuf` |
| 3 | varint length and binary protobuf | `protobuf` |

Invariant: every format is read; metadata is written in the format it carries
(`LedgerMetadata.format_version`, 3 for new ledgers), so that a rewrite never changes the format. Bytes that
cannot be read raise `MetadataDamaged`, always.

Any thread.

Sources: reference metadata layout, section 8.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata import protobuf, v1_text
from bookie_protocol.ledger_metadata.model import LedgerMetadata

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_MAX_VERSION_DIGITS: Final = 10


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes of the node, in `metadata.format_version`."""
    if metadata.format_version == 1:
        body = v1_text.encode_body(metadata)
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
            return v1_text.decode_body(ledger_id, body, node_ctime_ms)
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
