"""All of it together, with operators whose passes a test takes one by one on a clock of its own.

async with fake_cluster() as fake:
    fake.apply(replicas=3)
    await fake.settle()
    assert fake.condition("Ready") == "True"
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bookie_operator.api.kinds import (
    BUDGET,
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    EVENT,
    JOB,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    STORAGE_CLASS,
    TASK,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.trust import Trust
from bookie_operator.builders import naming
from bookie_operator.builders.secrets import secret_texts
from bookie_operator.crds import names
from bookie_operator.observe.surroundings import Surroundings
from bookie_operator.reconcile.context import OperatorContext, Settings
from bookie_operator.reconcile.passing import run_pass
from bookie_operator.status.events import Events
from tests.support.fake_kubernetes import admin_api, api_server
from tests.support.fake_kubernetes.admin_api import AdminApi
from tests.support.fake_kubernetes.api_server import ApiServer
from tests.support.fake_kubernetes.bookkeeper import FakeBookKeeper
from tests.support.fake_kubernetes.claims import ClaimRules
from tests.support.fake_kubernetes.controllers import Controllers, is_ready
from tests.support.fake_kubernetes.etcd import FakeEtcd
from tests.support.fake_kubernetes.objects import Object
from tests.support.fake_kubernetes.statuses import declared, judge_status, schemas
from tests.support.fake_kubernetes.store import Change, Store

NAMESPACE: Final = "storage"
NAME: Final = "demo"
STRANGERS: Final = "pulsar"
"""Namespace and name of bookies that are none of the cluster's."""
START: Final = 1_800_000_000.0
_SETTLED: Final[dict[str, bytes]] = {}
"""What clusters were when they were ready the first time, by what their specs change."""
SPEC: Final[Object] = {
    "version": "0.1.0",
    "replicas": 3,
    "metadataService": {"uri": "zk+hierarchical://zk-0:2181"},
    "storage": {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}},
}


