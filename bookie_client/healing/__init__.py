"""Healing a ledger: what workers, the auditor's withdrawals and the Spark job have in common.

rule.py              which copies want work, given why a ledger is marked, and when its mark may go
fragment_repair.py   which bookies of a fragment are filled again, and which are replaced
settling.py          the look that a mark asks for, after which it goes

The lock, the end of the session and giving the lock back are `bookie_protocol.metadata_service.ledger_guard`.

How copies are looked at and made is `bookie_client.replication`. Callers choose which ledgers are healed, and which may
be fenced for it.
"""
