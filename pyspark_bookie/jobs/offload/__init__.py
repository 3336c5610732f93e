"""`offload`: closed ledgers to Parquet, and out of the bookies when the files have proved good.

store.py      records in the metadata service, by compare-and-set
machine.py    what is done between two states
deletion.py   what may leave the bookies, and when; streams lose it first
cleaning.py   what dead attempts have left in the archive
job.py        arguments, which ledgers need work, tasks, result
"""
