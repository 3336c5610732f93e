"""The parts of `BookieCluster.spec` that go into the bookies' pods.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from bookie_operator.crds.model import Annotations, Freeform, Labels, Model, Words

BOOKIE_RESOURCES: Final[Freeform] = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}


class Probe(Model):
    """Times of a probe; what it asks is fixed."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    """Seconds between two questions."""
    timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 5
    """Seconds that an answer may take."""
    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 3
    """Failures in a row that count."""


class StartupProbe(Probe):
    """The other probes wait until it succeeds. It asks what the liveness probe asks, which the process answers from its
    first second on, also during a long replay or while it rebuilds an index: neither ends it. A replay that makes no
    progress for half an hour ends the process."""

    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 180
    """Failures in a row after which the bookie is restarted."""


class LivenessProbe(Probe):
    """It asks if the process is alive at all; neither a full disk nor an absent metadata service makes it fail."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 20
    """Seconds between two questions."""
    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 6
    """Failures in a row after which the bookie is restarted."""


class User(StrEnum):
    IMAGE = "Image"
    NAMESPACE = "Namespace"


class Pod(Model):
    """Parts of the bookies' pods."""

    user: User = User.IMAGE
    """User of all pods of the cluster and of its jobs. `Image`: user and group 10001, of the image. `Namespace`: no ids
    are asked for, and the namespace gives them, as on OpenShift. Volumes keep their owner when it changes."""

    resources: Freeform = BOOKIE_RESOURCES
    """Requests and limits of the bookie's container, which its caches follow. Give more where data count. `{}`: none,
    and a node that runs short of memory ends the bookies first."""
    node_selector: Labels = {}
    """Labels that nodes of bookies bear."""
    tolerations: Annotated[list[Freeform], Field(max_length=32)] = []
    """Tolerations, as in a PodSpec."""
    affinity: Freeform = {}
    """Affinity, as in a PodSpec; added to the anti-affinity by node of `placement.nodes`, which stays."""
    topology_spread_constraints: Annotated[list[Freeform], Field(max_length=16)] = []
    """Topology spread constraints, as in a PodSpec; one without `labelSelector` is about the bookies of the cluster.
    The operator's own, over `placement.zoneTopologyKey` where `placement.zones` is empty, gives way to one of the same
    key."""
    priority_class_name: Words = ""
    """Priority class, as in a PodSpec."""
    labels: Labels = {}
    """Additional labels of all pods of the cluster."""
    annotations: Annotations = {}
    """Additional annotations of all pods of the cluster, such as those that keep sidecars out."""
    env: Annotated[list[Freeform], Field(max_length=64)] = []
    """Additional environment variables of the bookie's container."""
    extra_volumes: Annotated[list[Freeform], Field(max_length=32)] = []
    """Additional volumes, as in a PodSpec."""
    extra_volume_mounts: Annotated[list[Freeform], Field(max_length=32)] = []
    """Mounts of these volumes in the bookie's container."""
    init_containers: Annotated[list[Freeform], Field(max_length=8)] = []
    """Containers that run before the bookie starts, as in a PodSpec, in this order; one with `restartPolicy: Always`
    goes on beside it."""
    sidecars: Annotated[list[Freeform], Field(max_length=8)] = []
    """Additional containers, as in a PodSpec."""
    service_account_name: Words = ""
    """Service account; if unset, the operator makes one without rights."""
    termination_grace_period_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    """Seconds for a bookie to become read-only, flush and deregister."""
    startup_probe: StartupProbe = StartupProbe()
    readiness_probe: Probe = Probe()
    """Probe that asks if the bookie serves: writable or read-only."""
    liveness_probe: LivenessProbe = LivenessProbe()
