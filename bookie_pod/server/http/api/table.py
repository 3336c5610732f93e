"""What is served, as data: paths, methods, parameters, answers.

Invariants
- Everything that the server answers on purpose stands in a table of these: the router, the checks of parameters and
  `/openapi.json` are made from it.
- Every path takes GET, PUT, POST and DELETE, as in the reference; a method without an operation gets the path's
  `refusal`.

Frozen; any thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Reply, Text
from bookie_protocol.errors import BadRequest

if TYPE_CHECKING:
    from bookie_pod.server.http.api.context import Context

METHODS: Final = ("GET", "PUT", "POST", "DELETE")
LONG_MAX: Final = 2**63 - 1
TIMEOUT_S: Final = 30.0
"""How long an operation may take before it is answered 504."""

ONLY_GET: Final = Text("Method not supported here. Should be GET method", 404)

Handler = Callable[["Context[Any]", Call], Awaitable[Reply]]


class Group(Enum):
    """Who is served: probes and metrics may be open where the rest demands a token."""

    PROBE = "probes"
    METRICS = "metrics"
    ADMIN = "administration"


class Kind(Enum):
    """How the text of a parameter becomes a value."""

    NUMBER = "integer"
    FLAG = "boolean"
    """`true` in lower case; anything else is false, as in the reference."""
    TEXT = "string"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the query."""

    name: str
    kind: Kind
    about: str
    default: Any = None
    at_least: int = 0
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """What the handler takes, as a regular expression; empty: anything."""
    missing: Text | None = None
    """The answer when it is not given; None: it need not be."""

    def parse(self, text: str) -> Any:
        """The value of a text. `BadRequest` names the rule that it breaks."""
        if self.kind is Kind.FLAG:
            return text == "true"
        if self.kind is Kind.NUMBER:
            return self._number(text)
        if self.choices and text not in self.choices:
            raise BadRequest(f"{self.name}={text[:100]}: must be one of {', '.join(self.choices)}")
        return text

    def _number(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else None
        if value is None or not self.at_least <= value <= LONG_MAX:
            raise BadRequest(f"{self.name}={text[:100]}: must be a whole number between {self.at_least} and {LONG_MAX}")
        return value


@dataclass(frozen=True, slots=True)
class Answer:
    """One way in which an operation may end. `type` is what the JSON describes; None: a text."""

    about: str
    status: int = 200
    type: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path. `role`: who may; None: everybody, of probes and metrics alone."""

    method: str
    role: Role | None
    summary: str
    handler: Handler
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """The dataclass or mapping that a JSON body is, or `str`: a text; None: no body is looked at."""
    body_required: bool = True
    timeout_s: float = TIMEOUT_S

    def read(self, query: Mapping[str, str]) -> dict[str, Any] | Text:
        """The values of all parameters, or the answer if one is missing. `BadRequest` for one that is wrong."""
        values: dict[str, Any] = {}
        for each in self.parameters:
            text = query.get(each.name)
            if text is None and each.missing is not None:
                return each.missing
            values[each.name] = each.default if text is None else each.parse(text)
        return values


@dataclass(frozen=True, slots=True)
class Resource:
    """One path."""

    path: str
    group: Group
    operations: tuple[Operation, ...]
    refusal: Text = ONLY_GET
    """The answer to other methods; `{method}` in it stands for the one that was tried."""
    own: bool = True
    """The reference has no such path."""
    always: bool = False
    """Answered while the bookie does not serve, too: nothing of `Context.admin` is used."""

    @property
    def is_own(self) -> bool:
        """It belongs to what Podkeeper adds to the reference's admin API: errors are problems, not texts."""
        return self.own and self.group is Group.ADMIN

    def operation(self, method: str) -> Operation | None:
        return next((each for each in self.operations if each.method == method), None)
