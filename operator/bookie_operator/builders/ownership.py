"""Whose an object is that bears a name which an object of a cluster has.

Names are made of the cluster's, and others may have had the same thought: the bookies of a Pulsar release `pulsar` have
a Service `pulsar-bookie` too. What is somebody else's is neither changed nor deleted.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.builders.common import KIND, MANAGER
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BootstrapMode
from bookie_operator.world.model import ClusterView

_CERTIFICATE: Final = "cert-manager.io/certificate-name"
"""Annotation of a Secret that cert-manager filled."""


def is_own(obj: Mapping[str, Any], cluster: ClusterView) -> bool:
    """Whether the object is the cluster's, by the UID of its controller. Without one it is the cluster's if it has
    the operator's labels, and is the identity, which outlives its cluster, or a cluster is taken over on request."""
    controller = _controller(obj)
    if controller:
        return bool(controller.get("uid") == cluster.uid)
    labels = obj["metadata"].get("labels") or {}
    made_here = labels.get(names.MANAGED_BY) == MANAGER and labels.get(names.INSTANCE) == cluster.name
    adopting = cluster.spec.bootstrap.mode is BootstrapMode.ADOPT
    return made_here and (adopting or obj["metadata"]["name"] == naming.identity(cluster.name))


def is_outlived(obj: Mapping[str, Any], cluster: ClusterView) -> bool:
    """Whether an earlier cluster of this name owns it, with which Kubernetes takes it away."""
    controller = _controller(obj)
    same = controller.get("kind") == KIND and controller.get("name") == cluster.name
    return same and controller.get("uid") != cluster.uid


def is_issued(secret: Mapping[str, Any]) -> bool:
    """Whether cert-manager filled it for a Certificate of its name."""
    metadata = secret["metadata"]
    return bool((metadata.get("annotations") or {}).get(_CERTIFICATE) == metadata["name"])


def owner_of(obj: Mapping[str, Any]) -> str:
    """The owner in words."""
    controller = _controller(obj)
    if controller:
        return f"it belongs to {controller.get('kind', 'something')} {controller.get('name', '')}"
    manager = (obj["metadata"].get("labels") or {}).get(names.MANAGED_BY, "")
    return f"{manager} manages it" if manager and manager != MANAGER else "it has no owner"


def _controller(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), {})
