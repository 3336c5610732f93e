"""The served routes as data: who may use them, what handles them, and how they may end.

Invariants
- Everything that the server answers on purpose is in a table of these: the router, the checks of parameters and
  `/openapi.json` are made from it.
- Every path takes GET, PUT, POST and DELETE, as in the reference; one of these without an operation gets the path's
  `refusal`. A probe takes HEAD, too.

Frozen; any thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import fields

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Reply, Text
from bookie_protocol.admin_api.bodies import Query, Route, asked

if TYPE_CHECKING:
    from bookie_pod.server.http.api.context import Context

METHODS: Final = ("GET", "PUT", "POST", "DELETE")
TIMEOUT_S: Final = 30.0
"""Seconds that an operation may take before it is answered 504."""

ONLY_GET: Final = Text("Method not supported here. Should be GET method", 404)


def should_be(methods: str) -> Text:
    """Return the answer of most of the reference's paths to other methods."""
    return Text(f"Not found method. Should be {methods} method", 404)


Handler = Callable[["Context", Call], Awaitable[Reply]]


class Group(Enum):
    """A group of callers: probes and metrics may be open where the rest demands a token."""

    PROBE = "probes"
    METRICS = "metrics"
    ADMIN = "administration"
    CONSOLE = "console"
    """Pages for people: they change nothing, and a browser logs in with a token as its password."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A way in which an operation may end other than by what its route answers: a text, or a problem."""

    about: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path. `role`: who may; None: everybody, of probes and metrics alone. `about`: what the route's
    answer is."""

    route: Route[Any]
    role: Role | None
    summary: str
    handler: Handler
    about: str
    others: tuple[Answer, ...] = ()
    """The other ways in which it may end."""
    missing: Text | None = None
    """The answer of a path of the reference's to who names no parameter that is required."""
    body_required: bool = True
    timeout_s: float = TIMEOUT_S

    def asked(self, given: Mapping[str, str]) -> Query | Text:
        """All parameters, or the answer if one is missing. `BadRequest` for one that is wrong."""
        kind = self.route.query
        if self.missing is not None and any(each.required and each.encode_name not in given for each in fields(kind)):
            return self.missing
        return asked(given, kind)


@dataclass(frozen=True, slots=True)
class Resource:
    """One path, by all the methods that it has."""

    operations: tuple[Operation, ...]
    refusal: Text = ONLY_GET
    """The answer to other methods; `{method}` in it stands for the one that was tried."""
    own: bool = True
    """The reference has no such path."""
    group: Group = Group.ADMIN
    always: bool = False
    """Answered while the bookie does not serve, too: no room of the `Context` is used."""

    @property
    def path(self) -> str:
        return self.operations[0].route.path

    @property
    def is_own(self) -> bool:
        """It belongs to what Podkeeper adds to the reference's admin API: errors are problems, not texts."""
        return self.own and self.group is Group.ADMIN

    def operation(self, method: str) -> Operation | None:
        return next((each for each in self.operations if each.route.method == method), None)
