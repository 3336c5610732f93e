"""Adds that a client in the bookie's own process hands over: hot ones are taken as they are.

What `ingest_v3` does with a run of hot adds in one chunk of bytes, under the same conditions and with the same
outcome. Everything else it is not for: then the connection takes the frames, like those of any client.

Threads: event loop only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from bookie_pod.ledgers.state import LAC_UNKNOWN
from bookie_pod.server.tcp.hot_runs import admit_run
from bookie_protocol.wire.add_runs import AddRun

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection
    from bookie_protocol.wire.add_frames import AddFrames

_LENGTH = struct.Struct(">I")


def take_handed_adds(conn: Connection, adds: AddFrames) -> bool:
    """Whether they were taken. False, and nothing was done: somebody has to look at their frames."""
    key = adds.key()
    context = conn.context
    if key is None or adds.longest > context.options.max_frame_bytes:
        return False
    if not conn.authenticated or conn.parked or not context.admission.hot:
        return False
    ledger_id, master_key = key
    state = context.operations.ledgers.states.get(ledger_id, context.cold_state)
    if state.hot_key != master_key:
        return False
    plain = adds.plain()
    first, entries = plain.first_entry_id, plain.entries
    sizes = [len(entry) for entry in entries]
    if min(sizes) == max(sizes):
        prefixes = [_LENGTH.pack(sizes[0])] * len(sizes)
    else:
        prefixes = [_LENGTH.pack(size) for size in sizes]
    lac = plain.lac if plain.lac < first + len(entries) - 1 else LAC_UNKNOWN
    run = AddRun(range(first, first + len(entries)), entries, lac, plain.answers)
    admit_run(run, prefixes, state, conn.lanes[state.journal])
    context.account(ledger_id, sum(sizes), len(entries))
    context.submit_lanes(conn)
    return True
