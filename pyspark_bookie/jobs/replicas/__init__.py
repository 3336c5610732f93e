"""The common part of audit, scrub, replication-check and recover: the inspection of replicas, and its findings.

findings.py     what is found, and the table of it
coverage.py     pure: what a bookie lists, against what it should hold
deep.py         one replica, read in full, batches of its entries verified as a whole
inspection.py   one ledger at all its bookies: what they list, what can be read, and once more before anybody is
                accused
compare.py      replicas that are undamaged, and yet not the same
placement.py    ensembles, held against a placement policy
absent.py       ledgers that a stream lists and that do not exist
units.py        which ledgers, and in which pieces of work
tasks.py        a piece of work as a task, with marks for auto-recovery, and what all pieces come to
"""
