"""Frames of a connection, in both protocols: one loop over one buffer for each.

A connection starts in `ingest_v3`. The first frame body that is no v3 request turns it to v2 for good; that same frame
is decoded again in `ingest_v2`, so the position of that frame is returned with `wire.speaks_v2` set.

The first branch of each loop is the hot add: an add, ordinary or of a copy, with the key of a ledger that is hot (see
`bookie_pod.ledgers.state`; a copy or a recovery's add of such a ledger is no other than its writer's). It costs a
handful of bytecodes, for version 2 one `unpack`, one slice for the entry, one for the ids of the answer; and where many
of one shape lie one behind the other, as from a loaded client, they are taken apart together (`add_runs`). A run goes
where single adds go: into the ledger's entries, its journal's lane and the answers (`admit_run`). Plain reads have runs
of their own (`hot_reads`), whether adds are taken or not. Everything else, and every doubt, goes through `cold_v2` and
`cold_v3`.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 2 to 4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from bookie_pod.ledgers.operations import WriteLane
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.server.tcp.cold_v2 import cold_v2
from bookie_pod.server.tcp.cold_v3 import cold_v3
from bookie_pod.server.tcp.context import V3_HEAD_BYTES
from bookie_pod.server.tcp.hot_reads import answer_reads_v2, answer_reads_v3
from bookie_pod.server.tcp.security import Session
from bookie_pod.server.tcp.strangers import check_frame
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire.add_runs import SHORTEST_RUN, AddRun, Echo, RunShape, take_add_run
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.v2 import PLAIN_READ_HEAD, Flag, OpCode, header_word, response_prefix
from bookie_protocol.wire.v3_encode import DEFERRED_SYNC
from bookie_protocol.wire.v3_hot import NO_SHAPE, READ_HEADER, add_shape, decode_add_request


def admit_run(run: AddRun, prefixes: Sequence[bytes], state: LedgerState, lane: WriteLane) -> None:
    """`prefixes`: the length of each entry, as the journal has it. The ledger is hot with the key of the run."""
    entries = run.entries
    state.entries.update(zip(run.entry_ids, entries, strict=True))
    records = [b""] * (2 * len(entries))
    records[::2] = prefixes
    records[1::2] = entries
    lane.data += records
    lane.answers.append(run.answers)
    if state.lac < run.lac:
        state.lac = run.lac


_HOT_ADD = struct.Struct(">II20sqQq")
"""Length word, header word, master key, ledger id, entry id (negative ones are the largest of all), LAC."""
_HOT_WORD: Final = header_word(2, OpCode.ADDENTRY, Flag.NONE)
_HOT_COPIES: Final = frozenset(
    header_word(2, OpCode.ADDENTRY, flags) for flags in (Flag.RECOVERY_ADD, Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
)
"""Copies and the adds of recoveries: of a ledger that is hot here they are no other than its writer's."""
_OK: Final = response_prefix(2, OpCode.ADDENTRY, 0)


_ENTRY_AT: Final = 28
_HEADER_TAG: Final = b"\x0a"
"""The first byte of every request of version 3."""


@lru_cache(maxsize=64)
def _run_shape(entry_length: int) -> RunShape:
    """Frames of adds with entries of this many bytes; their answers are `_OK` and the ids, as they came."""
    ids = Echo(len(_OK), _ENTRY_AT, ENTRY_IDS.size)
    return RunShape(b"\xff" * _ENTRY_AT, entry_length, 0, _OK + bytes(ENTRY_IDS.size), (ids,))


