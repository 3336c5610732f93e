"""The replicas behind a handle, for audits, scrubbing, re-replication and readers that want one bookie's copies.

    async with client.open(ledger_id, password=b"secret") as ledger:
        async for answer in replicas(ledger).scan("bookie-0:3181", 0, ledger.last_add_confirmed):
            if answer.error is not None:
                print(answer.entry_id, answer.error)

Event loop only.
"""

from __future__ import annotations

from bookie_client.reading.handle import LedgerReader
from bookie_client.reading.origins import Origin, Origins
from bookie_client.reading.replica_read import ReplicaAnswer, ReplicaReader

__all__ = ["Origin", "Origins", "ReplicaAnswer", "ReplicaReader", "origins_of", "replicas"]


def replicas(ledger: LedgerReader) -> ReplicaReader:
    """Reads of one named bookie each, without fall-over: `read`, `read_all` (every bookie of an entry's write set),
    `scan` (all that a bookie should hold of a range), `held_by` (which ids that are)."""
    return ledger._reader.replicas


def origins_of(ledger: LedgerReader) -> Origins:
    """Have it noted from now on which bookie serves each entry of this handle (`origins`)."""
    return ledger._reader.note_origins()
