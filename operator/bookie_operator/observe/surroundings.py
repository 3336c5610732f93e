"""Nodes and storage classes: the same for all clusters, so they are read once for all of them, now and then.

Of a node only what decisions are made by is kept: its name and labels, whether it takes pods, its taints, and whether
it is ready. Hundreds of them as they are would be most of the operator's memory.

Invariants
- Nothing older than was asked for is handed out.
- What may not be read is None.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import NODE, STORAGE_CLASS, KubernetesObject, Resource
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.observe.times import condition

AT_REST_S: Final = 20.0
"""Age in seconds that they may have while every bookie serves."""
IN_TROUBLE_S: Final = 1.0
_PAGE: Final = 50
"""Nodes of one answer, each of which takes some 10 KB."""


class Surroundings:
    def __init__(self, kubernetes: Kubernetes, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._kubernetes = kubernetes
        self._monotonic = monotonic
        self._locks = {NODE: asyncio.Lock(), STORAGE_CLASS: asyncio.Lock()}
        self._read: dict[Resource, tuple[float, list[KubernetesObject] | None]] = {}

    async def nodes(self, at_most_s: float) -> list[KubernetesObject] | None:
        """The nodes as they were so many seconds ago at most. Raises the errors of `api.errors`."""
        return await self._of(NODE, at_most_s, _node)

    async def storage_classes(self) -> list[KubernetesObject] | None:
        """The classes as they are now: they are few, and whether volumes may grow is decided by them."""
        return await self._of(STORAGE_CLASS, 0.0, lambda obj: obj)

    async def _of(
        self, resource: Resource, at_most_s: float, kept: Callable[[KubernetesObject], KubernetesObject]
    ) -> list[KubernetesObject] | None:
        asked = self._monotonic()
        async with self._locks[resource]:
            read = self._read.get(resource)
            if read is None or read[0] < asked - at_most_s:
                begun = self._monotonic()
                try:
                    found = await self._kubernetes.list(resource, page=_PAGE, kept=kept)
                except Forbidden:
                    read = (begun, None)
                else:
                    read = (begun, found)
                self._read[resource] = read
            return read[1]


def _node(obj: KubernetesObject) -> KubernetesObject:
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    ready: Any = condition(obj, "Ready")
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {"conditions": [{"type": "Ready", "status": ready.get("status", "")}]},
    }
