"""A `BookieCluster` of a test: applying it, changing it, and waiting for what its status tells.

Threads: that of the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.e2e.support.kube import Kube, Object, condition_of, pod_ready

API_VERSION: Final = "podkeeper.dev/v1alpha1"
CONFIRM_DELETE: Final = "podkeeper.dev/confirm-delete"
CREATE_SECONDS: Final = 300.0
CHANGE_SECONDS: Final = 900.0
_FILES: Final = """\
import os
for folder, _, names in os.walk("/data"):
    for name in names:
        print(os.path.relpath(os.path.join(folder, name), "/data"))
"""


def spec(image: str, uri: str, root: str, /, **changes: Any) -> Object:
    """Three small bookies that notice and roll quickly; `changes` replace members at the top."""
    made: Object = {
        "version": "0.1.0",
        "image": image,
        "replicas": 3,
        "metadataService": {"type": "External", "uri": uri, "rootPath": root},
        "durability": {"ensembleSize": 3, "writeQuorum": 3, "ackQuorum": 2},
        "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
        "autorecovery": {"replicas": 1, "lostBookieRecoveryDelaySeconds": 5},
        "update": {"soakSeconds": 5, "progressDeadlineSeconds": 240},
        "pod": {"terminationGracePeriodSeconds": 60, "readinessProbe": {"periodSeconds": 3}},
    }
    return {**made, **changes}


class BookieCluster:
    """The resource `name`; `apply` makes it."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    @property
    def selector(self) -> str:
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=bookie"

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, spec: Mapping[str, Any], annotations: Mapping[str, str] | None = None) -> None:
        self.kube.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "BookieCluster",
                "metadata": {"name": self.name, "annotations": dict(annotations or {})},
                "spec": dict(spec),
            }
        )

    def change(self, **members: Any) -> int:
        """A merge patch of `spec`; returns the generation that it makes."""
        patched = self.kube.patch("BookieCluster", self.name, {"spec": members})
        return int(patched["metadata"]["generation"])

    def scale(self, replicas: int) -> int:
        """As `kubectl scale` does."""
        self.kube.patch("BookieCluster", self.name, {"spec": {"replicas": replicas}}, subresource="scale")
        return int(self.get()["metadata"]["generation"])

    def annotate(self, **annotations: str | None) -> None:
        """Of the group `podkeeper.dev`; underscores are dashes."""
        full = {f"podkeeper.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        self.kube.annotate("BookieCluster", self.name, full)

    def delete(self) -> None:
        self.kube.delete("BookieCluster", self.name)

    def task(self, name: str, kind: str, **members: Any) -> None:
        self.kube.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "BookieTask",
                "metadata": {"name": name},
                "spec": {"cluster": self.name, "type": kind, **members},
            }
        )

    # --- what is ------------------------------------------------------------------------------------------------------

    def get(self) -> Object:
        found = self.kube.get("BookieCluster", self.name)
        assert found is not None, f"there is no BookieCluster {self.name}"
        return found

    def status(self) -> Object:
        return dict(self.get().get("status") or {})

    def pods(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.kube.list("Pod", self.selector)}

    def claims(self, bookie: str = "") -> dict[str, Object]:
        """By name; of one bookie or of all."""
        found = self.kube.list("PersistentVolumeClaim", f"app.kubernetes.io/instance={self.name}")
        by_name = {claim["metadata"]["name"]: claim for claim in found}
        return {name: claim for name, claim in by_name.items() if not bookie or name.endswith(f"-{bookie}")}

    def capacities(self, volume: str) -> set[str]:
        """Of all claims of this kind of volume: what the storage gives."""
        claims = self.claims().values()
        return {
            claim["status"]["capacity"]["storage"]
            for claim in claims
            if claim["metadata"]["name"].startswith(f"{volume}-")
        }

    def files(self, bookie: str) -> set[str]:
        """Paths of the files in its volumes, below where these are mounted: `ledger-0/current/0.log`."""
        return set(self.kube.run_in_pod(bookie, "bookie", "python3", "-c", _FILES).splitlines())

    def uids(self) -> dict[str, str]:
        """Of its pods, by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def events(self) -> list[str]:
        """Reasons of the events of the resource, oldest first."""
        found = [
            event
            for event in self.kube.list("Event")
            if event["involvedObject"]["kind"] == "BookieCluster" and event["involvedObject"]["name"] == self.name
        ]
        return [
            str(event["reason"]) for event in sorted(found, key=lambda event: event["metadata"]["creationTimestamp"])
        ]

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_condition(
        self, kind: str, status: str, seconds: float, *, reason: str = "", generation: int = 0
    ) -> Object:
        """Returns the condition."""

        def look(clusters: dict[str, Object]) -> Object | None:
            found = condition_of(clusters.get(self.name, {}), kind)
            observed = (clusters.get(self.name, {}).get("status") or {}).get("observedGeneration", 0)
            fits = found["status"] == status and reason in ("", found["reason"])
            return found if fits and observed >= generation else None

        what = f"{self.name}: {kind}={status} {reason}"
        return self.kube.wait_for("BookieCluster", look, seconds, what, name=self.name, show=_told)

    def wait_ready(self, seconds: float = CHANGE_SECONDS, *, generation: int | None = None) -> Object:
        """Ready for the present generation, or for `generation`; returns the status."""
        wanted = self.get()["metadata"]["generation"] if generation is None else generation
        self.wait_condition("Ready", "True", seconds, generation=wanted)
        return self.status()

    def wait_operation(self, kind: str, seconds: float = 120.0, *, step: str = "") -> Object:
        """Until an operation of this type runs (and is at this step)."""

        def look(clusters: dict[str, Object]) -> Object | None:
            running = (clusters.get(self.name, {}).get("status") or {}).get("operation") or {}
            return running if running.get("type") == kind and step in ("", running.get("step")) else None

        return self.kube.wait_for(
            "BookieCluster", look, seconds, f"{self.name}: operation {kind} {step}", name=self.name, show=_told
        )

    def wait_pods(self, count: int, seconds: float = CREATE_SECONDS) -> dict[str, Object]:
        """So many pods, all ready."""

        def look(pods: dict[str, Object]) -> dict[str, Object] | None:
            return pods if len(pods) == count and all(map(pod_ready, pods.values())) else None

        return self.kube.wait_for("Pod", look, seconds, f"{count} ready bookies of {self.name}", selector=self.selector)

    def wait_pods_gone(self, uids: Iterable[str], seconds: float = CREATE_SECONDS) -> None:
        """None of these exists any more."""
        old = set(uids)

        def look(pods: dict[str, Object]) -> bool:
            return not old & {pod["metadata"]["uid"] for pod in pods.values()}

        self.kube.wait_for("Pod", look, seconds, f"the end of {len(old)} pods", selector=self.selector)

    def wait_replicated(self, seconds: float = CHANGE_SECONDS) -> None:
        self.wait_condition("LedgersReplicated", "True", seconds)

    def wait_gone(self, seconds: float = CHANGE_SECONDS) -> None:
        self.kube.wait_gone("BookieCluster", self.name, seconds)


def _told(cluster: Object) -> str:
    status = cluster.get("status") or {}
    conditions = [
        f"{each['type']}={each['status']} {each['reason']}: {each.get('message', '')}"
        for each in status.get("conditions") or []
    ]
    return "\n    ".join([f"operation: {status.get('operation')}", *conditions])