def ingest_v2(session: Session, data: bytes, pos: int) -> int:  # noqa: C901 - one loop: each call costs as much as a branch
    """Take complete frames from `data` at `pos` on; returns where it stopped. Raises ProtocolViolation."""
    wire = session.wire
    context = wire.context
    states = context.operations.ledgers.states
    cold_state = context.cold_state
    max_length = context.options.max_frame_size_bytes - 4
    max_entry_id = context.storage.max_entry_id
    admit_hot = wire.authenticated and not wire.parked and context.admission.hot
    lanes = wire.lanes
    unpack, pack_length = _HOT_ADD.unpack_from, LENGTH.pack
    end = len(data)
    last_state = cold_state
    run_bytes = run_count = 0
    entry_length, prefix = -1, b""
    try_run_at, try_run_after = 0, SHORTEST_RUN
    last_hot = end - _HOT_ADD.size
    lane: WriteLane
    try:
        while pos <= last_hot:
            length, word, key, ledger_id, entry_id, lac = unpack(data, pos)
            after = pos + 4 + length
            if after > end:
                break
            is_hot = word == _HOT_WORD or word in _HOT_COPIES
            if is_hot and admit_hot and entry_id <= max_entry_id and 48 <= length <= max_length:
                state = states.get(ledger_id, cold_state)
                if state.hot_key == key:
                    if state is not last_state:
                        if run_count:
                            context.account(last_state.ledger_id, run_bytes, run_count)
                            run_bytes = run_count = 0
                        last_state = state
                        lane = lanes[state.journal]
                        records, answers, entries = lane.data, lane.answers, state.entries
                    if length != entry_length + 24:
                        entry_length = length - 24
                        prefix = pack_length(entry_length)
                    if pos >= try_run_at:
                        run = take_add_run(data, pos, _run_shape(entry_length), max_entry_id)
                        if run is not None:
                            admit_run(run, [prefix] * len(run.entries), state, lane)
                            run_bytes += entry_length * len(run.entries)
                            run_count += len(run.entries)
                            pos += (length + 4) * len(run.entries)
                            continue
                        # Mixed traffic: look ever more rarely.
                        try_run_at = pos + (length + 4) * try_run_after
                        try_run_after *= 2
                    entry = data[pos + 28 : after]
                    entries[entry_id] = entry
                    records += (prefix, entry)
                    answers += (_OK, data[pos + 28 : pos + 44])
                    if state.lac < lac < entry_id:
                        state.lac = lac
                    run_bytes += entry_length
                    run_count += 1
                    pos = after
                    continue
            if not 0 < length <= max_length:
                break
            if run_count:
                context.account(last_state.ledger_id, run_bytes, run_count)
                run_bytes = run_count = 0
            last_state = cold_state
            if wire.authenticated and data.startswith(PLAIN_READ_HEAD, pos):
                pos = answer_reads_v2(session, data, pos)
            else:
                cold_v2(session, data[pos + 4 : after])
                wire.took_cold()
                pos = after
            if wire.stalled or wire.closed:
                return pos
            admit_hot = wire.authenticated and not wire.parked and context.admission.hot
        return _ingest_tail(session, data, pos, end)
    finally:
        if run_count:
            context.account(last_state.ledger_id, run_bytes, run_count)
        wire.submit_lanes()


def _ingest_tail(session: Session, data: bytes, pos: int, end: int) -> int:
    """Return the frames that are shorter than a hot add at the end of the buffer, and the check of the next length."""
    wire = session.wire
    while end - pos >= 4 and not wire.stalled and not wire.closed:
        length = LENGTH.unpack_from(data, pos)[0]
        check_length(wire, length, data, pos)
        after = pos + 4 + length
        if after > end:
            break
        if wire.authenticated and data.startswith(PLAIN_READ_HEAD, pos):
            pos = answer_reads_v2(session, data, pos)
        else:
            cold_v2(session, data[pos + 4 : after])
            wire.took_cold()
            pos = after
    return pos


