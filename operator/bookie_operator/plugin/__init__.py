"""`kubectl bookie`: clusters of bookies for people at a terminal, through Kubernetes' API server alone."""

from bookie_protocol.starting import run_with


def command() -> None:
    """`kubectl-bookie`, as it is installed."""
    run_with("kubectl", "bookie_operator.plugin.main")
