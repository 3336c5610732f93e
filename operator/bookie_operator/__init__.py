"""The Kubernetes operator: BookieClusters that are made, grown, rolled, repaired and taken apart without losing a copy.

main, plugin      commands
handlers          what is watched (kopf)
reconcile         one pass: look, decide, do at most one thing, tell
observe           what is, as a snapshot
executor          what is done, one function for each action
status            what is reported: conditions, events
api               Kubernetes' API server, and the admin API of the cluster's pods
planner           what next: pure
builders          objects of a cluster: pure
world, crds       the snapshot; the custom resources
"""

from bookie_protocol.starting import run_with


def command() -> None:
    """`bookie-operator`, as it is installed."""
    run_with("operator", "bookie_operator.main")
