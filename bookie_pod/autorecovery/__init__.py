"""Auto-recovery: finding lost copies and restoring them. It runs inside a bookie or as a process of its own.

    auditor/        finds what is lost and marks it; one in a cluster, elected
    worker/         restores what is marked; any number
    decommission/   empties a bookie and proves it
    daemon.py       auditor and worker together

Everything here is a client of the cluster: it knows the metadata service and `bookie_client`, and nothing of the bookie
that it may share a process with.
"""
