"""Bookies, the Job that makes their cluster, and auto-recovery, as the chart of Apache Pulsar makes them: what it runs
is in the image, called from /pulsar by a shell, with the configuration in the environment.

Threads: that of the test.
"""

from __future__ import annotations

from typing import Final

from tests.e2e.support import manifests
from tests.e2e.support.kube import PATIENCE, Kube, Object, pod_ready

HTTP: Final = 8000
_APPLY: Final = "bin/apply-config-from-env.py conf/bookkeeper.conf"
_VERIFY: Final = (
    f'set -e; {_APPLY}; export BOOKIE_MEM="-Xmx128M"; '
    f"until timeout {60 * PATIENCE:.0f} bin/bookkeeper shell whatisinstanceid; do sleep 3; done;"
)
_BOOKIE: Final = f'{_APPLY}; OPTS="${{OPTS}} -Dlog4j2.formatMsgNoLookups=true" exec bin/pulsar bookie;'
_AUTORECOVERY: Final = f'{_APPLY}; OPTS="${{OPTS}} -Dlog4j2.formatMsgNoLookups=true" exec bin/bookkeeper autorecovery'
_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": 10000,
    "runAsGroup": 0,
    "fsGroup": 0,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER: Final[Object] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_REQUESTS: Final[Object] = {"cpu": "200m", "memory": "128Mi"}
"""As the chart asks for: without a share of the processors a Java bookie takes minutes to start on a busy machine."""


