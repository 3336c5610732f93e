"""Answers of others, made fit for pages: numbers that can be reckoned with, and texts and lists that are short.

A bookie may answer anything that JSON can say: whole numbers without end, megabytes of text, lists of 100,000. A page
that reckons with the first fails, and one that shows the others keeps the event loop for seconds. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from bookie_protocol.errors import ProtocolViolation

T = TypeVar("T")
NUMBER: Final = 2**63 - 1
TEXT: Final = 300
"""Characters of a text of a look, which is kept and shown on many pages."""
ITEMS: Final = 100
"""Items of a list of a look."""
PARTS: Final = 30_000
"""Values of an answer, all together."""


def number(value: int | float) -> int | float:
    """Return the number, or the nearest one that fits in 64 bits; 0 for what is not a number."""
    if value != value:
        return 0
    return value if -NUMBER <= value <= NUMBER else NUMBER if value > 0 else -NUMBER


def cut(text: str, longest: int = TEXT) -> str:
    """The text, or the beginning of a long one."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def reckonable(answer: T, *, is_ours: bool = False) -> T:
    """The answer with numbers that fit in 64 bits. Raises `ProtocolViolation`: it has more than `PARTS` values.

    `is_ours`: of this process or of a pod of ours, whose long lists are no attack; what is behind `PARTS` stays as it
    is.
    """
    found: T = _Walk(None, None, is_ours=is_ours).of(answer)
    return found


def short(answer: T) -> T:
    """The same, with the beginnings of its texts and lists only."""
    found: T = _Walk(TEXT, ITEMS, is_ours=False).of(answer)
    return found


class _Walk:
    def __init__(self, longest: int | None, items: int | None, *, is_ours: bool) -> None:
        self._longest = longest
        self._items = items
        self._is_ours = is_ours
        self._left = PARTS

    def of(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0 and self._is_ours:
            return value
        if self._left < 0:
            raise ProtocolViolation(f"the answer has more than {PARTS} values, which is too much for a page")
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return number(value)
        if isinstance(value, str):
            return value if self._longest is None else cut(value, self._longest)
        if isinstance(value, msgspec.Struct):
            names = value.__struct_fields__
            return msgspec.structs.replace(value, **{name: self.of(getattr(value, name)) for name in names})
        if isinstance(value, list | tuple):
            return type(value)(self.of(each) for each in value[: self._items])
        if isinstance(value, Mapping):
            return {self.of(key): self.of(each) for key, each in list(value.items())[: self._items]}
        return value
