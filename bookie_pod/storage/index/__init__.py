"""The index of entries and ledgers: two ordered key-value stores per ledger directory.

`LocationIndex` and `LedgerIndex` over a small ordered key-value seam (`OrderedStore`: RocksDB, or memory for the crash
ring). A batch is atomic; an index write is durable when it returns. The RocksDB binding holds the interpreter lock in
`write`, in a `get` of one key and in `seek`, and frees it in a `get` of a list, in `flush` and in `flush_wal`: so
look-ups are lists of one, a `write` goes to memory only (`manual_wal_flush`; memory tables are changed before they are
full), and `flush_wal` and `flush` wait for the disk. (What remains: a disk that holds up a read of the last entry's
row, or of a scan, holds up the process.) Compaction reports its copies to the index with `LocationIndex.move`, which
spares rows that changed meanwhile.

A checkpoint seals both databases (`seal`): a numbered row behind all others, and the number in `index-seal` beside the
entry logs. A database that comes back without its seal has lost its end, which RocksDB takes for the torn end of a
crash, or is an older copy; one whose tables are not all there has lost an end of its manifest (`rocksdb_store`): the
start is refused, and rebuilding is the remedy. The reference opens it and denies the entries. Of index files (Sorted,
Interleaved) it writes down the lengths, and which slots hold locations, in `index-files-seal` (`ledger_cache.seal`): a
ledger whose file is shorter at the next start, or not there, is in limbo until it is healed, and an entry whose slot
was emptied (zeroed, say) is not denied until it is put again: the reader gets an error for damage, and compaction and
the scrubber restore the rows. Both files also tell of what it is proved that no row is missing, and for as long as it
is (`is_complete`): only a rebuild asks for that, which takes what a complete index does not name for the remains of a
power cut. That a seal is there proves nothing of the kind: an index that lacks rows is sealed as any other.
"""
