"""Read and Tail: entries as responses of a bounded size.

Invariants
- A response has at most as many entries and bytes as the request and the gateway allow, but at least one entry; a range
  without entries is one response without any.
- While a response waits to be taken the next entries are read, at most one response's worth of them, and as much ahead
  of these as there was room for when the call began.
- A Read begins when there is room for all that it will make the process hold; a Tail, which may be silent for hours,
  holds what it has to give.

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bookie_client import LedgerEntry, LedgerReader
from bookie_client.batches import Batches
from bookie_pod.callers import Call
from bookie_pod.client_memory import BEGUN_LEAVES, SMALL, MemoryGovernor
from bookie_protocol.errors import BadRequest
from bookie_protocol.ledger_service import ledger_service_pb2 as messages

MAX_ENTRIES: Final = 10_000
LARGEST_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one call reads ahead; there may be many."""
WINDOW_SHARE: Final = 48
"""A Read reads ahead at most such a part of what is left to its caller."""
RESPONSES: Final = 12
"""Measured factor of a response's size that is held besides what is read ahead: entries that arrived, those of the
response, the message, its bytes on the wire, gRPC's copies, and what they leave behind.
"""
ENTRIES_AHEAD: Final = 4
"""Entries that are read ahead, however large they are."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Upper limits of one response; bytes of payload."""

    entries: int
    nbytes: int

    @staticmethod
    def of(request: messages.ReadRequest | messages.TailRequest, max_bytes: int) -> BatchLimits:
        """Return the limits that the request asks for, within what is allowed. Raises `BadRequest`."""
        if request.max_batch_entries < 0 or request.max_batch_bytes < 0:
            raise BadRequest("max_batch_entries and max_batch_bytes must not be negative")
        return BatchLimits(
            min(request.max_batch_entries or MAX_ENTRIES, MAX_ENTRIES),
            min(request.max_batch_bytes or max_bytes, max_bytes),
        )


async def window(call: Call, reader: LedgerReader, limits: BatchLimits) -> BatchLimits:
    """Wait for room to read a range, and hold it until the call ends. The limits are those that there is room for, and
    no more than `nbytes` of them are to be read ahead of a response."""
    left = call.caller.share.left - call.caller.memory.limit // BEGUN_LEAVES
    nbytes = min(LARGEST_WINDOW_BYTES, max(SMALL, left // WINDOW_SHARE))
    batch = min(limits.nbytes, nbytes)
    average = reader.length // (reader.last_add_confirmed + 1) if reader.length else 0
    room = await call.room(max(nbytes + RESPONSES * batch, (ENTRIES_AHEAD + RESPONSES) * average), has_begun=True)
    call.make(-room)
    call.hold(room)
    reader.read_ahead(nbytes)
    return replace(limits, nbytes=batch)


def small_window(reader: LedgerReader, memory: MemoryGovernor, max_streams: int, limits: BatchLimits) -> BatchLimits:
    """The window of a reader that is silent most of the time: there may be as many as there are streams, so it waits
    for no room, and is given little."""
    nbytes = min(LARGEST_WINDOW_BYTES, max(SMALL, memory.limit // max_streams // (1 + RESPONSES)))
    reader.read_ahead(nbytes)
    return replace(limits, nbytes=min(limits.nbytes, nbytes))


class CountedResponse(NamedTuple):
    """One response. Its payloads are counted here, because to ask the message would serialise it once more."""

    message: messages.ReadResponse
    entries: int
    nbytes: int


async def responses(
    reader: LedgerReader, entries: AsyncIterator[LedgerEntry], limits: BatchLimits
) -> AsyncIterator[CountedResponse]:
    """Yield the responses to send, in order. Raises what reading raises."""
    batches = Batches(entries, _size_of, max_items=limits.entries, max_bytes=limits.nbytes)
    empty = True
    try:
        while batch := await batches.take():
            empty = False
            for part in _parts(batch, limits.nbytes):
                yield _response(reader, part)
    finally:
        await batches.close()
    if empty:
        yield _response(reader, [])


def _parts(batch: list[LedgerEntry], max_bytes: int) -> Iterator[list[LedgerEntry]]:
    """A batch passes its limit by its last entry, which then goes by itself."""
    if len(batch) > 1 and sum(map(_size_of, batch)) > max_bytes:
        yield batch[:-1]
        yield batch[-1:]
    else:
        yield batch


def _response(reader: LedgerReader, entries: list[LedgerEntry]) -> CountedResponse:
    message = messages.ReadResponse(
        first_entry_id=entries[0].entry_id if entries else 0,
        entries=[entry.payload for entry in entries],
        last_add_confirmed=reader.last_add_confirmed,
        ledger_closed=reader.is_closed,
    )
    return CountedResponse(message, len(entries), sum(map(_size_of, entries)))


def _size_of(entry: LedgerEntry) -> int:
    return len(entry.payload)
