"""Offline changes of a whole index: built beside the one in use, checked, then put in its place.

What has `step` does a bounded amount of work, neither sleeps nor prints, and serves the command line as well as a
background thread. A new index is built beside the old one, compared or salvaged against it, and swapped in: the
renames are written down first (`index-swap.json`), so a crash leaves the old index or a swap that `bookie disk
finish` ends; the engines refuse a folder in between. The old index stays as `<name>.BACKUP-<time>`. A ledger whose
record is lost comes back fenced. The command line opens databases through a folder of links, so that reading leaves
no trace. docs/disk-tools.md shows the commands.
"""