class PulsarChart:
    """A release `name`, whose metadata are below `/name/ledgers` of the ZooKeeper at `hosts`."""

    def __init__(self, kube: Kube, name: str, hosts: str) -> None:
        self._kube = kube
        self._hosts = hosts
        self.name = name
        self.bookie = f"{name}-bookie"
        self.recovery = f"{name}-recovery"

    def pod(self, number: int) -> str:
        return f"{self.bookie}-{number}"

    def id_of(self, number: int) -> str:
        """The host's name, as `useHostNameAsBookieID` asks for it."""
        return f"{self.pod(number)}.{self.bookie}.{self._kube.namespace}.svc.cluster.local:3181"

    def install(self, image: str, replicas: int = 3, recoveries: int = 1) -> None:
        """Returns when everything is ready. `recoveries`: pods of auto-recovery."""
        common = {
            "zkServers": self._hosts,
            "zkLedgersRootPath": f"/{self.name}/ledgers",
            "httpServerEnabled": "true",
            "httpServerPort": str(HTTP),
            "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
            "useHostNameAsBookieID": "true",
        }
        bookie = {
            **common,
            "autoRecoveryDaemonEnabled": "false",
            "journalMaxBackups": "0",
            "journalDirectories": "/pulsar/data/bookkeeper/journal",
            "PULSAR_PREFIX_journalDirectories": "/pulsar/data/bookkeeper/journal",
            "ledgerDirectories": "/pulsar/data/bookkeeper/ledgers",
            "BOOKIE_MEM": "-Xms128m -Xmx256m -XX:MaxDirectMemorySize=256m",
        }
        self._kube.apply(manifests.config_map(self.bookie, bookie))
        recovery = {**common, "lostBookieRecoveryDelay": "5", "BOOKIE_MEM": "-Xms64m -Xmx128m"}
        self._kube.apply(manifests.config_map(self.recovery, recovery))
        for component, port in ((self.bookie, 3181), (self.recovery, HTTP)):
            self._kube.apply(self._service(component, port))
        self._kube.apply(self._job(image))
        self._kube.apply(self._bookies(image, replicas))
        self._kube.apply(self._autorecovery(image, recoveries))
        self._kube.wait_for(
            "Job",
            lambda jobs: (jobs[f"{self.bookie}-init"].get("status") or {}).get("succeeded"),
            600,
            "the Job that makes the cluster",
            name=f"{self.bookie}-init",
        )
        self.wait_ready(replicas)

    def upgrade(self, image: str) -> None:
        """Give every pod another image, as the chart with another value would; returns when all of them have it."""
        for name in (self.bookie, self.recovery):
            template = self._kube.get("StatefulSet", name)["spec"]["template"]["spec"]
            each = {
                part: [{**one, "image": image} for one in template[part]] for part in ("initContainers", "containers")
            }
            self._kube.patch("StatefulSet", name, {"spec": {"template": {"spec": each}}})

        def rolled(sets: dict[str, Object]) -> bool:
            return all(_rolled(sets[name]) for name in (self.bookie, self.recovery))

        self._kube.wait_for("StatefulSet", rolled, 1800, f"{self.name} to be rolled to {image}")

    def scale(self, replicas: int) -> None:
        self._kube.patch("StatefulSet", self.bookie, {"spec": {"replicas": replicas}}, subresource="scale")
        self.wait_ready(replicas)

    def wait_ready(self, replicas: int) -> dict[str, Object]:
        def ready(pods: dict[str, Object]) -> dict[str, Object] | None:
            return pods if len(pods) == replicas and all(map(pod_ready, pods.values())) else None

        selector = f"app.kubernetes.io/name={self.bookie}"
        return self._kube.wait_for("Pod", ready, 900, f"{replicas} bookies of {self.name}", selector=selector)

    def uninstall(self) -> None:
        """Its volumes too."""
        for name in (self.bookie, self.recovery):
            for kind in ("StatefulSet", "Service", "ConfigMap"):
                self._kube.delete(kind, name)
            self._kube.wait_for(
                "Pod", lambda pods: not pods, 120, f"the end of {name}", selector=f"app.kubernetes.io/name={name}"
            )
        self._kube.delete("Job", f"{self.bookie}-init", propagation="Background")
        for claim in self._kube.list("PersistentVolumeClaim", f"app.kubernetes.io/name={self.bookie}"):
            self._kube.delete("PersistentVolumeClaim", claim["metadata"]["name"])

    # --- what it is made of -------------------------------------------------------------------------------------------

    def _service(self, name: str, port: int) -> Object:
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "port", "port": port}],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    def _job(self, image: str) -> Object:
        server = f"-server {self._hosts}"
        wait = f'export PULSAR_MEM="-Xmx128M"; until bin/pulsar zookeeper-shell {server} ls /; do sleep 3; done;'
        make = (
            f'{_APPLY}; export BOOKIE_MEM="-Xmx128M"; if bin/bookkeeper shell whatisinstanceid; then echo there;'
            f" else bin/bookkeeper org.apache.zookeeper.ZooKeeperMain {server} create /{self.name}"
            " && bin/bookkeeper shell initnewcluster; fi"
        )
        pod = {
            **_pod(),
            "restartPolicy": "OnFailure",
            "initContainers": [_container("wait-zookeeper-ready", image, wait)],
            "containers": [_container(f"{self.bookie}-init", image, make, self.bookie)],
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{self.bookie}-init"},
            "spec": {"template": {"spec": pod}},
        }

    def _bookies(self, image: str, replicas: int) -> Object:
        main = _container(self.bookie, image, _BOOKIE, self.bookie)
        for probe, path in (("livenessProbe", "state"), ("readinessProbe", "is_ready"), ("startupProbe", "is_ready")):
            main[probe] = {
                "httpGet": {"path": f"/api/v1/bookie/{path}", "port": HTTP},
                "periodSeconds": 2,
                "timeoutSeconds": 5,
                "failureThreshold": 60,
            }
        volumes = {name: f"{self.bookie}-{name}" for name in ("journal", "ledgers")}
        main["volumeMounts"] += [
            {"name": volume, "mountPath": f"/pulsar/data/bookkeeper/{name}"} for name, volume in volumes.items()
        ]
        made = self._stateful_set(self.bookie, image, main, replicas)
        made["spec"]["volumeClaimTemplates"] = [
            {
                "metadata": {"name": volume},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            }
            for volume in volumes.values()
        ]
        return made

    def _autorecovery(self, image: str, replicas: int) -> Object:
        main = _container(self.recovery, image, _AUTORECOVERY, self.recovery)
        return self._stateful_set(self.recovery, image, main, replicas)

    def _stateful_set(self, name: str, image: str, main: Object, replicas: int) -> Object:
        verify = _container("pulsar-bookkeeper-verify-clusterid", image, _VERIFY, name)
        labels = {"app.kubernetes.io/name": name}
        pod = {**_pod(), "terminationGracePeriodSeconds": 30, "initContainers": [verify], "containers": [main]}
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name},
            "spec": {
                "serviceName": name,
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "updateStrategy": {"type": "RollingUpdate"},
                "podManagementPolicy": "Parallel",
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }


def _pod() -> Object:
    return {
        "automountServiceAccountToken": False,
        "securityContext": _SECURITY,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def _container(name: str, image: str, words: str, config: str = "") -> Object:
    """`config`: the ConfigMap that its environment comes from."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c"],
        "args": [words],
        "envFrom": [{"configMapRef": {"name": config}}] if config else [],
        "securityContext": _CONTAINER,
        "resources": {"requests": _REQUESTS},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _rolled(stateful_set: Object) -> bool:
    status, wanted = stateful_set.get("status") or {}, stateful_set["spec"]["replicas"]
    told = status.get("observedGeneration", 0) >= stateful_set["metadata"]["generation"]
    alike = status.get("currentRevision") == status.get("updateRevision")
    return told and alike and status.get("readyReplicas", 0) == wanted
