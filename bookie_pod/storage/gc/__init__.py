"""Garbage collection: it frees the space of deleted ledgers.

storage.py           what a collection needs of an engine, and of the metadata service
ledger_collector.py  ledgers that no longer exist are deleted here
deleted_ledgers.py   which were, and may still lie in logs
fenced_deleted.py    which were fenced when they were
packed_ids.py        the form of both files
log_usage.py         how much of each entry log still lives
compactor.py         live entries of mostly dead logs are copied, the log goes
schedule.py          which compaction is due, settings
state_file.py        what survives a restart
throttle.py          how fast it may go
collector.py         the thread that does all this

A ledger goes only on the word of the metadata service, asked again before the deletion (`verifyMetadataOnGC`); a log
only when the index and its map agree that nothing in it lives. Compaction copies what the index points to, in the order
copies synced, index durable, old log removed; an interrupted one is finished by the next pass. Damaged logs are
quarantined, never removed. Timers, quarantine and deleted ids survive restarts (`gc-state.json`, `gc-deleted-ledgers`),
and so does for seven days that a deleted ledger was fenced (`gc-fenced-ledgers`, durable before the deletion): its
writer is refused, and a recovery creates it again, fenced. The throttle counts bytes read and written and gives way
while clients wait for the disks. Gauges tell the age of the oldest log, the time since a pass has ended and what failed
in it; `/api/v1/bookie/gc/why` tells why one log is still there.
"""
