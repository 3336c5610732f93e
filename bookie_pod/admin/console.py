"""The console that a process serves at `/ui`: the pages of `bookie_protocol.web_console`, asked of this process.

What concerns the cluster, or this bookie, is answered by the handlers of the admin API in this process, as for a caller
with the role `viewer` alone; so a page can show nothing else. A page of an operator does not wait for those of viewers.
Other bookies are asked over HTTP (`watching.py`).

Event loop only.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar, cast

from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.admin.cluster import ClusterView
from bookie_pod.admin.routes import RESOURCES as ADMIN
from bookie_pod.admin.watching import Watching
from bookie_pod.roles import Caller, Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Group, Handler, Operation, Resource
from bookie_protocol.admin_api.bodies import NOTHING, Query, Route
from bookie_protocol.admin_api.cluster import KNOWN
from bookie_protocol.errors import CouldNotTell, NotThere
from bookie_protocol.web_console.frame import CONTENT_TYPE, Place
from bookie_protocol.web_console.site import PAGES, Page

T = TypeVar("T")
BASE: Final = "/ui"
_ONLY_GET: Final = Text("a page is asked for with GET", 405)
_VIEWER: Final = frozenset({Role.VIEWER})


class LocalSource:
    """Asks this process, and other bookies for what is theirs."""

    def __init__(self, context: Context, call: Call) -> None:
        self._context = context
        node = context.find(ThisBookie)
        self.own_bookie: str | None = node.bookie_id if node is not None else None
        self._token = call.token
        self._caller = Caller(call.caller.name, call.caller.address, _VIEWER, stands_as=call.caller.roles)

    async def cluster(self, route: Route[T], query: Query | None = None) -> T:
        if route is KNOWN:
            return cast("T", await self._context.room(ClusterView).known(for_console=True))
        operation = _operations()[route]
        assert operation.role is Role.VIEWER, f"{route.path} is not for viewers"
        call = Call(route.method, query if query is not None else route.query(), caller=self._caller)
        reply = await operation.handler(self._context, call)
        if isinstance(reply, Json):
            value: T = reply.value
            return value
        words = reply.body if isinstance(reply, Text) else "its answer has another form than pages have"
        raise NotThere(words) if isinstance(reply, Text) and reply.status == 404 else CouldNotTell(words)

    async def bookie(self, bookie_id: str, route: Route[T], query: Query | None = None) -> T:
        if bookie_id == self.own_bookie:
            return await self.cluster(route, query)
        return await self._context.room(Watching).ask(bookie_id, route, query, self._token)


@cache
def _operations() -> dict[Route[Any], Operation]:
    return {operation.route: operation for resource in ADMIN for operation in resource.operations}


def _handler(page: Page) -> Handler:
    async def show(context: Context, call: Call) -> Reply:
        source = LocalSource(context, call)
        place = Place(BASE, source.own_bookie or "auto-recovery", page.section)
        text = await page.text(source, context.room(Watching).watcher, call.query, place)
        return Text(text, content_type=CONTENT_TYPE)

    return show


def _resource(page: Page, path: str) -> Resource:
    route = Route("GET", path, NOTHING, page.query)
    operation = Operation(route, Role.VIEWER, "A page for people", _handler(page), "The page.")
    return Resource((operation,), _ONLY_GET, group=Group.CONSOLE)


CONSOLE: Final = (
    *(_resource(page, BASE + page.path) for page in PAGES),
    _resource(PAGES[0], f"{BASE}/"),
)
