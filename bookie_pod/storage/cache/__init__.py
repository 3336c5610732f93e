"""Memory between the wire and the disks: the write cache's halves, and the cache of entries read from
disk.

One half is `ledgers: dict[ledger id, dict[entry id, entry bytes]]` with `nbytes` and `count`. Only the event loop
puts; a frozen half is immutable but for deletion marks. Entries are immutable `bytes`, so any thread may read.
"""
