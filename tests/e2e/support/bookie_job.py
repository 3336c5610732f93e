"""A `BookieJob` of a test: making it, and waiting for what its status tells.

Threads: that of the test.
"""

from __future__ import annotations

import time
from typing import Any, Final

from tests.e2e.support.bookie_cluster import API_VERSION
from tests.e2e.support.kube import Kube, Object, condition_of

RUN_SECONDS: Final = 300.0


class BookieJob:
    """The resource `name`; `apply` makes it."""

    def __init__(self, kube: Kube, name: str, cluster: str, image: str) -> None:
        self.kube = kube
        self.name = name
        self.cluster = cluster
        self.image = image

    @property
    def selector(self) -> str:
        """Of its Jobs and pods."""
        return f"podkeeper.dev/job={self.name}"

    def apply(self, kind: str, **members: Any) -> None:
        spec = {"clusterRef": {"name": self.cluster}, "kind": kind, "image": self.image, **members}
        self.kube.apply({"apiVersion": API_VERSION, "kind": "BookieJob", "metadata": {"name": self.name}, "spec": spec})

    def change(self, **members: Any) -> None:
        """A merge patch of `spec`."""
        self.kube.patch("BookieJob", self.name, {"spec": members})

    def status(self) -> Object:
        found = self.kube.get("BookieJob", self.name)
        assert found is not None, f"there is no BookieJob {self.name}"
        return dict(found.get("status") or {})

    def pods(self, component: str = "job") -> list[Object]:
        return self.kube.list("Pod", f"{self.selector},app.kubernetes.io/component={component}")

    def wait_phase(self, *phases: str, seconds: float = RUN_SECONDS) -> Object:
        """One of them; returns the status."""

        def look(jobs: dict[str, Object]) -> Object | None:
            status = jobs.get(self.name, {}).get("status") or {}
            return status if status.get("phase") in phases else None

        what = f"{self.name} to be {' or '.join(phases)}"
        return dict(self.kube.wait_for("BookieJob", look, seconds, what, name=self.name, show=_told))

    def wait_runs(self, count: int, seconds: float = RUN_SECONDS) -> list[Object]:
        """So many of its runs are over; returns them."""

        def look(jobs: dict[str, Object]) -> list[Object] | None:
            history = (jobs.get(self.name, {}).get("status") or {}).get("history") or []
            return history if len(history) >= count else None

        return list(
            self.kube.wait_for("BookieJob", look, seconds, f"{count} runs of {self.name}", name=self.name, show=_told)
        )

    def wait_log(self, text: str, seconds: float = RUN_SECONDS) -> str:
        """Its only pod has written this; returns the pod's name."""

        def running(pods: dict[str, Object]) -> str | None:
            return next((name for name, pod in pods.items() if pod["status"].get("phase") == "Running"), None)

        end = time.monotonic() + seconds
        selector = f"{self.selector},app.kubernetes.io/component=job"
        name = str(self.kube.wait_for("Pod", running, seconds, f"the pod of {self.name}", selector=selector))
        while text not in (log := self.kube.logs(name)):
            assert time.monotonic() < end, f"no {text!r} in the log of {name} after {seconds:g} s: {log[-2000:]}"
            time.sleep(1)
        return name

    def wait_gone(self, seconds: float = 120.0) -> None:
        """With its Jobs and pods."""
        self.kube.wait_gone("BookieJob", self.name, seconds)
        self.kube.wait_for("Job", lambda found: not found, seconds, f"the Jobs of {self.name}", selector=self.selector)
        self.kube.wait_for("Pod", lambda found: not found, seconds, f"the pods of {self.name}", selector=self.selector)

    def clear(self) -> None:
        """Delete it, whatever it does."""
        if self.kube.get("BookieJob", self.name) is not None:
            for pod in self.pods():
                print(f"log of {pod['metadata']['name']}:", self.kube.logs(pod["metadata"]["name"], lines=40))
            self.kube.delete("BookieJob", self.name)
            self.wait_gone()


def _told(job: Object) -> str:
    status = job.get("status") or {}
    ready = condition_of(job, "Ready")
    return f"{status.get('phase')}: {ready['reason']}: {ready.get('message', '')}; {status.get('active')}"
