"""`bookie ledger`: create, write, read, tail, list, info, recover, delete.

commands.py   the command line; loads nothing heavy
entries.py    bytes in, entries out, and back; following a ledger that is written
showing.py    metadata for people and programs
"""
