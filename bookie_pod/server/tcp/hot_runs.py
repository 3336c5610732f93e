"""A run of hot adds goes where single ones go: into the ledger's entries, its journal's lane and the answers.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_pod.ledgers.lanes import WriteLane
from bookie_pod.ledgers.state import LedgerState
from bookie_protocol.wire.add_runs import AddRun


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
