"""The configuration as it is held in memory: look at it, and change it until the next start."""

from __future__ import annotations

from typing import Final

from bookie_pod.audit import audited
from bookie_pod.config.keys import render
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_protocol.errors import BadRequest

_REFUSAL: Final = Text("Request body not found. should contains k-v pairs", 404)


async def _shown(context: Context, call: Call) -> Reply:
    return Json(context.admin.settings.shown(), spaced=False)


async def _change(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return _REFUSAL
    values = {}
    for name, value in call.members().items():
        if not isinstance(value, str | int | float):
            raise BadRequest(f"{name[:100]}: the value must be a text, a number, true or false")
        values[name] = render(value)
    audited(keys=sorted(values))
    await context.admin.settings.change(values)
    return Text("Success set server config.")


RESOURCES: Final = (
    Resource(
        "/api/v1/config/server_config",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "The keys that somebody set; secrets are left out",
                _shown,
                (Answer("Text by key.", type=dict[str, str]),),
            ),
            Operation(
                "PUT",
                Role.ADMIN,
                "Set keys until the next start; rates, thresholds and intervals of garbage collection count at once",
                _change,
                (Answer("Done."), Answer("There is no body.", 404)),
                body=dict[str, str | int | float | bool],
            ),
        ),
        _REFUSAL,
        own=False,
    ),
)
