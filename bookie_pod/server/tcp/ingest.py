"""Frames of the protobuf protocol, and the turn to the binary one.

A connection starts here. The first frame body that is no v3 request turns it to v2 for good; that same frame is
decoded again there, so this returns its position with `conn.speaks_v2` set.

The first branch of the loop is the hot add, as in `ingest_v2` (a copy or a recovery's add of a ledger that is hot here
is no other than its writer's); many of one shape are taken apart together (`add_runs`). The second are runs of plain
reads (`hot_reads`), whether adds are taken or not. Everything else goes through `cold_v3`.

Threads: event loop only.

Source: reference wire protocol, sections 2 and 4.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from bookie_pod.server.tcp.cold_v3 import cold_v3
from bookie_pod.server.tcp.hot_reads import answer_reads_v3
from bookie_pod.server.tcp.hot_runs import admit_run
from bookie_protocol.wire.add_runs import SHORTEST_RUN, take_add_run
from bookie_protocol.wire.v3_encode import DEFERRED_SYNC
from bookie_protocol.wire.v3_hot import NO_SHAPE, READ_HEADER, add_shape, decode_add_request

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

_LENGTH = struct.Struct(">I")


def ingest_v3(conn: Connection, data: bytes) -> int:  # noqa: C901 - one loop: each call costs as much as a branch
    """Take complete frames from `data`; returns where it stopped. Raises ProtocolViolation."""
    context = conn.context
    states = context.operations.ledgers.states
    cold_state = context.cold_state
    lanes = conn.lanes
    unpack_length, pack_length = _LENGTH.unpack_from, _LENGTH.pack
    max_length = context.options.max_frame_bytes - 4
    max_entry_id = context.storage.max_entry_id
    pos, end = 0, len(data)
    last_state = cold_state
    run_bytes = run_count = 0
    entry_length, prefix = -1, b""
    shape_length, from_bytes = -1, int.from_bytes
    mask, expected, head, unpack, body_at, tail_at, tail, shape_flags, part1, part2, run_shape = NO_SHAPE
    try_run_at, try_run_after = 0, SHORTEST_RUN
    admit_hot = conn.authenticated and not conn.parked and context.admission.hot
    try:
        while end - pos >= 4:
            length: int = unpack_length(data, pos)[0]
            start = pos + 4
            after = start + length
            if after > end or not 0 < length <= max_length:
                conn.check_length(length, data, pos)
                if after > end:
                    break
                admit_hot = False  # longer than a frame of version 2 may be: so may be its entry
            is_add = False
            if admit_hot:
                if (
                    length == shape_length
                    and from_bytes(data[start : start + head]) & mask == expected
                    and (not tail or data[start + tail_at : after] == tail)
                ):
                    # What `decode_add_request` does, without the call: frames of one shape come in long runs.
                    txn, raw_ledger, raw_entry, key, ledger_id, entry_id, lac = unpack(data, start)
                    answer = b"".join((part1, txn, part2, raw_ledger, b"\x18", raw_entry))
                    body, body_end, flags = start + body_at, start + tail_at, shape_flags
                    is_add = True
                elif not data.startswith(READ_HEADER, start + 2):  # what is no add is looked at for long
                    add = decode_add_request(data, start, after)
                    is_add = add is not None
                    if add is not None:
                        answer, ledger_id, entry_id, lac, key, body, body_end, flags = add
                        shape = add_shape(length)
                        if shape is not None:
                            shape_length = length
                            mask, expected, head, unpack, body_at, tail_at, tail = shape[:7]
                            shape_flags, part1, part2, run_shape = shape[7:]
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
                        if length == shape_length and pos >= try_run_at:
                            run = take_add_run(data, pos, run_shape(length), max_entry_id)
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
            if not is_add and data.startswith(READ_HEADER, start + 2) and conn.authenticated:
                behind = answer_reads_v3(conn, data, pos)
                if behind > pos:
                    pos = behind
                    if conn.stalled or conn.closed:
                        return pos
                    continue
            if run_count:
                context.account(last_state.ledger_id, run_bytes, run_count)
                run_bytes = run_count = 0
            last_state = cold_state
            if not cold_v3(conn, data[start:after]):
                conn.speaks_v2 = True
                return pos
            conn.took_cold()
            pos = after
            if conn.stalled or conn.closed:
                return pos
            admit_hot = conn.authenticated and not conn.parked and context.admission.hot
        return pos
    finally:
        if run_count:
            context.account(last_state.ledger_id, run_bytes, run_count)
        context.submit_lanes(conn)
