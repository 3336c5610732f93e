"""Plain reads, as many as lie one behind the other in what the socket brought.

Clients that read keep hundreds of single reads under way. The costs that each read has elsewhere are shared by many
here: the look at the caches, the hand-over to a lane and back (`lane_reads`), the write, the metrics. A client that
sends one read has a run of one.

Invariants
- Each read gets the answer that it would get alone. Those that memory has are answered in the order in which they came.
- What is more than an ordinary read of one entry by its id, in a ledger whose state is known, goes through `cold_v2` or
  `cold_v3`, in its place: nothing that was taken apart or looked up is so again, and others have their turn meanwhile.
- No more answers are made than the transport takes, and no more reads begun than the connection may have under way:
  from there on the frames stay unread.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookie_pod.ledgers.state import LedgerState
from bookie_pod.server.tcp.cold_v2 import cold_v2
from bookie_pod.server.tcp.cold_v3 import cold_v3
from bookie_pod.server.tcp.lane_reads import PIECE_BYTES, V2_READS, V3_READS, PlainRead, ReadDialect
from bookie_pod.server.tcp.security import Session
from bookie_pod.server.tcp.wire import AT_ONCE
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_protocol.wire.v2 import PLAIN_READ, PLAIN_READ_HEAD
from bookie_protocol.wire.v3_hot import ReadFields, decode_read_request


def answer_reads_v2(session: Session, data: bytes, pos: int) -> int:
    """Serve the plain reads of version 2 that begin at `pos`, where one does; returns where it stopped."""
    size = PLAIN_READ.size
    count = min((len(data) - pos) // size, session.wire.reads_at_once)
    reads = []
    ids_at = pos + len(PLAIN_READ_HEAD)
    for head, ledger_id, entry_id in PLAIN_READ.iter_unpack(data[pos : pos + count * size]):
        if head != PLAIN_READ_HEAD:
            break
        reads.append((ledger_id, entry_id, data[ids_at : ids_at + 16]))
        ids_at += size

    def serve_alone(place: int) -> None:
        at = pos + place * size
        cold_v2(session, data[at + 4 : at + size])

    return pos + _serve(session, V2_READS, reads, serve_alone) * size


def answer_reads_v3(session: Session, data: bytes, pos: int) -> int:
    """Serve the plain reads of version 3 that begin at `pos`; returns where it stopped, `pos` if none does."""
    at_once, max_length = session.wire.reads_at_once, session.wire.context.options.max_frame_size_bytes - 4
    reads: list[tuple[int, int, ReadFields]] = []
    first_flags = None
    ends = [pos]
    last = len(data) - 4
    at = pos
    while at <= last and len(reads) < at_once:
        start = at + 4
        at = start + int.from_bytes(data[at:start])
        if not start < at <= min(len(data), start + max_length):
            break
        read = decode_read_request(data, start, at)
        if read is None:
            break
        _, _, _, ledger_id, entry_id, flags = read
        if flags != first_flags and reads:
            break
        first_flags = flags
        reads.append((ledger_id, entry_id, read))
        ends.append(at)

    def serve_alone(place: int) -> None:
        cold_v3(session, data[ends[place] + 4 : ends[place + 1]])

    return ends[_serve(session, V3_READS, reads, serve_alone, high_priority=bool(first_flags))]


def _serve(
    session: Session,
    dialect: ReadDialect,
    reads: Sequence[tuple[int, int, Any]],
    serve_alone: Callable[[int], None],
    *,
    high_priority: bool = False,
) -> int:
    """Serve the reads (ledger id, entry id, what is echoed), and return how many were answered or are under way.

    These are fewer than all when the connection has to wait. `serve_alone` gets the place of a read that has to be
    served by itself.
    """
    wire = session.wire
    context = wire.context
    states = context.operations.ledgers.states
    answer = dialect.answer
    pieces: list[bytes] = []
    nbytes = total = answered = served = 0
    missed: dict[LedgerState, list[PlainRead]] = {}
    known, state = -1, None
    try:
        for (ledger_id, entry_id, echo), body in zip(reads, _look_up(context.storage, reads), strict=True):
            if ledger_id != known:
                known, state = ledger_id, states.get(ledger_id)
            if state is None or entry_id < 0 or not (state.lac_known or not dialect.tells_lac):
                serve_alone(served)
                wire.took_cold()
                known, state = -1, None  # it may be known now
            elif body is None:
                missed.setdefault(state, []).append((entry_id, echo, wire.read_started()))
            else:
                pieces += answer(echo, body, state)
                size = len(body)
                nbytes += size
                total += size
                answered += 1
                if nbytes >= PIECE_BYTES:
                    wire.send(b"".join(pieces))
                    pieces, nbytes = [], 0
            served += 1
            if wire.stalled or wire.closed:
                break
    finally:
        # Whatever befell one that was served alone: those that were begun come to their end.
        if pieces:
            wire.send(b"".join(pieces))
        if answered:
            context.read_from_memory(answered, total)
        for its_state, its in missed.items():
            session.handlers.reads.read_run(wire, dialect, its_state, its, high_priority=high_priority)
    if served < len(reads) or served == wire.reads_at_once:
        wire.reads_at_once = min(AT_ONCE, 2 * served)
    return served


def _look_up(storage: LedgerStorage, reads: Sequence[tuple[int, int, Any]]) -> list[bytes | None]:
    """Return each entry that memory holds."""
    if not reads:
        return []
    if len(reads) == 1 or len({read[0] for read in reads}) == 1:
        return storage.cached_each(reads[0][0], [read[1] for read in reads])
    places: dict[int, list[int]] = {}
    for place, read in enumerate(reads):
        places.setdefault(read[0], []).append(place)
    found: list[bytes | None] = [None] * len(reads)
    for ledger_id, its_places in places.items():
        entries = storage.cached_each(ledger_id, [reads[place][1] for place in its_places])
        for place, entry in zip(its_places, entries, strict=True):
            found[place] = entry
    return found
