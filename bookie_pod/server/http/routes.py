"""All paths of the HTTP server: probes, metrics, `/openapi.json`, and the admin API.

    /healthz                    200 unless the process should be restarted (liveness probe)
    /readyz                     200 while clients can be served (readiness probe)
    /metrics                    Prometheus text
    /heartbeat                  200 while the process answers at all
    /api/v1/bookie/is_ready     like /readyz, by Apache BookKeeper's path
    /api/v1/bookie/state        the flags of the bookie, from the first moment on
    /openapi.json               what is served, as an OpenAPI document
    /api/v1/...                 the admin API (`bookie_pod.admin`), while the bookie serves
    /ui/...                     the console (`bookie_pod.admin.console`): pages for people, which are no API

Source: docs/internals/bookie-behaviour.md, section 10. Event loop only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.text import OPEN_METRICS, PLAIN, takes_open_metrics
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import JSON_TYPE, Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.openapi import openapi
from bookie_pod.server.http.api.table import METHODS, Answer, Group, Handler, Operation, Resource
from bookie_protocol.admin_api import bookie as bookie_routes
from bookie_protocol.admin_api.bodies import NOTHING, Route
from bookie_protocol.admin_api.bookie import BookieState


def guarded_groups(config: HttpConfig) -> frozenset[Group]:
    """Return the groups of which nothing is served to who shows no token."""
    if config.auth_token_file is None:
        return frozenset()
    return frozenset(Group) if config.auth_probes else frozenset({Group.ADMIN, Group.CONSOLE})


def resources(table: Sequence[Resource], guarded: frozenset[Group]) -> tuple[Resource, ...]:
    """Return the resources that are served. `table` is the admin API; if it is empty, only probes and metrics are
    served.
    """

    def content() -> str:  # on the first request: it takes as much time as the rest of a start
        return json.dumps(openapi(served, version=_version(), guarded=guarded))

    served = (*PROBES, STATE, *table, _document(content))
    return served


def _version() -> str:
    try:
        return version("podkeeper")
    except PackageNotFoundError:  # run from its sources
        return "0"


async def _heartbeat(context: Context, call: Call) -> Reply:
    return Text("OK\n")


async def _healthz(context: Context, call: Call) -> Reply:
    reason, complaint = context.status.unhealthy_reason(), context.status.complaint()
    return Text(f"OK, but {complaint}") if reason is None and complaint is not None else _probe(reason)


async def _readyz(context: Context, call: Call) -> Reply:
    return _probe(context.status.unready_reason())


def _probe(reason: str | None) -> Reply:
    return Text("OK") if reason is None else Text(reason, 503)


async def _state(context: Context, call: Call) -> Reply:
    state = context.status.state()
    return Json(
        BookieState(state.running, state.read_only, state.shutting_down, state.available_for_high_priority_writes)
    )


async def _metrics(context: Context, call: Call) -> Reply:
    text = OPEN_METRICS if context.registry.has_exemplars and takes_open_metrics(call.accept) else PLAIN
    return Text(await context.metrics(text), content_type=text.content_type)


def _get(path: str, summary: str, handler: Handler, about: str, *, own: bool = True) -> Resource:
    operations = (Operation(Route(method, path, NOTHING), None, summary, handler, about, (_NO,)) for method in _ASKING)
    return Resource(tuple(operations), own=own, group=Group.PROBE)


def _document(content: Callable[[], str]) -> Resource:
    made: list[str] = []
    one = asyncio.Lock()

    async def show(context: Context, call: Call) -> Reply:
        async with one:  # anybody may ask for it, and must not take the workers' places
            if not made:
                made.append(await context.workers.run(content, call.caller))
        return Text(made[0], content_type=JSON_TYPE)

    route = Route("GET", "/openapi.json", dict[str, Any])
    return Resource((Operation(route, None, "This document", show, "The document."),), group=Group.PROBE)


_ASKING: Final = ("GET", "HEAD")
"""The methods of a probe: load balancers use either."""
_NO: Final = Answer("It is not, and why.", 503)
PROBES: Final = (
    Resource(
        tuple(
            Operation(Route(method, "/heartbeat", NOTHING), None, "Whether the process answers", _heartbeat, "OK.")
            for method in (*METHODS, "HEAD")
        ),
        own=False,
        group=Group.PROBE,
    ),
    _get("/healthz", "Whether the process is sound", _healthz, "It is."),
    _get("/readyz", "Whether clients are served", _readyz, "They are."),
    _get("/api/v1/bookie/is_ready", "As /readyz", _readyz, "They are.", own=False),
    Resource(
        (Operation(Route("GET", "/metrics", NOTHING), None, "Prometheus text", _metrics, "The metrics."),),
        Text("{method} is forbidden. Should be GET method", 403),
        own=False,
        group=Group.METRICS,
    ),
)
PROBE_PATHS: Final = frozenset(resource.path for resource in PROBES if resource.group is Group.PROBE)
STATE: Final = Resource(
    (Operation(bookie_routes.STATE, Role.VIEWER, "Flags of the bookie", _state, "The flags."),),
    own=False,
    always=True,
)
"""Answered from the first moment on, unlike the rest of the admin API."""
