"""A run of hot adds goes where single ones go: into the ledger's entries, its journal's lane and the answers.

A client in the bookie's own process hands over whole runs (`take_handed_adds`), under the same conditions and with the
same outcome as a run in one chunk of bytes has in `ingest_v3`. Everything else is not for it: then the connection
takes the frames, like those of any client.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookie_pod.ledgers.operations import WriteLane
from bookie_pod.ledgers.state import LAC_UNKNOWN, LedgerState
from bookie_protocol.wire.add_frames import added_answers
from bookie_protocol.wire.add_runs import AddRun
from bookie_protocol.wire.framing import LENGTH

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection
    from bookie_protocol.wire.add_frames import AddFrames


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


def take_handed_adds(conn: Connection, adds: AddFrames) -> bool:
    """Whether they were taken. False, and nothing was done: somebody has to look at their frames."""
    common = adds.common
    context = conn.context
    if common is None or adds.longest > context.options.max_frame_bytes:
        return False
    if conn.has_unread_bytes or conn.stalled or conn.speaks_v2:
        return False
    if not conn.authenticated or conn.parked or not context.admission.hot:
        return False
    state = context.operations.ledgers.states.get(common.ledger_id, context.cold_state)
    if state.hot_key != common.master_key:
        return False
    entries = adds.entries(common)
    if common.first_entry_id + len(entries) - 1 > context.storage.max_entry_id:
        return False
    sizes = [len(entry) for entry in entries]
    words = {size: LENGTH.pack(size) for size in set(sizes)}
    ids = range(common.first_entry_id, common.first_entry_id + len(entries))
    lac = common.lac if common.lac < ids[-1] else LAC_UNKNOWN
    answers = added_answers(common.ledger_id, common.txns, common.entry_ids)
    admit_run(AddRun(ids, entries, lac, answers), [words[size] for size in sizes], state, conn.lanes[state.journal])
    context.account(common.ledger_id, sum(sizes), len(entries))
    context.submit_lanes(conn)
    return True
