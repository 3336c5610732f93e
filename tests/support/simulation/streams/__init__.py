"""Streams of ledgers in the virtual cluster: writers that take over from each other, publishers, consumers with
cursors, retention, deletion under a name that is used again, offload, restore and the search for orphans, all at once.

What runs is the product's own code; what it is judged by is in `judge`.
"""
