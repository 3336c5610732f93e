"""Storage: journal, caches, entry logs, index, engines, checkpoints. It knows no server and no client.

A full disk keeps no bookie down. A database is opened by writing, so each ledger and index folder has a `start-reserve`
(`storage.disks`: a sixty-fourth of the disk, at most 32 MiB) while there is room. A start that finds less than that
gives it up. What the replay cannot flush waits in memory, as much as the write cache takes, and the bookie is read-only
until it is flushed; the marks stay. A collection removes logs in which nothing lives although it cannot flush, and with
the room that it makes the bookie becomes writable, and holds its reserve again.

An `OSError` is judged in one place, `files.storage_fault`: what the machine lacks (descriptors, memory, room) is a
`ResourcesShort`, and neither absence nor damage. Code that writes index rows for the contents of an entry log first
checks whether the log is older than the ledger (`LedgerRecord.first_log`), since the id may have belonged to an earlier
one.
"""
