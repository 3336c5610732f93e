"""What the JSON of the admin API is made of, and what a path answers.

Invariants
- A member that is not known is ignored, so that newer pods may tell more. One that older pods did not tell has a
  default; any other that is missing, or of another type, makes the whole body unreadable: it is never taken for zero.
- A member is called in JSON as it is here, in camel case, unless its field says otherwise.

Any thread, once they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from bookie_protocol.errors import ProtocolViolation

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
API: Final = "/api/v1"
NOTHING: Final = type(None)


class Body(msgspec.Struct, rename="camel"):
    """An object of the API. The docstring of each field describes the member."""


@dataclass(frozen=True, slots=True)
class Route(Generic[T_co]):
    """One method of one path. `answer`: what its JSON is; `NOTHING`: no program reads it."""

    method: str
    path: str
    answer: type[T_co]


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
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolViolation(f"{error}: {text[:80]!r}") from error
