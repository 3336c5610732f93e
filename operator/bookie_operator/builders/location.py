"""The way in which a bookie learns the zone of its node, where `spec.placement.zones` does not say it.

The operator writes the zone into an annotation of the pod once the pod has a node. A variable of the bookie's container
takes it from there, and an init container waits for it: the variable is read when the container starts. The init
container waits for a bounded time, because bookies start without an operator too; such a bookie tells no zone until its
next start.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any, Final

from bookie_operator.builders.common import OWN_VOLUME, READ_ONLY_CONTAINER
from bookie_operator.builders.container import image
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.zones import ZoneShare
from bookie_operator.crds import names
from bookie_operator.world.model import ClusterView

VARIABLE: Final = "BK_networkLocation"
NAME: Final = "network-location"
_VOLUME: Final = f"{OWN_VOLUME}pod"
_DIRECTORY: Final = "/etc/podkeeper/pod"
_ANNOTATIONS: Final = "annotations"
ANNOTATIONS: Final = f"{_DIRECTORY}/{_ANNOTATIONS}"
"""File with the annotations of the pod, where `volume` is mounted."""
_SECONDS: Final = 60
_WAIT: Final = f"""\
for second in $(seq {_SECONDS}); do
  if grep -q '^{names.NETWORK_LOCATION}=' {ANNOTATIONS}; then exit 0; fi
  sleep 1
done
echo 'the operator did not tell the zone of this node within {_SECONDS} s: the bookie starts without a zone'
"""


def is_learnt(cluster: ClusterView, context: BuildContext, share: ZoneShare) -> bool:
    """Return whether the pods learn their zone so: not if `spec` says it, nor if the operator may not read nodes."""
    given = any(each.get("name") == VARIABLE for each in cluster.spec.pod.env)
    return context.reads_nodes and not share.zone and not given


def init_container(cluster: ClusterView, context: BuildContext) -> dict[str, Any]:
    """Return the init container, with the resources of the bookie, which starts afterwards: the pod asks for no more by
    that."""
    made: dict[str, Any] = {
        "name": NAME,
        "image": image(cluster, context),
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": ["/bin/sh", "-ec", _WAIT],
        "securityContext": dict(READ_ONLY_CONTAINER),
        "volumeMounts": [mount()],
    }
    if cluster.spec.pod.resources:
        made["resources"] = dict(cluster.spec.pod.resources)
    return made


def mount() -> dict[str, Any]:
    return {"name": _VOLUME, "mountPath": _DIRECTORY, "readOnly": True}


def volume() -> dict[str, Any]:
    """The pod's annotations as a file, which the kubelet keeps up to date."""
    item = {"path": _ANNOTATIONS, "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations"}}
    return {"name": _VOLUME, "downwardAPI": {"items": [item]}}
