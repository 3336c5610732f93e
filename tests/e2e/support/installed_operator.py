"""The operator as a release of its chart; for a quick look at changes as a process of this machine.

Threads: that of the test.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.support.environment import Environment
from tests.e2e.support.helm import Helm
from tests.e2e.support.kube import Kube, Object
from tests.e2e.support.operator_process import DyingOperator

SELECTOR: Final = "app.kubernetes.io/name=podkeeper-operator"
_DEFINITIONS: Final = Path(__file__).parents[3] / "crds"
_NEVER: Final = (1_000_000_000,)


class InstalledOperator:
    """`install` makes the release. With `settings.local` there is none, but a process here."""

    release: Final = "podkeeper"

    def __init__(self, helm: Helm, kube: Kube, settings: Environment, folder: Path) -> None:
        self._helm = helm
        self._kube = kube
        self._settings = settings
        self._folder = folder
        self._process: DyingOperator | None = None
        self.image = settings.image

    def install(self, image: str = "", **values: object) -> None:
        """Install, or upgrade to another image."""
        self.image = image or self.image
        if self._settings.local:
            for path in sorted(_DEFINITIONS.glob("*.yaml")):
                self._kube.apply(yaml.safe_load(path.read_text(encoding="utf-8")))
            self.scale(1)
            return
        repository, _, tag = self.image.rpartition(":")
        given = {"image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}, **values}
        self._helm.install(self.release, "podkeeper-operator", given, wait=True)

    def uninstall(self) -> None:
        """Also while there are clusters, as a test that failed leaves them."""
        self.stop_local()
        if not self._settings.local:
            self._helm.uninstall(self.release, hooks=False)

    def scale(self, replicas: int) -> None:
        """0 or 1."""
        if not self._settings.local:
            self._scale(replicas)
        elif replicas and self._process is None:
            self._process = self.local(self._folder, _NEVER)
            self._process.__enter__()
        elif not replicas:
            self.stop_local()

    def stop_local(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.__exit__(None, None, None)

    def local(self, folder: Path, effects: tuple[int, ...]) -> DyingOperator:
        """The operator of this work tree as a process that dies after so many side effects; not started."""
        options = ["--no-election", "--metrics-port", str(_free_port()), "--log-format", "console"]
        variables = {"KUBECONFIG": self._settings.kubeconfig, "PODKEEPER_IMAGE": self._settings.image}
        return DyingOperator(folder, ["run", "--namespace", self._kube.namespace, *options], variables, effects)

    def logs(self) -> str:
        here = self._process.log() if self._process is not None else ""
        pods = self._kube.list("Pod", SELECTOR)
        return here + "\n".join(self._kube.logs(pod["metadata"]["name"], lines=2000) for pod in pods)

    def _scale(self, replicas: int) -> None:
        (name,) = [each["metadata"]["name"] for each in self._kube.list("Deployment", SELECTOR)]
        self._kube.patch("Deployment", name, {"spec": {"replicas": replicas}}, subresource="scale")

        def settled(found: dict[str, Object]) -> bool:
            status = found[name].get("status") or {}
            return (status.get("replicas") or 0) == replicas == (status.get("readyReplicas") or 0)

        self._kube.wait_for("Deployment", settled, 120, f"{replicas} operators", name=name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
