"""What people can do about a pod that does not become ready.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.world.model import PodFault, PodView, World

REASONS: Final = {
    PodFault.IMAGE: "ImagePullFailed",
    PodFault.CONFIG: "PodCannotStart",
    PodFault.CRASHING: "BookieCrashing",
    PodFault.UNSCHEDULABLE: "Unschedulable",
    PodFault.VOLUME: "VolumeMissing",
    PodFault.COOKIE: "CookieMismatch",
}
"""Reasons of conditions."""

_REMEDIES: Final = {
    PodFault.IMAGE: "its image cannot be pulled ({}): see that spec.version or spec.image names one that exists, and"
    " that spec.imagePullSecrets may read it",
    PodFault.CONFIG: "it cannot be started ({}): create what is missing, or change spec so that it is not referred to",
    PodFault.CRASHING: "it ends again and again ({0}): see `kubectl logs {1} --previous`",
    PodFault.UNSCHEDULABLE: "no node takes it ({}): each bookie needs a node of its own that fits spec.pod, and its"
    " volumes may bind it to one. Uncordon that, or make room on it; or add a node, or lower spec.replicas",
    PodFault.VOLUME: "a volume of it is missing, or its node is gone ({0}): bring it back, or replace the bookie with a"
    " BookieTask of type Replace that names {1}",
    PodFault.COOKIE: "it refuses its directories, which are not those of its cookie ({0}): bring its volumes back, or"
    " replace the bookie with a BookieTask of type Replace that names {1}; never delete a cookie by hand",
}


def remedy(pod: PodView) -> str:
    """What is wrong with it, and what to do; empty: nothing shows."""
    text = _REMEDIES.get(pod.fault, "")
    return text.format(pod.fault_message or pod.fault.value, pod.name)


def stuck_on_node(world: World, pod: PodView | None) -> str:
    """What to say of a pod that is being stopped on a node that does not answer; empty: nothing."""
    node = (world.nodes or {}).get(pod.node) if pod is not None and pod.deleting else None
    if pod is None or node is None or node.ready or node.out_of_service:
        return ""
    return (
        f"; node {node.name} does not answer, so nobody knows whether {pod.name} still runs there: if the node is off"
        f" for good delete it, or run `kubectl taint node {node.name}"
        " node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
    )
