"""Many adds of one ledger on their way out: as frames, or as what the frames say.

A bookie of another process gets the frames. One of the same process may take the entries as they are: then nothing is
put together here that would be taken apart there.

Invariants
- Both say the same. Whoever may take `entries` may take `frames` instead, at any time.
- The frames are joined once, however many bookies get them, and not at all if none does.

Event loop only.

Source: reference wire protocol, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bookie_protocol.wire.v3_encode import add_response_parts
from bookie_protocol.wire.varint import encode_varint


class CommonFields(NamedTuple):
    """What adds of protocol version 3, without flags, of consecutive entries have in common, and their numbers."""

    ledger_id: int
    master_key: bytes
    first_entry_id: int
    lac: int
    """The last add confirmed that all of the entries carry."""
    header_size: int
    """Bytes of an entry before its payload."""
    txns: Sequence[bytes]
    """Their transaction ids, as varints."""
    entry_ids: Sequence[bytes]
    """Their entry ids, as varints."""


class AddFrames:
    """The frames of at least one add: the k-th frame is `heads[k]`, `bodies[k]` and `tail`. A head ends with the
    header of the entry and its digest. `common` None: only frames will do."""

    __slots__ = ("_bodies", "_frames", "_heads", "_nbytes", "_tail", "common")

    def __init__(
        self, heads: Sequence[bytes], bodies: Sequence[bytes], tail: bytes, common: CommonFields | None = None
    ) -> None:
        self._heads = heads
        self._bodies = bodies
        self._tail = tail
        self.common = common
        self._frames: bytes | None = None
        self._nbytes = 0

    def __len__(self) -> int:
        """Bytes of all frames."""
        if not self._nbytes:
            heads, bodies = self._heads, self._bodies
            self._nbytes = sum(map(len, heads)) + sum(map(len, bodies)) + len(self._tail) * len(heads)
        return self._nbytes

    @property
    def frames(self) -> bytes:
        """All of them, one behind the other."""
        if self._frames is None:
            step = 3 if self._tail else 2
            pieces = [self._tail] * (step * len(self._heads))
            pieces[::step] = self._heads
            pieces[1::step] = self._bodies
            self._frames = b"".join(pieces)
        return self._frames

    @property
    def longest(self) -> int:
        """Bytes that no frame is longer than."""
        return max(map(len, self._heads)) + max(map(len, self._bodies)) + len(self._tail)

    def entries(self, common: CommonFields) -> list[bytes]:
        """Headers, digests and payloads: what a bookie stores. `common` is that of these adds."""
        at = -common.header_size
        return [head[at:] + body for head, body in zip(self._heads, self._bodies, strict=True)]


def added_answers(ledger_id: int, txns: Sequence[bytes], entry_ids: Sequence[bytes]) -> bytes:
    """The answers to adds that were stored, by their numbers as varints."""
    ledger, count = encode_varint(ledger_id), len(txns)
    if len(txns[0]) != len(txns[-1]) or len(entry_ids[0]) != len(entry_ids[-1]):
        # One of the two gets longer on the way, which is rare. Numbers that count up are not shorter in between.
        half = count // 2
        return added_answers(ledger_id, txns[:half], entry_ids[:half]) + added_answers(
            ledger_id, txns[half:], entry_ids[half:]
        )
    before_txn, before_ledger = add_response_parts(len(txns[0]), len(ledger), len(entry_ids[0]))
    pieces = [before_txn, b"", b"".join((before_ledger, ledger, b"\x18")), b""] * count
    pieces[1::4] = txns
    pieces[3::4] = entry_ids
    return b"".join(pieces)
