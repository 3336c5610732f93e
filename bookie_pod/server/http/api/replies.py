"""What a handler hands back. Immutable, but for the source of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain"


@dataclass(frozen=True, slots=True)
class Text:
    """A text as it stands."""

    body: str
    status: int = 200
    content_type: str | None = None
    """With its parameters; None: plain text in UTF-8."""


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
