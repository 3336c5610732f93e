"""Checking the replicas of a ledger, and restoring them: for auto-recovery, the operator, Spark and tools.

`fragments` says which bookie should hold which entries, `check` which are there, `replicator` makes new copies and
exchanges bookies, `safety` says what would be lost if bookies went now, `replica_listing` what each bookie really
holds.

- Unreachable is not missing. LOST is said of a bookie that is registered nowhere by an uncached look; MISSING is its
  own word; DAMAGED is a digest or an I/O error of one copy; everything else is UNREACHABLE and counts as nothing.
- What lies behind the last add confirmed of an open ledger is in no fragment: it is its writer's. So is the ensemble of
  the last segment (`LedgerNotClosed`); only re-replication changes earlier segments.
- Pieces are read by batch, of striped ledgers with a step; from bookies that know none by one request per entry,
  without a task for each. A piece is one write to each target and one future for its acknowledgements. Copies take a
  bookie's hot path when their ledger is hot there.
- One replicator is one budget: bytes in flight, pieces under way, and a `ReplicationThrottle`, which may be shared
  further. A worker's is a `YieldingThrottle`: its rate falls while stores take longer than usual.
- A bookie with a decommission record is a source and never a target, from a second after its record at the latest.

`python -m benchmarks.replication` moves replicas between bookies and prints MB/s beside the disk's.
"""
