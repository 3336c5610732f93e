"""Rebuilding the databases of DbLedgerStorage while the bookie serves.

New databases are built beside those in use, which stay untouched until both are closed and swapped; a look-up waits
for that and is made again. Rows that their log confirms are kept, others are taken from the newest copy; rows that no
log confirms are kept too, so that what is lost is never denied. Records in memory are the ledger index: they are kept
as they are, and ledgers that left something here, which the metadata service places here, come back fenced. What a
crash interrupts is the old index, or a swap that the next start finishes.
"""
