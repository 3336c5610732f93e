"""JSON texts laid out as the reference does, which people and scripts (grep, cut) have got used to.

Most answers are those of Jackson: two blanks of indent for objects, arrays in one line, a blank on both sides of the
colon, control characters in upper-case hex. Only `server_config` is Gson's, with the colon right behind the key.

Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
INDENT: Final = "  "


def jackson(value: Any, indent: str = "") -> str:
    """A JSON value of plain types."""
    return _text(value, " : ", indent)


def gson(value: Mapping[str, Any]) -> str:
    """A JSON object of plain types."""
    return _text(value, ": ", "")


def quoted(text: str) -> str:
    """A JSON string."""
    # Half of a pair of surrogates is no character; UTF-8 cannot hold it.
    clean = text.encode("utf-8", "replace").decode() if not text.isascii() else text
    return f'"{_ESCAPED.sub(lambda found: _escape(found.group()), clean)}"'


def _escape(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def _text(value: Any, colon: str, indent: str) -> str:
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
        members = (f"{inner}{quoted(key)}{colon}{_text(item, colon, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if not value:
        return "[ ]"
    return "[ " + ", ".join(_text(item, colon, indent) for item in value) + " ]"
