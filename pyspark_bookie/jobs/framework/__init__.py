"""What all jobs share.

arguments.py   typed arguments from dataclasses; sizes, durations, lists of ledgers
common.py      the arguments that every job has
registry.py    jobs by name, found in the packages beside this one
result.py      the result row, findings, exit codes
progress.py    what is shown while a job runs
tasks.py       pieces of work on Spark: bounded, throttled, each with its own outcome
context.py     what a job is given
session.py     the SparkSession
reports.py     findings as Parquet
command.py     the command line, and what happens around a job
"""