class FakeCluster:
    def __init__(
        self,
        store: Store,
        server: ApiServer,
        bookkeeper: FakeBookKeeper,
        admin: AdminApi,
        namespace: str = NAMESPACE,
    ) -> None:
        self.namespace = namespace
        self.store = store
        self.server = server
        self.bookkeeper = bookkeeper
        self.admin = admin
        self.etcd = FakeEtcd()
        self.controllers = Controllers(store, self._started, self._initialised, self._refuses, self._held)
        self.operators: list[OperatorContext] = []
        self.time = START
        self.domain = ""
        """Ends the bookies' ids, with a dot before it, where another chart made the bookies."""
        self.chart_config = {
            "journalDirectories": "/pulsar/data/journal",
            "ledgerDirectories": "/pulsar/data/ledgers",
            "useHostNameAsBookieID": "true",
            "bookiePort": "3181",
        }
        store.listeners.append(self._changed)
        self.claim_rules = ClaimRules()
        store.admission += [self.claim_rules, judge_status]
        store.statuses = partial(declared, schemas())
        labels = {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
        store.create(STORAGE_CLASS, "", labels)

    # --- what people do -----------------------------------------------------------------------------------------------

    def apply(self, **changes: Any) -> Object:
        """The cluster with these parts of its spec."""
        spec = {**copy.deepcopy(SPEC), **changes}
        if self.store.find(CLUSTER, self.namespace, NAME) is None:
            return self.store.create(CLUSTER, self.namespace, {"metadata": {"name": NAME}, "spec": spec})
        return self.store.patch(CLUSTER, self.namespace, NAME, {"spec": spec})

    def annotate(self, name: str, value: str | None) -> None:
        self.store.patch(CLUSTER, self.namespace, NAME, {"metadata": {"annotations": {name: value}}})

    def ask(self, name: str, kind: str, **spec: Any) -> None:
        """A BookieTask."""
        body = {"metadata": {"name": name}, "spec": {"cluster": NAME, "type": kind, **spec}}
        self.store.create(TASK, self.namespace, body)

    # --- what is ------------------------------------------------------------------------------------------------------

    @property
    def resource(self) -> Object:
        return self.store.get(CLUSTER, self.namespace, NAME)

    @property
    def status(self) -> Object:
        return dict(self.resource.get("status") or {})

    def condition(self, kind: str) -> str:
        found = self._condition(kind)
        return str(found.get("status", ""))

    def reason(self, kind: str) -> str:
        return str(self._condition(kind).get("reason", ""))

    def message(self, kind: str) -> str:
        return str(self._condition(kind).get("message", ""))

    def _condition(self, kind: str) -> Object:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    def events(self, reason: str = "") -> list[tuple[str, str, str]]:
        """Reason, note and type of each, or of those of this reason."""
        found = [(each["reason"], each["note"], each["type"]) for each in self.store.list(EVENT, self.namespace)]
        return [each for each in found if reason in ("", each[0])]

    def measured(self, name: str, **labels: str) -> float:
        """What the first operator tells of itself; 0: nothing with these labels."""
        families = text_string_to_metric_families(self.operators[0].metrics.render().decode())
        samples = [each for family in families for each in family.samples]
        chosen = [each for each in samples if each.name == f"podkeeper_operator_{name}"]
        return sum(each.value for each in chosen if labels.items() <= each.labels.items())

    def pods(self, component: str = "bookie") -> list[str]:
        chosen = {names.INSTANCE: NAME, names.COMPONENT: component}
        return [pod["metadata"]["name"] for pod in self.store.children(POD, self.namespace, chosen)]

    def bookie_id(self, pod: str) -> str:
        return f"{pod}.{NAME}-bookie.{self.namespace}.svc{self.domain}:3181"

    def _id_of(self, pod: Object) -> str:
        """Empty: it is of no bookie."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if namespace == STRANGERS:
            return self.stranger_id(name)
        labels = pod["metadata"].get("labels") or {}
        chart = self.domain and name.startswith(f"{NAME}-bookie-")
        return self.bookie_id(name) if chart or labels.get(names.COMPONENT) == "bookie" else ""

    def stranger_id(self, pod: str) -> str:
        return f"{pod}.{STRANGERS}-bookie.{STRANGERS}.svc.cluster.local:3181"

    def with_strangers(self, number: int = 3, ledgers: int = 6) -> list[str]:
        """Bookies that another chart runs in the same metadata root, with ledgers of three copies; their ids."""
        labels = {"app": "pulsar"}
        spec = {
            "replicas": number,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "bookie", "image": "java"}]}},
        }
        self.store.create(STATEFUL_SET, STRANGERS, {"metadata": {"name": f"{STRANGERS}-bookie"}, "spec": spec})
        self.run_controllers()
        ids = [self.stranger_id(f"{STRANGERS}-bookie-{ordinal}") for ordinal in range(number)]
        for ledger in range(1000, 1000 + ledgers):
            self.bookkeeper.ledgers[ledger] = {ids[(ledger + copy) % number] for copy in range(3)}
        return ids

    def with_chart(self, number: int = 3, ledgers: int = 6) -> None:
        """Bookies that another chart runs in the cluster's namespace, under the names that the cluster's have."""
        self.domain, name, labels = ".cluster.local", f"{NAME}-bookie", {"app": "pulsar", names.NAME: "pulsar"}
        kinds = ("journal", "ledgers")
        container = {
            "name": "pulsar",
            "image": "java",
            "volumeMounts": [{"name": f"{name}-{kind}", "mountPath": f"/pulsar/data/{kind}"} for kind in kinds],
        }
        template = {"metadata": {"labels": {**labels, "component": "bookie"}}, "spec": {"containers": [container]}}
        size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
        spec = {
            "replicas": number,
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": f"{name}-{kind}"}, "spec": size} for kind in kinds],
        }
        self.bookkeeper.instance_id = "of-the-chart"
        made = {"metadata": {"name": name, "labels": {names.MANAGED_BY: "Helm"}}}
        self.store.create(STATEFUL_SET, self.namespace, {**made, "spec": spec})
        selecting = {"clusterIP": "None", "selector": labels, "ports": [{"name": "bookie", "port": 3181}]}
        self.store.create(SERVICE, self.namespace, {**made, "spec": selecting})
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        self.store.create(BUDGET, self.namespace, {**made, "spec": budget})
        self.run_controllers()
        self.fill(ledgers, number)

    def scale_strangers(self, replicas: int) -> None:
        self.store.patch(STATEFUL_SET, STRANGERS, f"{STRANGERS}-bookie", {"spec": {"replicas": replicas}})
        self.run_controllers()

    def uids(self) -> dict[str, str]:
        """Of all pods, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.store.list(POD, self.namespace)}

    def fill(self, ledgers: int, bookies: int) -> None:
        """Ledgers with three copies each, on the first bookies."""
        for ledger in range(ledgers):
            on = {self.bookie_id(f"{NAME}-bookie-{(ledger + copy) % bookies}") for copy in range(3)}
            self.bookkeeper.ledgers[ledger] = on

    def whole(self) -> bool:
        """Every ledger has its three copies on bookies that are there."""
        registered = self.bookkeeper.writable | self.bookkeeper.read_only
        return all(len(bookies) == 3 and bookies <= registered for bookies in self.bookkeeper.ledgers.values())

    # --- time ---------------------------------------------------------------------------------------------------------

    def run_controllers(self) -> None:
        for _ in range(20):
            if not self.controllers.step():
                break
        auditors = [
            pod["metadata"]["name"]
            for pod in self.store.children(POD, self.namespace, {names.COMPONENT: "autorecovery"})
            if is_ready(pod)
        ]
        self.bookkeeper.elect(auditors[0] if auditors else None)

    async def one_pass(self, operator: int = 0) -> float | None:
        """A pass, then what the controllers make of it; the time goes on by what the pass asked for."""
        seconds = await run_pass(self.operators[operator], NAME, self.namespace)
        self.time += max(seconds or 0.0, 0.05)
        self.run_controllers()
        return seconds

    async def until(self, reached: Callable[[], bool], limit: int = 200) -> int:
        """Passes until then; how many there were."""
        for count in range(limit):
            if reached():
                return count
            await self.one_pass()
        raise AssertionError(f"not reached in {limit} passes: {self.status}")

    async def settle(self, limit: int = 200) -> int:
        """Passes until the cluster is ready as its spec says."""

        def ready() -> bool:
            generation = self.resource["metadata"]["generation"]
            return self.condition("Ready") == "True" and self.status["observedGeneration"] == generation

        return await self.until(ready, limit)

    def kept(self) -> bytes:
        """All of it but what its operators have in memory, for others to begin with."""
        return pickle.dumps([self.time, *({name: vars(one)[name] for name in these} for one, these in self._parts())])

    def take(self, kept: bytes) -> None:
        """Begin with what another one was when it was `kept`; the operators find it as after a restart."""
        self.time, *parts = pickle.loads(kept)
        for (one, _), values in zip(self._parts(), parts, strict=True):
            vars(one).update(values)

    def _parts(self) -> list[tuple[object, list[str]]]:
        keeper = [name for name in vars(self.bookkeeper) if name != "clock"]
        return [
            (self.store, ["objects", "changes", "version", "_versions", "_uids", "_managers", "_updates"]),
            (self.bookkeeper, keeper),
            (self.controllers, ["_addresses", "_numbers"]),
            (self.etcd, list(vars(self.etcd))),
        ]

    # --- inside -------------------------------------------------------------------------------------------------------

    def bookie_at(self, address: str) -> str | None:
        for pod in self.store.list(POD):
            if (pod.get("status") or {}).get("podIP") == address and is_ready(pod):
                return self._id_of(pod)
        return None

    def trust(self) -> Trust:
        """Of the first operator, for one look."""
        return Trust(self.operators[0].kubernetes, self.namespace, naming.admin_server_name(NAME, self.namespace))

    def certificate_at(self, address: str) -> tuple[str, str] | None:
        """Chain and key of the Secret that the pod with this address mounts for its HTTP port."""
        for pod in self.store.list(POD):
            if (pod.get("status") or {}).get("podIP") == address:
                name = admin_secret(pod)
                texts = (secret_texts(self.store.find(SECRET, self.namespace, name)) if name else None) or {}
                return (texts["tls.crt"], texts["tls.key"]) if texts else None
        return None

    def _held(self, pod: Object) -> Object | None:
        if not _is_member(pod):
            return None
        (claim,) = self._claims_of(pod)
        return self.etcd.held(pod, claim)

    def _started(self, pod: Object) -> None:
        if _is_member(pod):
            (claim,) = self._claims_of(pod)
            self.etcd.start(pod, claim)
        if bookie_id := self._id_of(pod):
            self.bookkeeper.start(bookie_id)
            self.bookkeeper.stamped |= self._claims_of(pod)
        if self.domain and bookie_id and names.TEMPLATE_HASH not in (pod["metadata"].get("annotations") or {}):
            self.bookkeeper.config[bookie_id] = dict(self.chart_config)
        elif bookie_id and pod["metadata"]["namespace"] == self.namespace:
            settings = self.store.get(CONFIG_MAP, self.namespace, f"{NAME}-bookie-settings")
            self.bookkeeper.config[bookie_id] = dict(settings["data"])

    def _refuses(self, pod: Object) -> bool:
        """It has volumes of a bookie whose cookie is gone."""
        bookie_id, keeper = self._id_of(pod), self.bookkeeper
        return bool(bookie_id) and bookie_id not in keeper.cookies and bool(self._claims_of(pod) & keeper.stamped)

    def _claims_of(self, pod: Object) -> set[str]:
        """UIDs of the claims that it mounts."""
        mounted = {
            (each.get("persistentVolumeClaim") or {}).get("claimName") for each in pod["spec"].get("volumes") or ()
        }
        claims = self.store.list(CLAIM, pod["metadata"]["namespace"])
        return {each["metadata"]["uid"] for each in claims if each["metadata"]["name"] in mounted}

    def _initialised(self, job: str) -> str:
        """The cluster in the metadata service, made with the id that the Job was given unless it was there."""
        command = self.store.get(JOB, self.namespace, job)["spec"]["template"]["spec"]["containers"][0].get(
            "command", [""]
        )
        self.bookkeeper.instance_id = self.bookkeeper.instance_id or command[-1]
        return self.bookkeeper.instance_id

    def _changed(self, change: Change) -> None:
        if change.resource == POD and change.type == "DELETED":
            self.bookkeeper.stop(self._id_of(change.obj))
            self.etcd.stop(change.obj["metadata"]["name"])


