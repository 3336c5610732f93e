"""Why the volumes of a pod are not there, as the events of kubelet and attach controller tell.

Invariants
- Only the volume of a claim can be lost: what a ConfigMap or a Secret lacks is a fault of the configuration.
- What was overcome is not told: the newest event counts, and none that is older than a sign that all is mounted.
- What passes by itself is no fault: caches of a kubelet that fill, a volume that another node does not let go of yet.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bookie_operator.observe.times import seconds
from bookie_operator.world.model import PodFault

_FAILED: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_MOUNTED: Final = frozenset(
    {"Pulling", "Pulled", "BackOff", "Created", "Started", "FailedCreatePodSandBox", "SandboxChanged"}
)
"""Of what the kubelet does only when every volume is mounted."""
_PASSES: Final = ("failed to sync secret cache", "failed to sync configmap cache", "multi-attach error")
_NAMED: Final = ('secret "', 'configmap "', 'object "')
_VOLUME: Final = re.compile(r'for volume "([^"]+)"')
_UNMOUNTED: Final = re.compile(r"unmounted volumes=\[([^\]]*)\]")


def fault_of_mounts(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> tuple[PodFault, str]:
    """The fault, and the event that tells of it."""
    told = list(events)
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    plain = frozenset(str(each.get("name", "")) for each in volumes if "persistentVolumeClaim" not in each)
    mounted_at = max((_told_at(event) for event in told if event.get("reason") in _MOUNTED), default=0.0)
    failed = (event for event in told if event.get("reason") in _FAILED and _told_at(event) >= mounted_at)
    for event in sorted(failed, key=_told_at, reverse=True):
        message = str(event.get("message") or event.get("note") or "")
        fault = _meaning(message, plain)
        if fault is not PodFault.NONE:
            return fault, message[:500]
    return PodFault.NONE, ""


def _told_at(event: Mapping[str, Any]) -> float:
    """Seconds since 1970, the last time; 0: it does not say."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((seconds(each) or 0.0 for each in times), default=0.0)


def _meaning(message: str, plain: frozenset[str]) -> PodFault:
    """`plain`: the pod's names of volumes that are of no claim."""
    lowered = message.lower()
    if any(words in lowered for words in _PASSES):
        return PodFault.NONE
    if "references non-existent" in lowered:
        return PodFault.CONFIG
    if any(words in lowered for words in _NAMED) and "not found" in lowered:
        return PodFault.CONFIG
    waiting = _UNMOUNTED.search(message)
    if waiting is not None and waiting[1] and set(waiting[1].replace(",", " ").split()) <= plain:
        return PodFault.NONE  # the reason stands in another event
    volume = _VOLUME.search(message)
    return PodFault.CONFIG if volume is not None and volume[1] in plain else PodFault.VOLUME
