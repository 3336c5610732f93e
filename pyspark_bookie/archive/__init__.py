"""Ledgers as Parquet files that any engine can read: `offload` writes them, `restore` and the source read them.

What the metadata service stores about them is described in `bookie_protocol.archive`.

checksum.py   what is counted of the entries of a ledger, on either side
files.py      a file system by its URI, and a folder in it
manifest.py   names of files and folders; what is known of an archived ledger
writing.py    entries in, Parquet files out
reading.py    Parquet files in, verified entries out: whole ledgers, or entries from one to another
"""
