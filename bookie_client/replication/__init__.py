"""What the replicas of a ledger are worth, and how to restore them: for auto-recovery, the operator, Spark and tools.

`fragments` says who should hold what, `check` what is there, `replicator` makes new copies and exchanges bookies,
`safety` tells what would be lost if bookies went now, `replica_listing` what each bookie really holds.
"""
