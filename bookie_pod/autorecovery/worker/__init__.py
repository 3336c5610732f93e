"""The replication worker: restores what auditors marked. Any number may run in a cluster.

worker.py           takes marked ledgers, several at a time, and stops in an orderly way
judgement.py        which findings on a ledger count, given what its mark names
ledger_repair.py    what is done to one ledger
fragment_repair.py  which bookies are filled again, and which are replaced
backoff.py          how long a ledger that failed is left alone
locks.py            locks that are given back whatever happens
progress.py         what people are shown
"""
