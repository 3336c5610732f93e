"""What is to be done about a BookieJob: beside, and never inside, the one operation at a time of its cluster.

A keeper of its own beside that of clusters: a job is a client of its cluster and holds up none of its operations.
Kubernetes makes the runs of a schedule; the operator makes the CronJob, records what came of each run (exit code, and
the result row in the termination message) by the UID of its Job, and removes a Job only after that stands in the
status. What runs once is made once, also when its Job is gone. Golden files of four BookieJobs: `python -m
tests.support.operator_jobs`. The kinds of jobs are those of `pyspark_bookie.jobs`; a test compares them.
"""
