"""Bytes of a ledger's metadata node: a header line, then the body of one of three formats.

Header: ASCII `BookieMetadataFormatVersion`, TAB, the version in decimal (at most ten digits), LF.

| version | body | functions |
|---|---|---|
| 1 | lines of text (BookKeeper 4.0) | `encode_body`, `decode_body` |
| 2 | protobuf text | `..._text_body` |
| 3 | varint length and binary protobuf | `..._binary_body` |

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

Formats 2 and 3, reading: last entry and length count only if CLOSED; the digest type only if a password is present
(even an empty one); no ack quorum means the write quorum; of two custom values with one key the later wins. Writing:
length 0 and last entry -1 unless CLOSED; the creation token in format 3 only.

Protobuf text, as the metadata service's other text nodes and the cookies have it too (`format_text`, `parse_text`).
Writing: one field a line in the order of field numbers, two spaces of indentation a level, double quotes, every byte
outside printable ASCII as an escape. Reading: any field order, either quote, all escapes of the reference, unknown
fields skipped; `ValueError` for what is none.

Any thread.

Sources: docs/internals/metadata-layout.md, sections 1.3 and 8; docs/internals/on-disk-formats.md, section 10.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, MetadataDamaged
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import LedgerMetadataFormat
from bookie_protocol.ledger_metadata.model import INVALID_ENTRY_ID, Ensemble, LedgerMetadata, LedgerState

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_MAX_VERSION_DIGITS: Final = 10
_TEXT: Final = _HEADER + b"2\n"
_TEXT_COST: Final = 4
"""Time that a byte of protobuf text takes, as a multiple of a byte of the binary format."""


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Return the bytes of the node, in `metadata.format_version`."""
    if metadata.format_version == 1:
        body = encode_body(metadata)
    elif metadata.format_version == 2:
        body = encode_text_body(metadata)
    else:
        body = encode_binary_body(metadata)
    return b"%s%d\n%s" % (_HEADER, metadata.format_version, body)


def decode_ledger_metadata(ledger_id: int, data: bytes, node_ctime_ms: int | None = None) -> LedgerMetadata:
    """Parse a node. `node_ctime_ms`, the node's own creation time, is used if none was recorded.

    Raises `MetadataDamaged`.
    """
    subject = f"metadata of ledger {ledger_id}"
    version, body = _split_header(subject, data)
    try:
        if version == 1:
            return decode_body(ledger_id, body, node_ctime_ms)
        if version == 2:
            return decode_text_body(ledger_id, body, node_ctime_ms)
        if version == 3:
            return decode_binary_body(ledger_id, body, node_ctime_ms)
    except (ValueError, OverflowError) as error:
        raise MetadataDamaged(f"{subject} contradicts itself: {error}") from error
    raise MetadataDamaged(f"{subject} has format version {version}; this release reads 1, 2 and 3")


def decoding_cost(data: bytes) -> int:
    """Return how many bytes of the binary format take as long to decode as this node: texts are parsed slowly."""
    return len(data) * (_TEXT_COST if data.startswith(_TEXT) else 1)


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
    """Return the lines after the header."""
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


MessageT = TypeVar("MessageT", bound=Message)

_MAX_TEXT: int = 64 * 1024 * 1024
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("abfnrtv\\'\"xXuU")


def format_text(message: Message) -> bytes:
    """Return the text form, ending in a newline."""
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")


def _escape(match: re.Match[str]) -> str:
    """The library knows every escape but \\?, and lets unknown ones and octal ones above 255 pass with a warning."""
    what = match[1]
    if what == "?":
        return what
    if what in _KNOWN_ESCAPES or (what.isdigit() and what.isascii() and int(what, 8) < 256):
        return match[0]
    raise ValueError(f"unknown escape {match[0]}")


def checked_string(value: object, subject: str) -> str:
    """Return a string field of a binary message; the library hands out bytes that are no UTF-8 as they are."""
    if not isinstance(value, str):
        raise MetadataDamaged(f"{subject} holds a string that is not UTF-8")
    return value