def ingest_v3(session: Session, data: bytes) -> int:  # noqa: C901 - one loop: each call costs as much as a branch
    """Take complete frames from `data`; returns where it stopped. Raises ProtocolViolation."""
    wire = session.wire
    context = wire.context
    states = context.operations.ledgers.states
    cold_state = context.cold_state
    lanes = wire.lanes
    unpack_length, pack_length = LENGTH.unpack_from, LENGTH.pack
    max_length = context.options.max_frame_size_bytes - 4
    max_entry_id = context.storage.max_entry_id
    pos, end = 0, len(data)
    last_state = cold_state
    run_bytes = run_count = 0
    entry_length, prefix = -1, b""
    shape, from_bytes = NO_SHAPE, int.from_bytes
    try_run_at, try_run_after = 0, SHORTEST_RUN
    admit_hot = wire.authenticated and not wire.parked and context.admission.hot
    try:
        while end - pos >= 4:
            length: int = unpack_length(data, pos)[0]
            start = pos + 4
            after = start + length
            if after > end or not 0 < length <= max_length:
                check_length(wire, length, data, pos)
                if after > end:
                    break
                admit_hot = False  # longer than a frame of version 2 may be: so may be its entry
            is_add = False
            if admit_hot:
                if (
                    length == shape.length
                    and from_bytes(data[start : start + shape.head]) & shape.mask == shape.expected
                    and (not shape.tail or data[start + shape.body_end : after] == shape.tail)
                ):
                    # What `decode_add_request` does, without the call: frames of one shape come in long runs.
                    txn, ledger, number, key, ledger_id, entry_id, lac = shape.unpack(data, start)
                    answer = b"".join((shape.response_before, txn, shape.response_between, ledger, b"\x18", number))
                    body, body_end, flags = start + shape.body_at, start + shape.body_end, shape.flags
                    is_add = True
                elif not data.startswith(READ_HEADER, start + 2):  # what is no add is looked at for long
                    add = decode_add_request(data, start, after)
                    is_add = add is not None
                    if add is not None:
                        answer, ledger_id, entry_id, lac, key, body, body_end, flags = add
                        shape = add_shape(length) or shape
                if is_add:
                    state = states.get(ledger_id, cold_state)
                    if state.hot_key == key and not flags & DEFERRED_SYNC and 0 <= entry_id <= max_entry_id:
                        if state is not last_state:
                            if run_count:
                                context.account(last_state.ledger_id, run_bytes, run_count)
                                run_bytes = run_count = 0
                            last_state = state
                            lane = lanes[state.journal]
                            records, answers, entries = lane.data, lane.answers, state.entries
                        if body_end - body != entry_length:
                            entry_length = body_end - body
                            prefix = pack_length(entry_length)
                        if length == shape.length and pos >= try_run_at:
                            run = take_add_run(data, pos, shape.run_shape(length), max_entry_id)
                            if run is not None:
                                admit_run(run, [prefix] * len(run.entries), state, lane)
                                run_bytes += entry_length * len(run.entries)
                                run_count += len(run.entries)
                                pos += (length + 4) * len(run.entries)
                                continue
                            # Mixed traffic: look ever more rarely.
                            try_run_at = pos + (length + 4) * try_run_after
                            try_run_after *= 2
                        entry = data[body:body_end]
                        entries[entry_id] = entry
                        records += (prefix, entry)
                        answers.append(answer)
                        if state.lac < lac < entry_id:
                            state.lac = lac
                        run_bytes += entry_length
                        run_count += 1
                        pos = after
                        continue
            if not is_add and data.startswith(READ_HEADER, start + 2) and wire.authenticated:
                behind = answer_reads_v3(session, data, pos)
                if behind > pos:
                    pos = behind
                    if wire.stalled or wire.closed:
                        return pos
                    continue
            if run_count:
                context.account(last_state.ledger_id, run_bytes, run_count)
                run_bytes = run_count = 0
            last_state = cold_state
            if not cold_v3(session, data[start:after]):
                wire.speaks_v2 = True
                return pos
            wire.took_cold()
            pos = after
            if wire.stalled or wire.closed:
                return pos
            admit_hot = wire.authenticated and not wire.parked and context.admission.hot
        return pos
    finally:
        if run_count:
            context.account(last_state.ledger_id, run_bytes, run_count)
        wire.submit_lanes()


def check_length(wire: Wire, length: int, data: bytes, pos: int) -> None:
    """Raise ProtocolViolation for a length word, that at `pos`, which no frame may have."""
    if not wire.authenticated and not wire.stalls:  # else what is under way may authenticate it
        check_frame(length)
    longest = wire.context.options.max_frame_size_bytes - 4
    if 0 < length <= longest:
        return
    # Before a client has said which version it speaks, the first byte of its frame does.
    has_head = not wire.speaks_v2 and data[pos + 4 : pos + 5] in (b"", _HEADER_TAG)
    if not (has_head and 0 < length <= longest + V3_HEAD_BYTES):
        raise ProtocolViolation(
            f"frame length {length} is outside 1 to {longest} (nettyMaxFrameSizeBytes counts the length word too)"
        )
