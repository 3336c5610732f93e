"""The part that kopf does for the operator: watching.

Every event of a cluster, or of what it consists of, wakes that cluster; every event of a BookieJob, or of what runs it,
wakes that.

kopf's daemons, timers and change handlers are not used: they add a finalizer and annotations of their own, and kopf's
handling of a deletion ends them before the flow that deletes a cluster is done. Events need neither. The operator's own
finalizer is put there, and taken away, by a pass.

Only objects with the operator's labels come, and of those that change only the metadata: strangers' objects cost
nothing.

kopf has an event loop of its own, in a thread of its own: when it stops it cancels every task of its loop.

Threads: handlers run on kopf's loop, and only call `wake`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import kopf

from bookie_operator.api.kinds import (
    BOOKIE_JOB,
    CLAIM,
    CLUSTER,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    POD,
    STATEFUL_SET,
    TASK,
    Resource,
)
from bookie_operator.crds import names

_OURS: Final = f"{names.NAME} in (podkeeper,podkeeper-job),{names.INSTANCE}"
"""Label selector of what is watched beside the operator's own resources: the API server leaves everything else out."""
_MANAGED: Final[dict[str, Any]] = {names.NAME: "podkeeper", names.INSTANCE: kopf.PRESENT, names.JOB: kopf.ABSENT}
_OF_A_JOB: Final[dict[str, Any]] = {names.JOB: kopf.PRESENT}
_CHILDREN: Final = (STATEFUL_SET, POD, CLAIM, JOB, CRON_JOB, DEPLOYMENT)
_RUNNERS: Final = (CRON_JOB, JOB, POD)
_WHOLE: Final = TASK.plural
"""Whose spec tells what to wake; of everything else metadata are enough."""
_PAGE: Final = 200
_SERVER_TIMEOUT_S: Final = 300
_REQUEST_TIMEOUT_S: Final = 30.0
_STOP_S: Final = 15.0
_LONGEST_S: Final = 2 * (_SERVER_TIMEOUT_S + _REQUEST_TIMEOUT_S)
"""Seconds after which a watch counts as silent. Every watch asks again within half of that, also where it is not
answered."""
_PLURALS: Final = frozenset(each.plural for each in (CLUSTER, TASK, BOOKIE_JOB, *_CHILDREN, *_RUNNERS))

Wake = Callable[[str, str, bool], None]
"""Wakes a resource: namespace, name, and whether to keep it from now on if it is not kept yet. May be called from any
thread."""
Login = Callable[..., kopf.ConnectionInfo | None]


