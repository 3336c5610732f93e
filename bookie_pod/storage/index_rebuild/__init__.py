"""Rebuilds of an index, from the entry logs or from the other kind of index, of a stopped or a serving bookie.

locations, ledgers, index_files   what an index is made of, step by step
convert                           from databases to index files and back
offline, swap                     of a stopped bookie: built, compared, put in its place
rebuilder, online, swap           of a bookie that serves, on request

What has `step` does a bounded amount of work, neither sleeps nor prints, and serves the command line as well as a
background thread. A new index is built beside the old one, compared or salvaged against it, and swapped in: the
renames are written down first (`index-swap.json`), so a crash leaves the old index or a swap that `bookie disk finish`
ends; the engines refuse a folder in between. The old index stays as `<name>.BACKUP-<time>`. A ledger whose record is
lost comes back fenced and in limbo. The command line opens databases through a folder of links, so that reading leaves
no trace. docs/disk-tools.md shows the commands.

Of a bookie that serves: new databases are built beside those in use, which stay untouched until both are closed and
swapped; a look-up waits for that and is made again. Rows that their log confirms are kept, others are taken from the
newest copy; rows that no log confirms are kept too, so that what is lost is never denied. Records in memory are the
ledger index: they are kept as they are, and ledgers that left something here, which the metadata service places here,
come back fenced and in limbo. What a crash interrupts is the old index, or a swap that the next start finishes.
"""
