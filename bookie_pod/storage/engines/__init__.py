"""Storage engines: caches, entry logs and indexes composed into one `LedgerStorage`.

`open_storage(BookieConfig, StorageParts)` looks at what is on the disks before it opens anything, and refuses a disk
of another engine or one whose index is gone. Each directory has its own storage thread; a full half is flushed by it
without moving a mark, `SyncThread` (`storage.checkpoint`) flushes all of them and then moves the marks. Only the flush
calls `EntryLogger.abandon_unsynced`, because only it still has the entries.

`SortedLedgerStorage` and `InterleavedLedgerStorage` are one storage over all directories: an `EntryMemTable` (active
and frozen map), one entry logger, and a `LedgerCache` (`storage.index.ledger_cache`: index pages in memory, one `.idx`
file per ledger). Sorted drains a full map in order, Interleaved drains all the time; both on `storage-0`. A drain makes
nothing durable. Checkpoints are asked for when a log was rotated, with the marks of the moment when its last map was
frozen: index pages and headers first, then rotated logs (`flush`: the current one too). Slots that replace others wait
for a sync of the logs. A map is gone after its drain, so after a failed sync of a log only a replay helps:
`StorageFailed`, the bookie stops. A failed background flush is reported as `NoWritableDirectory`: the bookie turns
read-only and retries the flush. Compaction uses `LedgerCache.move(ledger, entry, old, new)`, then `flush`.

With `isolateFailedLedgerDirectories` the disk monitor hands a failed ledger directory, or one whose flushes failed ten
times in a row, to `LedgerStorage.fail_directory`. With DbLedgerStorage adds to its ledgers and reads that memory does
not answer are faults; the other engines begin new logs in the others, and copy there the index files that are written
next. Flushes fail, and so no mark moves until the restart, which begins with the old index files and replays the rest.
"""