def parse_text(data: bytes, message: MessageT, subject: str) -> MessageT:
    """Fill `message` from its text form and return it; `MetadataDamaged` names `subject`."""
    if len(data) > _MAX_TEXT:
        raise MetadataDamaged(f"{subject} is {len(data)} bytes long, more than any valid text")
    try:
        text = _ESCAPE.sub(_escape, data.decode("utf-8"))
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        # The parser's message contains the line, which may be that of the password.
        where = f"line {error.GetLine()}, column {error.GetColumn()}"
        raise MetadataDamaged(f"{subject} is not valid protobuf text: {where}") from None
    except (ValueError, RecursionError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MetadataDamaged(f"{subject} is not valid protobuf text: {first_line}") from error
    if not message.IsInitialized():
        raise MetadataDamaged(f"{subject} lacks a required field")
    return message


_DIGEST_TYPE_FIELD = LedgerMetadataFormat.DIGESTTYPE_FIELD_NUMBER
_MAX_VARINT32 = 5


def encode_text_body(metadata: LedgerMetadata) -> bytes:
    """Body of format 2."""
    return format_text(_to_message(metadata))


def encode_binary_body(metadata: LedgerMetadata) -> bytes:
    """Body of format 3."""
    message = _to_message(metadata)
    message.cToken = metadata.creation_token
    encoded = message.SerializeToString(deterministic=True)
    return _varint(len(encoded)) + encoded


def decode_text_body(ledger_id: int, body: bytes, node_ctime_ms: int | None) -> LedgerMetadata:
    """Parse a body of format 2."""
    message = parse_text(body, LedgerMetadataFormat(), f"metadata of ledger {ledger_id}")
    return _from_message(ledger_id, message, node_ctime_ms, 2)


def decode_binary_body(ledger_id: int, body: bytes, node_ctime_ms: int | None) -> LedgerMetadata:
    """Parse a body of format 3; bytes after the announced length are ignored, as the reference does."""
    subject = f"metadata of ledger {ledger_id}"
    length, start = _read_varint(body)
    if len(body) - start < length:
        raise MetadataDamaged(f"{subject} is cut short: {len(body) - start} of {length} bytes")
    try:
        message = LedgerMetadataFormat.FromString(body[start : start + length])
    except DecodeError as error:
        raise MetadataDamaged(f"{subject} is not valid protobuf: {error}") from error
    if not message.IsInitialized():
        raise MetadataDamaged(f"{subject} lacks a required field, or has a ledger state unknown to this release")
    if _DIGEST_TYPE_FIELD in _unknown_fields(message):
        raise MetadataDamaged(f"{subject} names a digest type unknown to this release")
    return _from_message(ledger_id, message, node_ctime_ms, 3)


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    digest_type = metadata.digest_type
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state.value,
        ackQuorumSize=metadata.ack_quorum_size,
        digestType=None if digest_type is None else digest_type.metadata_name,
    )
    for first, ensemble in metadata.ensembles.items():
        message.segment.add(firstEntryId=first, ensembleMember=ensemble)
    if metadata.password is not None:
        message.password = metadata.password
    if metadata.store_ctime and metadata.ctime is not None:
        message.ctime = metadata.ctime
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message


def _from_message(
    ledger_id: int, message: LedgerMetadataFormat, node_ctime_ms: int | None, format_version: int
) -> LedgerMetadata:
    subject = f"metadata of ledger {ledger_id}"
    ensembles: dict[int, Ensemble] = {}
    for segment in message.segment:
        if segment.firstEntryId in ensembles:
            raise ValueError(f"two ensembles start at entry {segment.firstEntryId}")
        members = (checked_string(member, subject) for member in segment.ensembleMember)
        ensembles[segment.firstEntryId] = tuple(members)
    state = LedgerState(LedgerMetadataFormat.State.Name(message.state))
    closed = state is LedgerState.CLOSED
    # no type beside a password is the wire default of the field, CRC32
    digest_type = DigestType(message.digestType) if message.HasField("password") else None
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        ensembles=ensembles,
        state=state,
        last_entry_id=message.lastEntryId if closed and message.HasField("lastEntryId") else INVALID_ENTRY_ID,
        length=message.length if closed else 0,
        digest_type=digest_type,
        password=message.password if message.HasField("password") else None,
        ctime=message.ctime if message.HasField("ctime") else node_ctime_ms,
        store_ctime=message.HasField("ctime"),
        custom_metadata={checked_string(item.key, subject): item.value for item in message.customMetadata},
        creation_token=message.cToken,
        format_version=format_version,
    )


def _unknown_fields(message: LedgerMetadataFormat) -> set[int]:
    unknown: Any = UnknownFieldSet(message)
    return {field.field_number for field in unknown}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:_MAX_VARINT32]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise ValueError("the length before the message is not a number")
