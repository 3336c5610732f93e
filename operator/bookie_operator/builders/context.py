"""Facts for the builders beside the cluster itself: the operator's settings, and what this Kubernetes has.

Of it only the repository of the image, and whether nodes are read, reach the template of a pod. The version of the
operator is not in it: another operator alone restarts no bookie.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CERT_MANAGER: Final = "cert-manager.io"
PROMETHEUS_OPERATOR: Final = "monitoring.coreos.com"
VOLUME_ATTRIBUTES: Final = "storage.k8s.io/VolumeAttributesClass"


@dataclass(frozen=True)
class BuildContext:
    image_repository: str = "podkeeper"
    """Image of the bookies without its tag; it may begin with a registry."""
    api_groups: frozenset[str] = frozenset()
    """API groups that this Kubernetes serves; and kinds of those that may be there in part, as `GROUP/Kind`."""
    operator_namespace: str = ""
    """Whose pods may use the admin API; empty: pods of any namespace that are labelled as this operator."""
    reads_nodes: bool = True
    """The operator may read nodes, and tells each bookie the zone of its node."""
    own_image: str = ""
    """Image of the operator; empty: not known."""
    release: str = ""
    """Release of the operator."""

    @property
    def has_cert_manager(self) -> bool:
        return CERT_MANAGER in self.api_groups

    @property
    def has_pod_monitors(self) -> bool:
        return PROMETHEUS_OPERATOR in self.api_groups

    @property
    def has_prometheus_rules(self) -> bool:
        return f"{PROMETHEUS_OPERATOR}/PrometheusRule" in self.api_groups

    @property
    def has_volume_attributes(self) -> bool:
        return VOLUME_ATTRIBUTES in self.api_groups
