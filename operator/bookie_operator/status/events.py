"""Events of a cluster, for `kubectl describe` and `kubectl get events`.

Invariants
- Reasons are stable; what repeats (same reason and message) is one event whose series grows, at most once in
  `REPEAT_S`: a loop uses up no event quota.
- An event that cannot be written is logged, and stops nothing.

Threads: one event loop.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_operator.api.errors import Absent, KubernetesError
from bookie_operator.api.kinds import CLUSTER, EVENT, Resource
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.planner.decision import Event
from bookie_operator.planner.operations import written
from bookie_operator.world.model import ClusterView

_log = structlog.get_logger(__name__)
REPEAT_S: Final = 300.0
_MAX_KEPT: Final = 4096
_MAX_NOTE: Final = 1024
"""Bytes, as Kubernetes counts them."""
CONTROLLER: Final = "podkeeper.dev/operator"


@dataclass
class _Series:
    name: str
    count: int
    written_at: float


class Events:
    """The events of all clusters of this process. `instance`: name of this process."""

    def __init__(self, kubernetes: Kubernetes, instance: str, *, now: Callable[[], float] = time.time) -> None:
        self._kubernetes = kubernetes
        self._instance = instance
        self._now = now
        self._series: OrderedDict[str, _Series] = OrderedDict()
        """Series by what is the same; see `_digest`."""

    async def publish(self, cluster: ClusterView, event: Event, action: str = "Reconcile") -> None:
        """`action`: in camel case, what was being done."""
        await self.publish_about(
            {"name": cluster.name, "namespace": cluster.namespace, "uid": cluster.uid}, event, action
        )

    async def publish_about(
        self, cluster: Mapping[str, str], event: Event, action: str = "Reconcile", *, about: Resource = CLUSTER
    ) -> None:
        """The same, with the metadata of a resource whose spec cannot be read, or of another kind."""
        now = self._now()
        key = _digest(cluster["uid"], event.reason, event.message)
        series = self._series.get(key)
        try:
            if series is None:
                name = self._name(cluster, key, now)
                self._series[key] = _Series(name, 1, now)
                if len(self._series) > _MAX_KEPT:
                    self._series.popitem(last=False)
                await self._create(cluster, event, action, name, now, about)
                return
            series.count += 1
            self._series.move_to_end(key)
            if now - series.written_at < REPEAT_S:
                return
            series.written_at = now
            await self._repeat(cluster, event, action, series, now, about)
        except KubernetesError as exc:
            _log.warning("event could not be written", reason=event.reason, error=str(exc))

    @staticmethod
    def _name(cluster: Mapping[str, str], key: str, now: float) -> str:
        return f"{cluster['name']}.{_digest(key, f'{now:.6f}')[:16]}"

    async def _create(
        self, cluster: Mapping[str, str], event: Event, action: str, name: str, now: float, about: Resource
    ) -> None:
        await self._kubernetes.create(
            {
                "apiVersion": EVENT.api_version,
                "kind": EVENT.kind,
                "metadata": {"name": name, "namespace": cluster["namespace"]},
                "eventTime": written(now),
                "reportingController": CONTROLLER,
                "reportingInstance": self._instance[:128],
                "action": action[:128],
                "reason": event.reason[:128],
                "note": event.message.encode()[:_MAX_NOTE].decode(errors="ignore"),
                "type": event.type.value,
                "regarding": {
                    "apiVersion": about.api_version,
                    "kind": about.kind,
                    "name": cluster["name"],
                    "namespace": cluster["namespace"],
                    "uid": cluster["uid"],
                },
            }
        )

    async def _repeat(
        self, cluster: Mapping[str, str], event: Event, action: str, series: _Series, now: float, about: Resource
    ) -> None:
        patch = {"series": {"count": max(2, series.count), "lastObservedTime": written(now)}}
        try:
            await self._kubernetes.merge(EVENT, cluster["namespace"], series.name, patch)
        except Absent:  # events go after an hour
            await self._create(cluster, event, action, series.name, now, about)


def _digest(*words: str) -> str:
    """A digest of words as long as they may be."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
