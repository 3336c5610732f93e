"""Memory between the wire and the disks: the write cache's halves, and the cache of entries read from
disk."""
