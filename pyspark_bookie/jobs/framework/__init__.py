"""The common part of all jobs.

arguments.py   typed arguments from dataclasses, and those that every job has; sizes, durations, ledger ids
ledgers.py     the arguments that select ledgers; their metadata; bundles of small ones
records.py     what jobs keep in the metadata service
registry.py    jobs by name, found in the modules beside this package
result.py      the result row, exit codes, findings of jobs that move ledgers
tasks.py       pieces of work on Spark: bounded, throttled, each with its own outcome
owners.py      whose a ledger is, and whether its owner still lists it
context.py     what a job is given; the SparkSession; what is shown while a job runs
command.py     the command line, what happens around a job, and findings as Parquet
"""
