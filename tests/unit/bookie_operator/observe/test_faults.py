"""What a pod's events say of its volumes: only a claim's volume can be lost, and what was overcome is not told."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.observe import faults
from bookie_operator.world.model import PodFault

_POD = {
    "metadata": {"name": "demo-bookie-0"},
    "spec": {
        "volumes": [
            {"name": "podkeeper-config", "configMap": {"name": "demo-config"}},
            {"name": "podkeeper-tls", "secret": {"secretName": "demo-tls"}},
            {"name": "ledger-0", "persistentVolumeClaim": {"claimName": "ledger-0-demo-bookie-0"}},
        ]
    },
    "status": {"phase": "Pending"},
}
_SLOW_CACHE = 'MountVolume.SetUp failed for volume "podkeeper-config" : failed to sync configmap cache: timed out'
_MISSING = 'MountVolume.SetUp failed for volume "podkeeper-tls" : secret "demo-tls" not found'
_NO_KEY = 'MountVolume.SetUp failed for volume "podkeeper-tls" : references non-existent secret key: tls.crt'
_GONE = 'MountVolume.NewMounter initialization failed for volume "pvc-1" : path "/disks/disk1/pvc-1" does not exist'
_ELSEWHERE = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-bookie-0'
_WAITS_PLAIN = "Unable to attach or mount volumes: unmounted volumes=[podkeeper-tls], unattached volumes=[], timed out"
_WAITS_CLAIM = "Unable to attach or mount volumes: unmounted volumes=[podkeeper-tls ledger-0], timed out"


def event(second: int, message: str, reason: str = "FailedMount") -> dict[str, Any]:
    at = f"2026-01-01T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "lastTimestamp": at, "metadata": {"creationTimestamp": at}}


def fault_of(*events: dict[str, Any]) -> tuple[PodFault, str]:
    return faults.fault_of(_POD, events)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (_SLOW_CACHE, PodFault.NONE),
        (_ELSEWHERE, PodFault.NONE),
        (_WAITS_PLAIN, PodFault.NONE),
        (_MISSING, PodFault.CONFIG),
        (_NO_KEY, PodFault.CONFIG),
        ('MountVolume.SetUp failed for volume "podkeeper-config" : no such host path', PodFault.CONFIG),
        (_GONE, PodFault.VOLUME),
        (_WAITS_CLAIM, PodFault.VOLUME),
    ],
)
def test_what_one_event_means(message: str, fault: PodFault) -> None:
    assert fault_of(event(1, message)) == (fault, message if fault is not PodFault.NONE else "")


def test_a_slow_start_of_the_node_does_not_hide_what_is_missing() -> None:
    """Nor is it a lost volume, for which a bookie would be replaced."""
    assert fault_of(event(4, _SLOW_CACHE), event(9, _MISSING)) == (PodFault.CONFIG, _MISSING)
    assert fault_of(event(9, _SLOW_CACHE), event(4, _MISSING)) == (PodFault.CONFIG, _MISSING)


def test_the_newest_counts() -> None:
    assert fault_of(event(4, _MISSING), event(9, _GONE)) == (PodFault.VOLUME, _GONE)
    assert fault_of(event(9, _MISSING), event(4, _GONE)) == (PodFault.CONFIG, _MISSING)
    series = {**event(1, _GONE), "series": {"lastObservedTime": "2026-01-01T00:00:30.000000Z"}}
    assert fault_of(event(9, _MISSING), series) == (PodFault.VOLUME, _GONE)


@pytest.mark.parametrize("reason", ["Pulling", "Pulled", "Created", "FailedCreatePodSandBox"])
def test_what_comes_after_all_volumes_were_mounted(reason: str) -> None:
    """While a large image is pulled, a volume that came late is not lost."""
    assert fault_of(event(4, _GONE), event(9, "image", reason)) == (PodFault.NONE, "")
    assert fault_of(event(9, _GONE), event(4, "image", reason)) == (PodFault.VOLUME, _GONE)
