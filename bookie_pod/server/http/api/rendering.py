"""JSON texts of answers, laid out as the reference does, which people and scripts (grep, cut) have got used to.

Most answers are those of Jackson: two blanks of indent for objects, arrays in one line, a blank on both sides of the
colon, control characters in upper-case hex. Only `server_config` is Gson's, with the colon right behind the key.

Strangers choose how much the metadata service holds, and so how long an answer about it takes. So the event loop lays
out `SMALL` values of an answer at most; a larger one is laid out on a thread, one answer at a time (`Renderer`).

Threads: the functions any; `Renderer` the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bookie_protocol.admin_api.bodies import plain
from bookie_protocol.aside import Aside

SMALL: Final = 2_000
"""Values of an answer that take about a millisecond."""
INDENT: Final = "  "
_CHARACTERS: Final = 64
"""Characters that count as one value."""
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class Renderer:
    """The texts of the answers to one kind of callers of a server."""

    def __init__(self) -> None:
        self._aside = Aside()

    async def text(self, value: Any, *, spaced: bool = True, indent: str = "") -> str:
        """Lay out bodies of the admin API, lists and mappings of them, and plain values."""

        def made() -> str:
            return jackson(plain(value), indent) if spaced else gson(plain(value))

        return made() if is_small(value) else await self._aside.run(made)


def jackson(value: Any, indent: str = "") -> str:
    """A JSON value of plain types."""
    return _laid_out(value, " : ", indent)


def gson(value: Mapping[str, Any]) -> str:
    """A JSON object of plain types."""
    return _laid_out(value, ": ", "")


def quoted(text: str) -> str:
    """A JSON string."""
    # Half of a pair of surrogates is no character; UTF-8 cannot hold it.
    clean = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return f'"{_ESCAPED.sub(lambda found: _escape(found.group()), clean)}"'


def is_small(value: Any) -> bool:
    """Return True if the value has `SMALL` values in it at most. It is looked at no further than that."""
    left, waiting = SMALL, [value]
    while waiting and left >= 0:
        each = waiting.pop()
        left -= 1
        if isinstance(each, str):
            left -= len(each) // _CHARACTERS
        elif isinstance(each, msgspec.Struct):
            waiting += [getattr(each, name) for name in each.__struct_fields__]
        elif isinstance(each, Mapping):
            left -= len(each)
            if left >= 0:
                waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            if len(each) > left:
                return False
            waiting += each
        elif not isinstance(each, int | float | None | msgspec.UnsetType):
            return False  # it may hold any number of others
    return left >= 0


def _escape(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def _laid_out(value: Any, colon: str, indent: str) -> str:
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = indent + INDENT
        members = (f"{inner}{quoted(key)}{colon}{_laid_out(item, colon, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if not value:
        return "[ ]"
    return "[ " + ", ".join(_laid_out(item, colon, indent) for item in value) + " ]"
