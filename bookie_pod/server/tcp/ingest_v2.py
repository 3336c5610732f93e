"""Frames of the binary protocol: one loop over one buffer.

The first branch of the loop is the hot add: an add of version 2, ordinary or of a copy, with the key of a ledger that
is hot (see `bookie_pod.ledgers.state`). It costs a handful of bytecodes: one `unpack`, one slice for the entry, one for
the ids of the answer; and where many lie one behind the other, as from a loaded client, they are taken apart together
(`add_runs`). Plain reads have runs of their own (`hot_reads`). Everything else, and every doubt, goes through
`cold_v2`.

Threads: event loop only.

Source: reference wire protocol, section 3.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from bookie_pod.server.tcp.cold_v2 import cold_v2
from bookie_pod.server.tcp.hot_reads import answer_reads_v2
from bookie_pod.server.tcp.hot_runs import admit_run
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.wire.add_runs import SHORTEST_RUN, Echo, RunShape, take_add_run
from bookie_protocol.wire.v2 import PLAIN_READ_HEAD, Flag, OpCode, header_word, response_prefix

if TYPE_CHECKING:
    from bookie_pod.ledgers.operations import WriteLane
    from bookie_pod.server.tcp.connection import Connection

_HOT_ADD = struct.Struct(">II20sqQq")
"""Length word, header word, master key, ledger id, entry id (negative ones are the largest of all), LAC."""
_LENGTH = struct.Struct(">I")
_HOT_WORD: Final = header_word(2, OpCode.ADDENTRY, Flag.NONE)
_HOT_COPIES: Final = frozenset(
    header_word(2, OpCode.ADDENTRY, flags) for flags in (Flag.RECOVERY_ADD, Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
)
"""Copies and the adds of recoveries: of a ledger that is hot here they are no other than its writer's."""
_OK: Final = response_prefix(2, OpCode.ADDENTRY, 0)


_ENTRY_AT: Final = 28


@lru_cache(maxsize=64)
def _run_shape(entry_length: int) -> RunShape:
    """Frames of adds with entries of this many bytes; their answers are `_OK` and the ids, as they came."""
    ids = Echo(len(_OK), _ENTRY_AT, ENTRY_IDS.size)
    return RunShape(b"\xff" * _ENTRY_AT, entry_length, 0, _OK + bytes(ENTRY_IDS.size), (ids,))


def ingest_v2(conn: Connection, data: bytes, pos: int) -> int:  # noqa: C901 - one loop: each call costs as much as a branch
    """Take complete frames from `data` at `pos` on; returns where it stopped. Raises ProtocolViolation."""
    context = conn.context
    states = context.operations.ledgers.states
    cold_state = context.cold_state
    max_length = context.options.max_frame_bytes - 4
    max_entry_id = context.storage.max_entry_id
    admit_hot = conn.authenticated and not conn.parked and context.admission.hot
    lanes = conn.lanes
    unpack, pack_length = _HOT_ADD.unpack_from, _LENGTH.pack
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
            if conn.authenticated and data.startswith(PLAIN_READ_HEAD, pos):
                pos = answer_reads_v2(conn, data, pos)
            else:
                cold_v2(conn, data[pos + 4 : after])
                conn.took_cold()
                pos = after
            if conn.stalled or conn.closed:
                return pos
            admit_hot = conn.authenticated and not conn.parked and context.admission.hot
        return _ingest_tail(conn, data, pos, end)
    finally:
        if run_count:
            context.account(last_state.ledger_id, run_bytes, run_count)
        context.submit_lanes(conn)


def _ingest_tail(conn: Connection, data: bytes, pos: int, end: int) -> int:
    """The frames that are shorter than a hot add at the end of the buffer, and the check of the next length."""
    while end - pos >= 4 and not conn.stalled and not conn.closed:
        length = _LENGTH.unpack_from(data, pos)[0]
        conn.check_length(length, data, pos)
        after = pos + 4 + length
        if after > end:
            break
        if conn.authenticated and data.startswith(PLAIN_READ_HEAD, pos):
            pos = answer_reads_v2(conn, data, pos)
        else:
            cold_v2(conn, data[pos + 4 : after])
            conn.took_cold()
            pos = after
    return pos
