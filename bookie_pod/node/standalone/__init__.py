"""Clusters on one machine: `bookie standalone`, `bookie trial`, and what tests start.

cluster        bookies as processes, with an embedded metadata service or a ZooKeeper; who ends is started again
bookie_process one of them, and when clients see it
trial          a file, a bookie that is killed, the file again
"""