def _is_member(pod: Object) -> bool:
    """Of the etcd that the operator runs."""
    return bool(pod["spec"]["containers"][0]["name"] == "etcd")


def admin_secret(pod: Object) -> str:
    """Name of the Secret with which it serves HTTPS; empty: plain HTTP."""
    volumes = pod["spec"].get("volumes", ())
    return next((each["secret"]["secretName"] for each in volumes if each["name"] == "podkeeper-admin-tls"), "")


@asynccontextmanager
async def fake_cluster(operators: int = 1, namespace: str = NAMESPACE, **settings: Any) -> AsyncIterator[FakeCluster]:
    """With so many operators, of which each may act."""
    fake: FakeCluster | None = None

    def now() -> float:
        return fake.time if fake is not None else START

    async with AsyncExitStack() as stack:
        store, bookkeeper = Store(now), FakeBookKeeper(now)
        server = await stack.enter_async_context(api_server.serving(store))
        admin = AdminApi(
            bookkeeper,
            lambda address: fake.bookie_at(address) if fake is not None else None,
            lambda address: fake.certificate_at(address) if fake is not None else None,
        )
        port = await stack.enter_async_context(admin_api.serving(admin))
        fake = FakeCluster(store, server, bookkeeper, admin, namespace)
        for number in range(operators):
            kubernetes = Kubernetes(api_server.Beside(server, settings.pop("timeout_s", 5.0)))
            stack.push_async_callback(kubernetes.close)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            chosen = replace(Settings(), admin_port=port, **settings)
            events = Events(kubernetes, f"operator-{number}", now=now)
            around = Surroundings(kubernetes, now)
            context = OperatorContext(kubernetes, session, events, settings=chosen, now=now, surroundings=around)
            context.etcd = lambda files, server_name, etcd=fake.etcd: etcd
            fake.operators.append(context)
        yield fake


@asynccontextmanager
async def settled_cluster(operators: int = 1, **spec: Any) -> AsyncIterator[FakeCluster]:
    """A cluster that is ready, with these parts of its spec. It comes to be once in a process, and whoever asks for it
    begins with what was kept of that."""
    how = repr(sorted(spec.items()))
    if how not in _SETTLED:
        async with fake_cluster() as first:
            first.apply(**spec)
            await first.settle()
            _SETTLED[how] = first.kept()
    async with fake_cluster(operators) as fake:
        fake.take(_SETTLED[how])
        yield fake
