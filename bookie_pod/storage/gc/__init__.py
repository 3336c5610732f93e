"""Garbage collection: space of deleted ledgers comes back.

storage.py           what a collection needs of an engine
metadata.py          what it needs of the metadata service, blocking
ledger_collector.py  ledgers that no longer exist are deleted here
deleted_ledgers.py   which were, and may still lie in logs
fenced_deleted.py    which were fenced when they were
rows_file.py         the form of both files
log_usage.py         how much of each entry log still lives
compactor.py         live entries of mostly dead logs are copied, the log goes
schedule.py          which compaction is due          state_file.py    what survives a restart
throttle.py          how fast it may go               collector.py     the thread that does all this
"""
