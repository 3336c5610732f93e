"""The group with all its commands: importing this module adds them."""

from __future__ import annotations

from bookie_pod.cli.cluster import (  # noqa: F401 - they add their commands to `cluster`
    autorecovery,
    cookie,
    decommission,
    health_check,
    metadata,
    placement,
    recover,
    rename_bookie,
    safety,
    view,
)
from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.whoami import whoami

__all__ = ["cluster"]

cluster.add_command(whoami)
