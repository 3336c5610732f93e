"""The JSON and queries of the admin API: what a path takes and answers, and how it reports errors.

Podkeeper's own paths answer errors as problem details (RFC 9457): what a program acts on is the type, the detail is for
people. Those of Apache BookKeeper answer one line of text, as Apache's do.

Invariants
- A member that is not known is ignored, so that newer pods may tell more. One that older pods did not tell has a
  default; any other that is missing, or of another type, makes the whole body unreadable: it is never taken for zero.
- A number that does not fit in 64 bits makes it unreadable too: a calculation with it would fail.
- A member is called in JSON as it is here, in camel case, unless its field says otherwise.

Any thread, once they are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from bookie_protocol.errors import BadRequest, NoCookie, NotDecommissioned, NotThere, ProtocolViolation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
API: Final = "/api/v1"
NOTHING: Final = type(None)
LONG_MAX: Final = 2**63 - 1
_LONG: Final = {"format": "int64"}
Whole = Annotated[int, Meta(ge=0, le=LONG_MAX, extra_json_schema=_LONG)]
FromOne = Annotated[int, Meta(ge=1, le=LONG_MAX, extra_json_schema=_LONG)]
OrMinusOne = Annotated[int, Meta(ge=-1, le=LONG_MAX, extra_json_schema=_LONG)]
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_WRONG: Final = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
"""Pattern of msgspec's errors: the fault and its place."""
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors that msgspec raises for content of a stranger's choice."""
_MAY_BE_LONG: Final = re.compile(rb"[0-9]{19}|[0-9][eE]")
_SHOWN: Final = 200
PROBLEM_TYPE: Final = "application/problem+json"
BLANK: Final = "about:blank"
"""Problem type that adds nothing to the status."""
_KINDS: Final[Mapping[str, type[NotThere]]] = {
    "urn:podkeeper:problem:not-decommissioned": NotDecommissioned,
    "urn:podkeeper:problem:no-cookie": NoCookie,
}


class Body(msgspec.Struct, rename="camel"):
    """An object of the API. The docstring of each field describes the member."""


class Query(Body, rename={}, omit_defaults=True):
    """The parameters of a path, called as they are here. A flag is true if its text is `true`, and false otherwise, as
    in the reference."""


Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True, slots=True)
class Route(Generic[T_co]):
    """One method of one path. `answer`: what its JSON is; `NOTHING`: it is a text. `body`: what it takes, `str` for a
    text; None: no body is looked at."""

    method: str
    path: str
    answer: type[T_co]
    query: type[Query] = Query
    body: Any = None


def plain(value: Any) -> Any:
    """A body, or several, as lists, dicts and plain values: what `json.dumps` takes."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_mapping)


def _mapping(value: Any) -> dict[Any, Any]:
    """A mapping of another kind than dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is nothing that JSON knows")


def decode(text: bytes, kind: type[T]) -> T:
    """`ProtocolViolation`: it is not what the API promises; the message says what is wrong."""
    try:
        found = msgspec.json.decode(text, type=kind)
    except _UNREADABLE as error:
        raise ProtocolViolation(str(error)) from error
    if _MAY_BE_LONG.search(text) and not _fits(plain(found)):
        raise ProtocolViolation("it has a number that does not fit in 64 bits")
    return found


def _fits(value: Any) -> bool:
    if isinstance(value, int | float):
        return -LONG_MAX <= value <= LONG_MAX
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    return not isinstance(value, list | tuple) or all(map(_fits, value))


def requested(text: bytes, kind: type[T]) -> T:
    """Decode the body of a request; only blanks are an object without members.

    Raises `BadRequest`, which says in one line where it is wrong, how, and what is allowed there.
    """
    try:
        return msgspec.json.decode(text if text.strip() else b"{}", type=kind)
    except _UNREADABLE as error:
        raise BadRequest(_told(str(error), kind)) from error


def asked(given: Mapping[str, str], kind: type[Q]) -> Q:
    """The parameters of a request; those that are not known are ignored. `BadRequest` as of `requested`."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    values = {name: _value(name, given[name], of) for name, of in fields.items() if name in given}
    try:
        return msgspec.convert(values, kind)
    except _UNREADABLE as error:
        raise BadRequest(_told(str(error), kind, "the query")) from error


def _value(name: str, text: str, kind: Any) -> object:
    if kind is bool:
        return text == "true"
    if not _is_number(kind):
        return text
    if _NUMBER.fullmatch(text) is None:
        raise BadRequest(f"{name}={text[:100]}: must be a whole number")
    return int(text)


def _is_number(kind: Any) -> bool:
    return kind is int or any(map(_is_number, get_args(kind)))


def _told(error: str, kind: type, whole: str = "the body") -> str:
    if len(error) > 2 * _SHOWN:
        error = error[:_SHOWN] + error[-_SHOWN:]  # the caller chooses the length of names and values
    found = _WRONG.fullmatch(error)
    what, where = found.groups() if found is not None else (error, None)
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    may = ""
    if what.endswith("`") and " field `" in what:
        may = f"; its members are {', '.join(fields)}"
    elif "enum" in what and where:
        may = f"; it may be {', '.join(_choices(fields.get(re.split(r'[.[]', where)[0])))}"
    what = what[:_SHOWN] if what.startswith("JSON") else what[:1].lower() + what[1:_SHOWN]
    return f"{(where or whole)[:_SHOWN]}: {what}{may}"


def _choices(kind: Any) -> Iterator[str]:
    """The values that a type of literals has, at whatever depth."""
    if get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for each in get_args(kind):
            yield from _choices(each)


class Problem(Body, kw_only=True):
    """The reason why a request was not carried out."""

    type: str = BLANK
    """Type of the problem; `about:blank`: it adds nothing to the status."""
    title: str = ""
    """The same for people, in few words."""
    status: int = 0
    """The HTTP status."""
    detail: str = ""
    """Fault, its object and the remedy, in one line."""
    refusal: str = ""
    """Reason why the last attempt to decommission this bookie ended, with `not-decommissioned`; empty: there was
    none."""


def problem_of(status: int, title: str, detail: str, error: Exception | None = None) -> Problem:
    """Return the problem for an answer. `error` determines the type, if it has one."""
    name = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), BLANK)
    refusal = error.refusal if isinstance(error, NotDecommissioned) else ""
    return Problem(type=name, title=title, status=status, detail=detail, refusal=refusal)


def error_of(problem: Problem) -> NotThere | None:
    """The error that a problem stands for; None: its type says nothing."""
    kind = _KINDS.get(problem.type)
    if kind is NotDecommissioned:
        return NotDecommissioned(problem.detail, problem.refusal)
    return kind(problem.detail) if kind is not None else None
