"""The operator's console: pages about its clusters at `/ui` of its own port, for people with a tunnel to its pod.

`/ui` lists the clusters; `/ui/NAMESPACE/NAME` has the pages that a bookie serves about its cluster, and one more about
what the operator does there and waits for.

Invariants
- Only requests from the operator's own machine are answered: `kubectl port-forward` is one, and Kubernetes says who may
  do that. A request that a proxy passed on, and one that a page of another site makes, is refused.
- Pages change nothing and are asked for with GET. The pods are asked what a viewer may see.
- At most `AT_ONCE` pages are made at a time, the clusters are read once in `AGE_S` seconds, and what is known of a
  cluster's pods counts for `PODS_S` seconds.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog
from aiohttp import web

from bookie_operator.api.admin import Admin, Endpoint
from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.kinds import CLUSTER, POD, SECRET, KubernetesObject
from bookie_operator.api.trust import Trust
from bookie_operator.builders import naming
from bookie_operator.builders.common import is_own
from bookie_operator.builders.secrets import token_in
from bookie_operator.console_pages import cluster_list, operation_page
from bookie_operator.crds import names
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.pods_facts import endpoints, tellers
from bookie_operator.reconcile.context import OperatorContext
from bookie_operator.world.model import ClusterView
from bookie_protocol.admin_api.bodies import Query, Route, asked
from bookie_protocol.errors import BadRequest, BookieUnavailable, CouldNotTell, NotThere, PodkeeperError, Unauthorized
from bookie_protocol.local_requests import EMBEDDED, is_embedded, is_on_this_machine
from bookie_protocol.web_console import frame
from bookie_protocol.web_console.frame import SECTIONS, Place, Section
from bookie_protocol.web_console.site import PAGES, Page
from bookie_protocol.web_console.source import Watcher

T = TypeVar("T")
_log = structlog.get_logger(__name__)
BASE: Final = "/ui"
AT_ONCE: Final = 8
AGE_S: Final = 2.0
PODS_S: Final = 20.0
PAGE_S: Final = 40.0
MOST_KEPT: Final = 64
"""Clusters of which looks are kept; those of others end."""
FAULT_S: Final = 60.0
"""Seconds between two reports of a fault of a page."""
_TRIED: Final = 3
"""Pods that are asked about the cluster, one after the other, until one answers."""
OPERATION: Final = Section("/operation", "Operation", "r")
_SECTIONS: Final = (SECTIONS[0], OPERATION, *SECTIONS[1:])
_NOT_HERE: Final = (
    "this page is for the operator's own machine: open it through a tunnel, such as kubectl port-forward"
    " deployment/podkeeper-operator 8080"
)


@dataclass
class _Kept:
    """The facts about one cluster that are known."""

    watcher: Watcher = field(default_factory=Watcher)
    pods: PodsOfCluster | None = None
    until: float = 0.0


@dataclass(frozen=True)
class PodsOfCluster:
    """The pods of one cluster, and how they are asked."""

    admin: Admin
    by_bookie: Mapping[str, Endpoint]
    candidates: Sequence[Endpoint]
    """Pods that may answer for the cluster, the likeliest first."""


class PodsSource:
    """Asks the pods of a cluster, for its pages."""

    own_bookie: str | None = None

    def __init__(self, pods: PodsOfCluster) -> None:
        self._pods = pods

    async def cluster(self, route: Route[T], query: Query | None = None) -> T:
        last: PodkeeperError = BookieUnavailable("no bookie and no auto-recovery pod has an address")
        for candidate in self._pods.candidates[:_TRIED]:
            try:
                return await self._pods.admin.look(candidate, route, query)
            except (CouldNotTell, Unauthorized) as error:
                last = error
            except NotThere as error:
                if type(error) is not NotThere:
                    raise
                last = error  # a pod of an earlier release has no such path; others may
        raise last

    async def bookie(self, bookie_id: str, route: Route[T], query: Query | None = None) -> T:
        endpoint = self._pods.by_bookie.get(bookie_id)
        if endpoint is None:
            raise BookieUnavailable(f"no pod of this cluster with an address is bookie {bookie_id}")
        return await self._pods.admin.look(endpoint, route, query)


class OperatorConsole:
    """The pages. `add_to` an application, `stop` at the end."""

    def __init__(self, context: OperatorContext, namespaces: Sequence[str]) -> None:
        """`namespaces`: those that the operator keeps; empty: all."""
        self._context = context
        self._namespaces = tuple(namespaces) or ("",)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._reading = asyncio.Lock()
        self._clusters: list[KubernetesObject] = []
        self._read_at = float("-inf")
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._faults = 0
        self._reports_at = float("-inf")

    def add_to(self, app: web.Application) -> None:
        """Register all paths."""
        for path in (BASE, f"{BASE}/"):
            app.router.add_get(path, self._guarded(self._list), allow_head=False)
        of_cluster = f"{BASE}/{{namespace}}/{{name}}"
        for page in PAGES:
            app.router.add_get(of_cluster + page.path, self._guarded(self._page(page)), allow_head=False)
        app.router.add_get(of_cluster + OPERATION.path, self._guarded(self._operation), allow_head=False)

    async def stop(self) -> None:
        """End looks that are under way."""
        await asyncio.gather(*(each.watcher.stop() for each in self._kept.values()), *self._ending)

    # --- the door -----------------------------------------------------------------------------------------------------

    def _guarded(
        self, make: Callable[[web.Request], Awaitable[str]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            status, text = await self._answer(request, make)
            return web.Response(
                body=text.encode("utf-8", "replace"),
                status=status,
                headers={**frame.headers(), "Content-Type": frame.CONTENT_TYPE},
            )

        return handle

    async def _answer(self, request: web.Request, make: Callable[[web.Request], Awaitable[str]]) -> tuple[int, str]:
        def header(name: str) -> str | None:
            return request.headers.get(name)

        if not is_on_this_machine(request.remote or "?", header):
            return _failed(403, _NOT_HERE)
        if is_embedded(header):
            return _failed(403, EMBEDDED)
        if self._places.locked():
            return _failed(503, f"{AT_ONCE} pages are being made; try again later")
        try:
            async with self._places, asyncio.timeout(PAGE_S):
                return 200, await make(request)
        except TimeoutError:
            return _failed(504, f"no result within {PAGE_S:g} s")
        except NotThere as error:
            return _failed(404, str(error))
        except BadRequest as error:
            return _failed(400, str(error))
        except (PodkeeperError, KubernetesError) as error:
            return _failed(503, str(error))
        except Exception as error:
            self._report(request, error)
            return _failed(500, f"this page has a fault ({type(error).__name__}): see the log of the operator")

    def _report(self, request: web.Request, error: Exception) -> None:
        """Write one line in `FAULT_S` seconds at most: the cause of a fault may cause many."""
        self._faults += 1
        if time.monotonic() >= self._reports_at:
            self._reports_at = time.monotonic() + FAULT_S
            _log.error("a page of the console failed", path=request.path, faults=self._faults, exc_info=error)

    # --- pages --------------------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> str:
        place = Place(BASE, "operator", "")
        content = cluster_list(await self._read(), BASE)
        return frame.page(place, "Clusters", content, sections=(Section("", "Clusters", "o"),))

    def _page(self, page: Page) -> Callable[[web.Request], Awaitable[str]]:
        async def make(request: web.Request) -> str:
            cluster = await self._cluster(request)
            kept = self._of(cluster)
            given = {name: request.query.getall(name)[0] for name in request.query}
            query = asked({name: value for name, value in given.items() if value}, page.query)
            source = PodsSource(await self._pods(cluster, kept))
            return await page.text(source, kept.watcher, query, _place(cluster), _SECTIONS)

        return make

    async def _operation(self, request: web.Request) -> str:
        cluster = await self._cluster(request)
        place = _place(cluster)._replace(section=OPERATION.path)
        return frame.page(place, "Operation", operation_page(cluster), sections=_SECTIONS)

    # --- what is known ------------------------------------------------------------------------------------------------

    async def _read(self) -> list[KubernetesObject]:
        async with self._reading:
            if time.monotonic() - self._read_at >= AGE_S:
                each = await asyncio.gather(*(self._context.kubernetes.list(CLUSTER, at) for at in self._namespaces))
                self._clusters = [cluster for group in each for cluster in group]
                self._read_at = time.monotonic()
            return self._clusters

    async def _cluster(self, request: web.Request) -> ClusterView:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        for found in await self._read():
            metadata = found["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                try:
                    return cluster_view(found)
                except ValueError as error:
                    raise CouldNotTell(f"cluster {name} cannot be read: {error}") from error
        raise NotThere(f"there is no BookieCluster {name} in namespace {namespace} that this operator keeps")

    def _of(self, cluster: ClusterView) -> _Kept:
        kept = self._kept.setdefault(cluster.uid, _Kept())
        self._kept.move_to_end(cluster.uid)
        if len(self._kept) > MOST_KEPT:
            _, dropped = self._kept.popitem(last=False)
            ending = asyncio.create_task(dropped.watcher.stop(), name="console-dropped")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        return kept

    async def _pods(self, cluster: ClusterView, kept: _Kept) -> PodsOfCluster:
        if kept.pods is None or time.monotonic() >= kept.until:
            kept.pods = await self._read_pods(cluster)
            kept.until = time.monotonic() + PODS_S
        return kept.pods

    async def _read_pods(self, cluster: ClusterView) -> PodsOfCluster:
        kubernetes, settings = self._context.kubernetes, self._context.settings
        labels = {names.NAME: "podkeeper", names.INSTANCE: cluster.name, names.JOB: None}
        pods, secret = await asyncio.gather(
            kubernetes.list(POD, cluster.namespace, labels),
            kubernetes.find(SECRET, cluster.namespace, naming.admin_token(cluster.name)),
        )
        # The author of a Secret that is not the cluster's own would choose the token.
        token = token_in(secret) if secret is not None and is_own(secret, cluster) else ""
        server_name = naming.admin_server_name(cluster.name, cluster.namespace)
        trust = Trust(kubernetes, cluster.namespace, server_name)
        admin = Admin(self._context.session, token, trust=trust, timeout_s=settings.admin_timeout_s)
        own: list[Mapping[str, Any]] = [pod for pod in pods if is_own_pod(pod)]
        reachable = endpoints(own, settings.admin_port)
        by_bookie = {
            each.bookie_id: reachable[each.name]
            for each in cluster.status.bookies
            if each.bookie_id and each.name in reachable
        }
        return PodsOfCluster(admin, by_bookie, tellers(own, reachable))


def is_own_pod(pod: Mapping[str, Any]) -> bool:
    """Return whether a controller made the pod: one that a person made with the labels gets no token."""
    return any(each.get("controller") for each in pod["metadata"].get("ownerReferences") or ())


def _place(cluster: ClusterView) -> Place:
    return Place(f"{BASE}/{cluster.namespace}/{cluster.name}", f"{cluster.namespace}/{cluster.name}", "", BASE)


def _failed(status: int, line: str) -> tuple[int, str]:
    return status, frame.error_page(status, line)
