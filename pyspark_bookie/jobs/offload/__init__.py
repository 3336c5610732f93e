"""`offload`: closed ledgers to Parquet, and out of the bookies when the files have proved good.

store.py      records in the metadata service, by compare-and-set
machine.py    what is done between two states
deletion.py   what may leave the bookies, and when
streams.py    taking archived ledgers out of a stream
cleaning.py   what dead attempts have left in the archive
planning.py   which ledgers need work; in bundles
tasks.py      a bundle of ledgers on an executor
job.py        arguments, result
"""
