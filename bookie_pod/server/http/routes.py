"""The paths of the HTTP server.

    /healthz                    200 unless the process should be restarted (liveness probe)
    /readyz                     200 while clients can be served (readiness probe)
    /metrics                    Prometheus text
    /heartbeat                  200 while the process answers at all
    /api/v1/bookie/is_ready     like /readyz, by Apache BookKeeper's path
    /api/v1/bookie/state        the four flags of the bookie

Like the reference, every path takes GET, PUT, POST and DELETE; a handler that does not want the method
answers 404 with a text, /metrics 403. Other methods are 405.

Source: reference bookie behaviour, section 10. Event loop only.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from bookie_pod.metrics.registry import CONTENT_TYPE, Registry
from bookie_pod.server.status import NodeStatus

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
METHODS: Final = ("GET", "PUT", "POST", "DELETE")


class Routes:
    """The handlers of one node."""

    def __init__(self, status: NodeStatus, registry: Registry) -> None:
        self._status = status
        self._registry = registry

    def add_to(self, app: web.Application) -> None:
        """Register every path."""
        handlers: dict[str, Handler] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            "/heartbeat": self._heartbeat,
            "/api/v1/bookie/is_ready": self._readyz,
            "/api/v1/bookie/state": self._state,
        }
        for path, handler in handlers.items():
            for method in METHODS:
                app.router.add_route(method, path, handler)

    async def _heartbeat(self, request: web.Request) -> web.Response:
        return text("OK\n")

    async def _healthz(self, request: web.Request) -> web.Response:
        return _probe(request, self._status.unhealthy_reason())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _probe(request, self._status.unready_reason())

    async def _metrics(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            return text(f"{request.method} is forbidden. Should be GET method", 403)
        body = self._registry.render().encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _state(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            return only_get()
        state = self._status.state()
        return pretty_json(
            {
                "running": state.running,
                "readOnly": state.read_only,
                "shuttingDown": state.shutting_down,
                "availableForHighPriorityWrites": state.available_for_high_priority_writes,
            }
        )


def text(body: str, status: int = 200) -> web.Response:
    """A plain text answer."""
    return web.Response(text=body, status=status)


def only_get() -> web.Response:
    """The answer to a method that a path does not take."""
    return text("Method not supported here. Should be GET method", 404)


def pretty_json(value: Any) -> web.Response:
    """A JSON answer, laid out as the reference does: two blanks, a blank on both sides of the colon."""
    body = json.dumps(value, indent=2, separators=(",", " : "), ensure_ascii=False)
    return web.Response(text=body, content_type="application/json")


def _probe(request: web.Request, reason: str | None) -> web.Response:
    if request.method != "GET":
        return only_get()
    return text("OK") if reason is None else text(reason, 503)
