"""What the metadata service tells of ledgers in an archive, which `bookie job offload` writes.

model.py    what is known of an archived ledger and its files
record.py   how far a ledger is on its way into the archive: the record in the metadata service, and whether it is there
"""
