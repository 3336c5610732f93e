"""Jobs over many ledgers: `python -m pyspark_bookie.jobs NAME`, `bookie job NAME`, or a BookieJob on Kubernetes.

framework/   what jobs share: arguments, registry, context, tasks, progress, result row, exit codes
NAME/job.py  one job each; nothing heavy is imported before it runs
"""
