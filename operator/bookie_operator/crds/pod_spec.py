"""The parts of `BookieCluster.spec` that go into the bookies' pods.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from bookie_operator.crds.model import Annotations, Freeform, Labels, Model, Words


class Probe(Model):
    """Times of a probe; what it asks is fixed."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    """Between two questions."""
    timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 5
    """How long an answer may take."""
    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 3
    """Failures in a row that count."""


class StartupProbe(Probe):
    """Until it succeeds the other probes wait. It asks what the liveness probe asks, which the process answers from its
    first second on, also during a long replay or while it rebuilds an index: neither ends it. A replay that makes no
    progress for half an hour ends the process."""

    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 180
    """Failures in a row after which the bookie is restarted."""


class LivenessProbe(Probe):
    """Whether the process is alive at all; neither a full disk nor an absent metadata service makes it fail."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 20
    """Between two questions."""
    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 6
    """Failures in a row after which the bookie is restarted."""


class User(StrEnum):
    IMAGE = "Image"
    NAMESPACE = "Namespace"


class Pod(Model):
    """Parts of the bookies' pods."""

    user: User = User.IMAGE
    """As whom all pods of the cluster and of its jobs run. `Image`: user and group 10001, of the image. `Namespace`: no
    ids are asked for, and the namespace gives them, as on OpenShift. Volumes keep their owner when it changes."""

    resources: Freeform = {}
    """Requests and limits of the bookie's container."""
    node_selector: Labels = {}
    """Labels that nodes of bookies bear."""
    tolerations: Annotated[list[Freeform], Field(max_length=32)] = []
    """As in a PodSpec."""
    affinity: Freeform = {}
    """As in a PodSpec; added to the anti-affinity by node of `placement.nodes`, which stays."""
    topology_spread_constraints: Annotated[list[Freeform], Field(max_length=16)] = []
    """As in a PodSpec; one without `labelSelector` is about the bookies of the cluster. The operator's own, over
    `placement.zoneTopologyKey` where `placement.zones` is empty, gives way to one of the same key."""
    priority_class_name: Words = ""
    """As in a PodSpec."""
    labels: Labels = {}
    """More labels of all pods of the cluster."""
    annotations: Annotations = {}
    """More annotations of all pods of the cluster, such as those that keep sidecars out."""
    env: Annotated[list[Freeform], Field(max_length=64)] = []
    """More environment variables of the bookie's container."""
    extra_volumes: Annotated[list[Freeform], Field(max_length=32)] = []
    """More volumes, as in a PodSpec."""
    extra_volume_mounts: Annotated[list[Freeform], Field(max_length=32)] = []
    """Where the bookie's container mounts them."""
    init_containers: Annotated[list[Freeform], Field(max_length=8)] = []
    """Containers that run before the bookie starts, as in a PodSpec, in this order; one with `restartPolicy: Always`
    goes on beside it."""
    sidecars: Annotated[list[Freeform], Field(max_length=8)] = []
    """More containers, as in a PodSpec."""
    service_account_name: Words = ""
    """Without: one of the operator's making that may do nothing."""
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    """For a bookie to become read-only, flush and deregister."""
    startup_probe: StartupProbe = StartupProbe()
    readiness_probe: Probe = Probe()
    """Whether it serves: writable or read-only."""
    liveness_probe: LivenessProbe = LivenessProbe()
