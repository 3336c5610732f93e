"""The content of a support bundle, one part after the other: it names what cannot be read, and the rest goes on.

Invariants
- Everything passes through one `Redactor`, last of all in `files`, which has seen the Secrets that the cluster uses.
- Each part is bounded: logs by lines and bytes, events by number, answers of pods by bytes.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import yaml

from bookie_operator.api import kinds
from bookie_operator.api.admin import Admin, AdminUnreachable, Endpoint
from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.kinds import KubernetesObject, Resource
from bookie_operator.builders import naming
from bookie_operator.crds import names
from bookie_operator.observe.pods_facts import endpoints
from bookie_operator.plugin.clusters import pods_of
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.forwarding import PORT, Open, read_token, session_to, trust_of
from bookie_operator.plugin.log_reading import Wanted, read_log
from bookie_protocol.admin_api import bookie, cluster, gc
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.redaction import Redactor

T = TypeVar("T")
File = tuple[str, str]
"""Path below the bundle, and content."""
_OURS: Final = (
    kinds.STATEFUL_SET,
    kinds.POD,
    kinds.CLAIM,
    kinds.DEPLOYMENT,
    kinds.JOB,
    kinds.CONFIG_MAP,
    kinds.SERVICE,
    kinds.BUDGET,
    kinds.NETWORK_POLICY,
    kinds.SERVICE_ACCOUNT,
)
_AROUND: Final = (kinds.NODE, kinds.STORAGE_CLASS)
_OF_EVERY_POD: Final[Mapping[str, str]] = {
    "state.json": bookie.STATE.path,
    "cluster.json": cluster.STATE.path,
    "metrics.txt": "/metrics",
}
_OF_A_BOOKIE: Final[Mapping[str, str]] = {
    **_OF_EVERY_POD,
    "readonly.json": bookie.READ_ONLY.path,
    "info.json": bookie.INFO.path,
    "config.json": bookie.CONFIG.path,
    "gc.json": gc.DETAILS.path,
}
_FACTS: Final = {naming.BOOKIE: _OF_A_BOOKIE, naming.AUTORECOVERY: _OF_EVERY_POD}
"""Requests to a pod of a component, by file."""
_MAX_EVENTS: Final = 2000
_CLAIM: Final = re.compile(r"^(journal|ledger|index)-\d+-")
"""Part of a claim's name before that of its pod."""
_SECONDS: Final = 15.0
_NAMES_A_SECRET: Final = re.compile(r"(?i)secret(key)?(ref)?$|^imagePullSecrets$")
"""Members whose `name` is that of a Secret; `secretName` is one itself."""


