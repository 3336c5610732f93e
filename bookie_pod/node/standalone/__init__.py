"""Clusters on one machine: `bookie standalone`, `bookie trial`, and what tests start.

cluster        bookies as processes, with an embedded metadata service or a ZooKeeper
bookie_process one of them, and when clients see it
supervision    bookies that end are started again         trial         a file, a bookie that is killed, the file again
"""
