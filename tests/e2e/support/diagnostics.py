"""The state of everything, written to files when a test failed.

Threads: that of the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.support.kube import Kube

_KINDS: Final = (
    "BookieCluster",
    "BookieTask",
    "StatefulSet",
    "Deployment",
    "Job",
    "Pod",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "ConfigMap",
    "Event",
)


def write_state(kube: Kube, folder: Path, clusters: list[str], operator_logs: Callable[[], str]) -> None:
    """Objects of the namespace, logs of the clusters' pods and of the operator. What cannot be had is told in place."""
    folder.mkdir(parents=True, exist_ok=True)

    def keep(name: str, read: Callable[[], str]) -> None:
        try:
            text = read()
        except Exception as error:
            text = f"could not be read: {error!r}"
        (folder / name).write_text(text, encoding="utf-8")

    for kind in _KINDS:
        keep(f"{kind}.json", lambda kind=kind: json.dumps(kube.list(kind), indent=1, default=str))
    keep("operator.log", operator_logs)
    for cluster in clusters:
        for pod in kube.list("Pod", f"app.kubernetes.io/instance={cluster}"):
            name = pod["metadata"]["name"]
            keep(f"{name}.log", lambda name=name: kube.logs(name, lines=2000))
            if any(each.get("restartCount") for each in (pod.get("status") or {}).get("containerStatuses") or []):
                keep(f"{name}.previous.log", lambda name=name: kube.logs(name, previous=True, lines=2000))
