"""`bookie ledger`: create, write, read, tail, list, info, recover, delete.

commands.py   the command line; loads nothing heavy
writing.py    bytes in, entries out
reading.py    entries in, bytes out; following a ledger that is written
showing.py    metadata for people and programs
"""
