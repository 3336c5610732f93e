"""Storage engines: caches, entry logs and indexes composed into one `LedgerStorage`."""
