"""Healing a ledger: what workers, the auditor's withdrawals and the Spark job have in common.

rule.py    which copies want work, given why a ledger is marked, and when its mark may go
guard.py   the lock, the end of the session, the mark, and giving the lock back

How copies are looked at and made is `bookie_client.replication`. Callers choose which ledgers are healed, and which may
be fenced for it.
"""
