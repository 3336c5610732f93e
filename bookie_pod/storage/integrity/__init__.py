"""Checks of what is stored against itself: the scrubber and its register, the consistency check, repair of indexes.

One `scrubber` thread: entry logs (framing, ledgers map, digests that need no password), then every index row, then old
journals; position and damages in `scrub-state.json` of each directory. A damaged entry is answered as an I/O error, its
log is kept from collection, and with `localScrubRepair` a sound copy is fetched from another bookie; the damaged copy
stays refused while its log exists, because read-ahead would meet it. An entry in a log without an index row gets its
row back, which leads to its best copy (`LostRows`).

What a reader gets out of an entry log, read-ahead included, has its CRC32C checked first (`ReadCheck`; 0.7 to 1 us of
CPU for 1 KB, nothing for what memory holds). Only if that is wrong the metadata service is asked which type the ledger
has: CRC32 is checked too; MAC (needs the password) and DUMMY are not, nor anything while the service does not answer
within a second. Damage goes the same way as the scrubber's, without waiting for a pass: registered, refused, fetched
again; that of deleted ledgers is forgotten, and what stays damaged is tried again every ten minutes.

`/api/v1/bookie/scrub` and `bookie scrub` show and start passes, and list damages. `LedgerScrub` and `JournalScrub` are
the parts; `LogCheck`, `IndexCheck` and `entry_check` what they check.
"""
