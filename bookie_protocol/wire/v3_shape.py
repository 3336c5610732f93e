"""What the decoders of hot frames share: shapes, and how one is built.

Requests of one *shape* (same frame length, same width of every varint, same optional fields) have their fixed bytes at
fixed places. A shape holds the head of the frame as one big integer with a mask over all fixed bits: tags, lengths, and
the continuation bit of every varint byte. One AND and one comparison prove that a frame has the shape, and one
`Struct.unpack_from` takes it apart. Only the bits of numbers, the key and the entry are free.

Invariants
- A shape accepts exactly one sequence of fields, the one that BookKeeper clients write: never what protobuf would read
  differently.
- The caches of shapes are bounded: they are emptied when they hold `MAX_SHAPES`.

Pure functions; any thread. The caches of `v3_hot_add` and `v3_hot_read` belong to one thread, the event loop.

Source: reference wire protocol, section 4.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.wire.v3_encode import DEFERRED_SYNC, HIGH_PRIORITY, RECOVERY_ADD
from bookie_protocol.wire.varint import varint_size

MAX_SHAPES: Final = 8192

RECOVERY_FIELD: Final = b"\xa0\x06\x01"
WRITE_FLAGS_TAG: Final = 0x28
_PRIORITY_TAG: Final = 0x20


def parse_header(frame: bytes, header: bytes, field: bytes) -> tuple[bytes, int, int]:
    """Priority field, width of the transaction id, offset behind the tag of `field`; width 0 when it is no
    such request."""
    at = 2 + len(header)
    txn = varint_size(frame, at)
    at += txn
    priority = frame[at : at + 2]
    if len(priority) < 2 or priority[0] != _PRIORITY_TAG or priority[1] > 0x7F:
        priority = b""
    at += len(priority)
    if frame[2 : 2 + len(header)] != header or frame[at : at + 2] != field:
        return b"", 0, at
    return priority, txn, at + len(field)


def free(width: int) -> bytes:
    """A varint of this width with all number bits clear."""
    return b"\x80" * (width - 1) + b"\0"


def mask_of(before: bytes, txn_width: int, txn_offset: int) -> bytes:
    """The mask over what stands in front of the request's own fields: all bits but the transaction id's numbers."""
    rest = len(before) - txn_offset - txn_width
    return b"\xff" * txn_offset + b"\x80" * txn_width + b"\xff" * rest


def flags_of(priority: bytes, tail: bytes) -> int:
    """Flags of the binary protocol, and `DEFERRED_SYNC`, from the priority field and what follows the entry."""
    flags = HIGH_PRIORITY if priority and priority[1] else 0
    if tail.endswith(RECOVERY_FIELD):
        flags |= RECOVERY_ADD
    if tail and tail[0] == WRITE_FLAGS_TAG and tail[1] & 1:
        flags |= DEFERRED_SYNC
    return flags
