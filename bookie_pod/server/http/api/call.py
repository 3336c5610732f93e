"""A request as a handler sees it, and the reply that the handler returns.

The parameters are checked against the table, and the body is as it came. A reply is immutable, but for the source of a
stream.

Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bookie_pod.roles import NOBODY, Caller
from bookie_protocol.admin_api.bodies import Query, requested
from bookie_protocol.errors import BadRequest

T = TypeVar("T")
Q = TypeVar("Q", bound=Query)
JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain"


@dataclass(frozen=True, slots=True)
class Call:
    """`query`: of the type that the route names; the body is as it came."""

    method: str
    query: Query
    body: bytes = b""
    caller: Caller = NOBODY
    token: str | None = field(default=None, repr=False)
    """The token that the caller showed for a page, with which other bookies may be asked; None: no token counts."""
    accept: str = ""
    """The header `Accept`."""

    def asked(self, kind: type[Q]) -> Q:
        """The parameters, as the type that the route names."""
        assert isinstance(self.query, kind), f"{type(self.query).__name__} is read as {kind.__name__}"
        return self.query

    @property
    def is_blank(self) -> bool:
        """There is no body, or nothing in it."""
        return not self.body.strip()

    def read(self, kind: type[T]) -> T:
        """The body, on a path of Podkeeper's own, as the type that the route names. `BadRequest`."""
        return requested(self.body, kind)

    def members(self) -> dict[str, Any]:
        """The body, on a path of the reference's, as a JSON object. `BadRequest`, in its words, if it is none."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BadRequest("Failed to handle the request, exception: Failed to deserialize Object from Json string")
        return value


def switch(members: Mapping[str, Any], name: str) -> bool | None:
    """A JSON boolean of a body, None if it is not given. `BadRequest` for anything else."""
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, as a JSON boolean, not {json.dumps(value)[:100]}")
    return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text, sent unchanged."""

    body: str
    status: int = 200
    content_type: str | None = None
    """The content type with its parameters; None: plain text in UTF-8."""


@dataclass(frozen=True, slots=True)
class Json:
    """Bodies of the admin API, lists and mappings of them, and plain values."""

    value: Any
    spaced: bool = True
    """Laid out as Jackson does; False: as Gson does."""


@dataclass(frozen=True, slots=True)
class JsonMembers:
    """An object of any number of members, sent as they come: memory holds a few of them."""

    members: AsyncGenerator[tuple[str, Any], None]


Reply = Text | Json | JsonMembers