def operator_settings() -> kopf.OperatorSettings:
    """Return settings with which kopf posts, scans and writes nothing."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _SERVER_TIMEOUT_S + 30.0
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = _PAGE
    for resource in {*_CHILDREN, *_RUNNERS}:
        settings.watching.label_selectors[_selector(resource)] = _OURS
    settings.networking.request_timeout = _REQUEST_TIMEOUT_S
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{names.GROUP}/watch"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"watch.{names.GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"watch.{names.GROUP}")
    return settings


class Watches:
    """Which task watches what, and when it last asked the API server: kopf goes on without a watch that ended, and says
    so in its log alone.

    Threads: `ask` on kopf's loop; `fault` from any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[str, tuple[asyncio.Task[object] | None, float]] = {}
        """Task and time of the last request by path."""

    async def ask(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """A middleware: lists and watches pass here, each in the task of its watch."""
        if request.method == "GET" and request.url.path.rpartition("/")[2] in _PLURALS:
            self._asked[request.url.path] = asyncio.current_task(), self._clock()
        return await handler(request)

    def fault(self) -> str:
        """Return what is not watched any more; empty: nothing."""
        for path, (task, at) in list(self._asked.items()):
            if task is not None and task.done():
                return f"the watch of {path} has ended: the log tells why"
            if (silent := self._clock() - at) > _LONGEST_S:
                return f"the watch of {path} has asked for nothing for {silent:.0f} s"
        return ""


def operator_registry(
    wake: Wake, watches: Watches, login: Login | None = None, wake_job: Wake | None = None
) -> kopf.OperatorRegistry:
    """`login`: how to reach the API server; without, as the `kubernetes` client does. `wake_job`: as `wake`, of a
    BookieJob; None: they are not watched, because this Kubernetes does not know them."""
    registry = kopf.OperatorRegistry()

    async def log_in(**context: Any) -> kopf.AiohttpSession | None:
        info = login(**context) if login is not None else kopf.login_via_client(**context)
        return _session(info, watches) if info is not None else None

    async def cluster_event(namespace: str | None, name: str | None, **_: Any) -> None:
        wake(namespace or "", name or "", True)

    async def task_event(namespace: str | None, spec: Mapping[str, Any], **_: Any) -> None:
        wake(namespace or "", str(spec.get("cluster", "")), False)

    async def child_event(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        wake(namespace or "", labels[names.INSTANCE], False)

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(*_selector(CLUSTER), registry=registry)(cluster_event)
    kopf.on.event(*_selector(TASK), registry=registry)(task_event)
    for resource in _CHILDREN:
        kopf.on.event(*_selector(resource), labels=_MANAGED, id=resource.plural, registry=registry)(child_event)
    if wake_job is not None:
        _watch_jobs(registry, wake_job)
    return registry


def _session(info: kopf.ConnectionInfo, watches: Watches) -> kopf.AiohttpSession:
    """A session that asks for metadata alone where these are enough. It is kopf's to close."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        middlewares=(watches.ask, _metadata_only),
    )
    return kopf.AiohttpSession(
        server=info.server,
        aiohttp_session=session,
        default_namespace=info.default_namespace,
        priority=info.priority,
        expiration=info.expiration,
    )


async def _metadata_only(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Have watches bring metadata only. A list is read in pages that are not kept, and an empty one of metadata has
    `null` in the place of its items, which ends kopf's watchers."""
    plural = request.url.path.rpartition("/")[2]
    if request.method == "GET" and request.url.query.get("watch") and plural in _PLURALS and plural != _WHOLE:
        request.headers["Accept"] = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    return await handler(request)


def _watch_jobs(registry: kopf.OperatorRegistry, wake: Wake) -> None:
    async def job_event(namespace: str | None, name: str | None, **_: Any) -> None:
        wake(namespace or "", name or "", True)

    async def runner_event(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        wake(namespace or "", labels[names.JOB], False)

    kopf.on.event(*_selector(BOOKIE_JOB), registry=registry)(job_event)
    for resource in _RUNNERS:
        kopf.on.event(*_selector(resource), labels=_OF_A_JOB, id=f"runs/{resource.plural}", registry=registry)(
            runner_event
        )


class Watching:
    """kopf in its thread, from entering to leaving the context."""

    def __init__(
        self, wake: Wake, namespaces: tuple[str, ...], login: Login | None = None, wake_job: Wake | None = None
    ) -> None:
        """`namespaces`: empty means all of them. The others as for `operator_registry`."""
        self._wake, self._login, self.wake_job = wake, login, wake_job
        self._namespaces = namespaces
        self._stop, self._ready = threading.Event(), threading.Event()
        self._watches = Watches()
        self.ended = asyncio.Event()
        """It watches no more, by itself."""

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and not self.ended.is_set() and not self.fault()

    def fault(self) -> str:
        """Return what is not watched any more; empty: nothing."""
        return self._watches.fault()

    async def __aenter__(self) -> Watching:
        loop = asyncio.get_running_loop()
        registry = operator_registry(self._wake, self._watches, self._login, self.wake_job)

        def watch() -> None:
            try:
                kopf.run(
                    registry=registry,
                    settings=operator_settings(),
                    namespaces=self._namespaces,
                    clusterwide=not self._namespaces,
                    standalone=True,
                    stop_flag=self._stop,
                    ready_flag=self._ready,
                )
            finally:
                loop.call_soon_threadsafe(self.ended.set)

        self._thread = threading.Thread(target=watch, name="kopf", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _STOP_S)


def _selector(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural
