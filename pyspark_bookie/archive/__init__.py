"""Ledgers as Parquet files that any engine can read: what `offload` writes, and `restore` and the
source read. What the metadata service tells of them is `bookie_protocol.archive`'s.

checksum.py   what is counted of the entries of a ledger, on either side
files.py      a file system by its URI, and a folder in it
manifest.py   names of files and folders; what is told of an archived ledger
writing.py    entries in, Parquet files out
reading.py    Parquet files in, verified entries out: whole ledgers, or entries from one to another
"""
