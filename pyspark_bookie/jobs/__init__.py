"""Jobs over many ledgers: `python -m pyspark_bookie.jobs NAME`, `bookie job NAME`, or a BookieJob on Kubernetes.

Each module, and each package that has a module `job`, is a job (`framework.registry`); nothing heavy is imported before
it runs. What they share:

framework/   arguments, registry, context, tasks, progress, result row, exit codes, records; whose a ledger is
replicas/    inspecting the copies of ledgers, for audit, scrub and recover
transfer/    making ledgers of what another place holds, for restore, copy and import
"""