class Bundle:
    """The support bundle of one cluster."""

    def __init__(self, api: Api, cluster: KubernetesObject, open_socket: Open, tail: int) -> None:
        self._api = api
        self._cluster = cluster
        self._name = str(cluster["metadata"]["name"])
        self._open = open_socket
        self._tail = tail
        self._redactor = Redactor()
        self.missing: list[str] = []
        """Parts that could not be read, and why."""

    async def files(self) -> AsyncIterator[File]:
        """All of it; `missing.txt` is the last."""
        await self._learn_secrets()
        async for path, text in self._files():
            yield path, self._redactor.text(text)

    async def _learn_secrets(self) -> None:
        """All that pods or the spec name; what cannot be read is known by the shape of its values."""
        pods = await self._part(lambda: pods_of(self._api, self._name)) or []
        used = {
            naming.admin_token(self._name),
            naming.client_token(self._name),
            naming.metadata_token(self._name),
            *secrets_named(self._cluster),
            *secrets_named(pods),
        }
        for name in sorted(used - {naming.identity(self._name)}):
            found = await self._part(
                lambda name=name: self._api.kubernetes.find(kinds.SECRET, self._api.namespace, name),  # type: ignore[misc]
                f"Secret {name}, so that its values are looked for",
            )
            if found is not None:
                self._redactor.learn_secret(found)

    async def _files(self) -> AsyncIterator[File]:
        yield "cluster.yaml", self._yaml(self._cluster)
        for resource, labels in (
            *((each, {names.INSTANCE: self._name}) for each in _OURS),
            *((each, None) for each in _AROUND),
        ):
            found = await self._listed(resource, labels)
            if found is not None:
                yield f"{resource.plural}.yaml", self._yaml_list(found, resource)
        for part in (self._tasks, self._secrets, self._events):
            content = await self._part(part)
            if content is not None:
                yield content
        pods = await self._part(lambda: pods_of(self._api, self._name)) or []
        async for file in self._logs(pods):
            yield file
        async for file in self._facts(pods):
            yield file
        async for file in self._operator():
            yield file
        yield "missing.txt", "\n".join(self.missing) + "\n" if self.missing else "nothing\n"

    # --- objects ------------------------------------------------------------------------------------------------------

    async def _listed(self, resource: Resource, labels: Mapping[str, str] | None) -> list[KubernetesObject] | None:
        namespace = self._api.namespace if resource.namespaced else ""
        return await self._part(lambda: self._api.kubernetes.list(resource, namespace, labels), resource.plural)

    async def _tasks(self) -> File:
        found = await self._api.kubernetes.list(kinds.TASK, self._api.namespace)
        return "bookietasks.yaml", self._yaml_list(
            [task for task in found if task["spec"]["cluster"] == self._name], kinds.TASK
        )

    async def _secrets(self) -> File:
        """The Secrets that the operator makes, by name; their keys only."""
        made = (naming.identity, naming.admin_token, naming.client_token, naming.metadata_token)
        wanted = [of(self._name) for of in made]
        found = [
            each
            for name in wanted
            if (each := await self._api.kubernetes.find(kinds.SECRET, self._api.namespace, name))
        ]
        return "secrets.yaml", self._yaml_list(found, kinds.SECRET)

    async def _events(self) -> File:
        found = await self._api.kubernetes.list(kinds.POD_EVENT, self._api.namespace)
        listed = await self._api.kubernetes.list(kinds.CLUSTER, self._api.namespace, metadata_only=True)
        clusters = {self._name, *(str(each["metadata"]["name"]) for each in listed)}
        about = [event for event in found if _cluster_of(event, clusters) == self._name]
        about.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return "events.yaml", self._yaml_list(about[-_MAX_EVENTS:], kinds.POD_EVENT)

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _logs(
        self, pods: list[KubernetesObject], folder: str = "logs", api: Api | None = None
    ) -> AsyncIterator[File]:
        for pod in pods:
            name = str(pod["metadata"]["name"])
            statuses = (pod.get("status") or {}).get("containerStatuses") or ()
            restarted = any(each.get("restartCount", 0) for each in statuses)
            for previous in (False, True) if restarted else (False,):
                wanted = Wanted(self._tail, None, previous)
                lines = await self._part(lambda pod=pod, wanted=wanted: read_log(api or self._api, pod, wanted))  # type: ignore[misc]
                if lines is not None:
                    text = "".join(f"{line.time} {line.text}\n" for line in lines)
                    yield f"{folder}/{name}{'.previous' if previous else ''}.log", text

    async def _facts(self, pods: list[KubernetesObject]) -> AsyncIterator[File]:
        token = await self._part(lambda: read_token(self._api, self._name), "admin token")
        reachable = endpoints(pods, PORT)
        async with session_to(pods, self._open) as session:
            admin = Admin(session, token or "", trust=trust_of(self._api, self._name))
            for pod in pods:
                name = str(pod["metadata"]["name"])
                facts = _FACTS.get((pod["metadata"].get("labels") or {}).get(names.COMPONENT, ""))
                if name not in reachable or facts is None:
                    continue
                asked = (self._fact(admin, reachable[name], path) for path in facts.values())
                for file, text in zip(facts, await asyncio.gather(*asked), strict=True):
                    if text is not None:
                        yield f"facts/{name}/{file}", text

    async def _fact(self, admin: Admin, at: Endpoint, path: str) -> str | None:
        try:
            body = await admin.raw(at, path, _SECONDS)
        except (AdminUnreachable, PodkeeperError) as error:
            self.missing.append(f"{path} of pod {at.pod}: {error}")
            return None
        except Exception as error:
            self.missing.append(f"{path} of pod {at.pod}: unexpected error: {type(error).__name__}")
            return None
        return _pretty(body.decode(errors="replace"))

    async def _operator(self) -> AsyncIterator[File]:
        """The operator's Deployment and its log, wherever it runs."""
        labels = {names.NAME: "podkeeper-operator"}
        found = await self._part(lambda: self._api.kubernetes.list(kinds.DEPLOYMENT, labels=labels), "the operator")
        if found is None:
            return
        yield "operator/deployments.yaml", self._yaml_list(found, kinds.DEPLOYMENT)
        for namespace in sorted({str(each["metadata"]["namespace"]) for each in found}):
            pods = await self._part(
                lambda namespace=namespace: self._api.kubernetes.list(kinds.POD, namespace, labels)  # type: ignore[misc]
            )
            there = Api(self._api.kubernetes, self._api.configuration, namespace)
            async for file in self._logs(pods or [], "operator/logs", there):
                yield file

    def _yaml(self, thing: KubernetesObject) -> str:
        return yaml.safe_dump(self._redactor.redacted(thing), sort_keys=False, width=120, allow_unicode=True)

    def _yaml_list(self, found: list[KubernetesObject], resource: Resource) -> str:
        items = [
            self._redactor.redacted({"apiVersion": resource.api_version, "kind": resource.kind, **each})
            for each in found
        ]
        whole = {"apiVersion": "v1", "kind": "List", "items": items}
        return yaml.safe_dump(whole, sort_keys=False, width=120, allow_unicode=True)

    async def _part(self, read: Callable[[], Awaitable[T]], what: str = "") -> T | None:
        """None: it could not be read."""
        try:
            return await read()
        except KubernetesError as error:
            self.missing.append(f"{what}: {error}".removeprefix(": "))
        except OSError as error:
            self.missing.append(str(error.strerror or error))
        except Exception as error:  # a fault of one part costs that part alone
            self.missing.append(f"{what}: unexpected error: {type(error).__name__}".removeprefix(": "))
        return None


def _cluster_of(event: Mapping[str, Any], clusters: Iterable[str]) -> str:
    """Return the cluster of an event, by the name of what it is about.

    `events-eu-bookie-0` is not a bookie of `events` where there is an `events-eu`.
    """
    about = event.get("involvedObject") or event.get("regarding") or {}
    name = _CLAIM.sub("", str(about.get("name", "")))
    return max((each for each in clusters if name == each or name.startswith(f"{each}-")), key=len, default="")


def secrets_named(thing: Any, key: str = "") -> frozenset[str]:
    """The Secrets that objects of Kubernetes name: in volumes, environments, pulls of images and specs of ours."""
    if isinstance(thing, Mapping):
        found = [secrets_named(child, str(name)) for name, child in thing.items()]
        if _NAMES_A_SECRET.search(key) and isinstance(thing.get("name"), str):
            found.append(frozenset({thing["name"]}))
    elif isinstance(thing, list):
        found = [secrets_named(child, key) for child in thing]
    else:
        return frozenset({thing} if key == "secretName" and isinstance(thing, str) else ())
    return frozenset().union(*found)


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=1) + "\n"
    except (ValueError, RecursionError):
        return text
