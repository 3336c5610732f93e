"""Ledgers as single files, to be carried away and brought back: what `export` writes and `import` reads.

format.py   the bytes of a dump
files.py    dumps in a folder: written whole or not at all, found, read
"""
