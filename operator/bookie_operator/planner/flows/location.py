"""Tells each pod that waits for it the zone of its node (`builders.location`).

Invariants
- A node that was not read tells nothing; the pod goes on waiting.
- Where Kubernetes refuses it, as by a Role of an earlier release, everything else goes on.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from typing import Final

from bookie_operator.crds import names
from bookie_operator.planner.actions import TellPod
from bookie_operator.planner.decision import Act
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World

_NO_NAME: Final = re.compile(r"[/\s]")
"""Characters that no part of a location may have; labels of nodes have none of them."""


def begin(world: World, desired: Desired) -> Act | None:
    for pod in world.pods:
        node = (world.nodes or {}).get(pod.node)
        if pod.awaits_location and not pod.deleting and node is not None:
            zone = _NO_NAME.sub("-", node.zone)
            told = TellPod(pod.name, pod.uid, names.NETWORK_LOCATION, f"/{zone}" if zone else "")
            if any(one.action == told for one in world.refused_actions):
                continue
            return Act(told, f"{pod.name} runs on node {node.name} in {f'zone {zone}' if zone else 'no zone'}")
    return None
