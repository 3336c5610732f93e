"""The configuration as the admin API shows and changes it: in memory, until the next start.

Invariants
- What does not make a valid configuration changes nothing.
- Garbage collection takes over its rates, thresholds and intervals at once; everything else was read at the start.

Threads: event loop; a changed configuration is checked on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from bookie_pod.audit import audited
from bookie_pod.config.keys import render
from bookie_pod.config.load import read_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource
from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.errors import BadRequest, InvalidConfiguration

_log = structlog.get_logger(__name__)
_REFUSAL: Final = Text("Request body not found. should contains k-v pairs", 404)


class Settings:
    """`apply` hears of every change."""

    def __init__(self, config: BookieConfig, apply: Callable[[BookieConfig], None]) -> None:
        self.config = config
        """Configuration with the changes."""
        self._apply = apply
        self._changes: dict[str, str] = {}
        self._turn = asyncio.Lock()

    def shown(self) -> Mapping[str, str]:
        return self.config.set_keys

    async def change(self, values: Mapping[str, str]) -> None:
        async with self._turn:
            # The keys that are set at present, defaults that came from the machine or the environment included.
            texts = {**self.config.set_keys, **self._changes, **values}
            loaded = await asyncio.to_thread(read_config, None, {}, texts)
            if loaded.config is None:
                raise InvalidConfiguration("; ".join(map(_plain, loaded.problems)))
            self._changes.update(values)
            self.config = loaded.config
            _log.info("configuration changed until the next start", keys=sorted(values))
            self._apply(loaded.config)


def _plain(problem: str) -> str:
    """Return the problem without the words about the origin of the value."""
    return problem.removeprefix("--set: ").removesuffix(" (--set)")


async def _shown(context: Context, call: Call) -> Reply:
    return Json(context.room(Settings).shown(), spaced=False)


async def _change(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return _REFUSAL
    values = {}
    for name, value in call.members().items():
        if not isinstance(value, str | int | float):
            raise BadRequest(f"{name[:100]}: the value must be a text, a number, true or false")
        values[name] = render(value)
    audited(keys=sorted(values))
    await context.room(Settings).change(values)
    return Text("Success set server config.")


RESOURCES: Final = (
    Resource(
        (
            Operation(
                bookie_api.CONFIG,
                Role.VIEWER,
                "The keys that are set; secrets are left out",
                _shown,
                "Text by key.",
            ),
            Operation(
                bookie_api.SET_CONFIG,
                Role.ADMIN,
                "Set keys until the next start; rates, thresholds and intervals of garbage collection count at once",
                _change,
                "Done.",
                (Answer("There is no body.", 404),),
            ),
        ),
        _REFUSAL,
        own=False,
    ),
)
