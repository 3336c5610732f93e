"""What audit, scrub, replication-check and recover share: looking at the replicas of ledgers, and what is said of them.

`findings` says what is found, `coverage` and `digests` are its arithmetic, `listing` and `deep` look at one ledger,
`look` looks twice before anybody is accused, `marking` tells auto-recovery, `work` cuts a cluster into tasks.
"""
