"""The parts of `BookieCluster.spec` that are Deployments beside the bookies.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bookie_operator.crds.model import Freeform, Model


class Autorecovery(Model):
    """Auditor and replication workers, in a Deployment of their own."""

    enabled: bool = True
    """Without it nobody restores lost copies, and no bookie can be taken out."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Pods; one of them is the auditor at a time."""
    resources: Freeform = {}
    """Requests and limits of their container."""
    lost_bookie_recovery_delay_seconds: Annotated[int, Field(ge=0, le=604800)] = 300
    """How long a bookie may be away before its copies are made anew elsewhere."""
    max_concurrent_ledgers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ledgers that each pod checks and copies at the same time, instead of the key `replicationLedgersAtOnce` of
    `config`; without: 8."""


class Gateway(Model):
    """Gateways in a Deployment of their own, which serve ledgers over gRPC at the Service `CLUSTER-gateway`, port 3182.
    Every bookie serves them too, in its own process."""

    enabled: bool = False
    """For many entries a second: a process that it shares with no bookie does more of them."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Pods."""
    resources: Freeform = {}
    """Requests and limits of their container."""
