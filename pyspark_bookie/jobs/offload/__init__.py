"""`offload`: closed ledgers to Parquet, and out of the bookies when the files have proved good.

machine.py    what is done between two states
deletion.py   what may leave the bookies, and when; streams lose it first
cleaning.py   records in the metadata service, by compare-and-set; what dead attempts have left in the archive
job.py        arguments, which ledgers need work, tasks, result
"""
