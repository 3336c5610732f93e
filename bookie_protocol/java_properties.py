"""Java properties files, the format of Apache BookKeeper's `bk_server.conf`.

    line        = blank | comment | pair
    comment     = blanks ("#" | "!") anything                 a backslash at its end continues nothing
    pair        = blanks key [blanks] ["=" | ":"] [blanks] value
    key         = characters up to the first blank, "=" or ":" that no backslash precedes
    continued   = an odd number of backslashes at a line's end joins the next line, whose leading blanks go
    escapes     = \\t \\n \\r \\f \\uXXXX; any other escaped character is itself

Blanks are space, tab and form feed. A line ends at CR, LF or CR LF. The file is UTF-8 (a superset of what
Java's tools write, which escape everything else); a byte-order mark is skipped.

Invariants
- `parse` accepts every text except a malformed `\\u` escape, and reports the line where each pair starts,
  from 1.
- Nothing is lost: repeated keys are all returned, in order. What they mean is the caller's decision.

Source: docs/internals/bookie-behaviour.md, section 1; the format itself is that of
`java.util.Properties`. Pure functions; any thread may call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One pair of a properties file."""

    key: str
    value: str
    line: int
    """Line number where the pair starts, from 1."""


class MalformedPropertiesError(ValueError):
    """A `\\u` escape without four hexadecimal digits; `line` says where its pair starts."""

    def __init__(self, line: int) -> None:
        super().__init__("malformed \\u escape: four hexadecimal digits must follow")
        self.line = line


def parse(text: str) -> list[Property]:
    """Return all pairs of a properties file in order; raises `MalformedPropertiesError`."""
    return [_pair(line, logical) for line, logical in _logical_lines(text.removeprefix("\ufeff"))]


def line_of(key: str, value: str) -> str:
    """Return the line of a pair, with its end; `parse` reads it as it was."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\f", "\\f")
    return f"{key}=\\{escaped}\n" if escaped[:1] in (" ", "\t") else f"{key}={escaped}\n"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    parts: list[str] = []
    start = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        stripped = natural.lstrip(_BLANKS)
        if not parts:
            start = number
            if not stripped or stripped[0] in "#!":
                continue
        trailing = len(stripped) - len(stripped.rstrip("\\"))
        if trailing % 2:
            if parts or stripped != "\\":  # as in Java, a line starts again after a lone backslash
                parts.append(stripped[:-1])
            continue
        parts.append(stripped)
        yield start, "".join(parts)
        parts = []
    if any(parts):
        yield start, "".join(parts)


def _pair(line: int, logical: str) -> Property:
    match = _PAIR.fullmatch(logical)
    assert match is not None, "the pattern accepts every text"
    return Property(_unescape(match["key"], line), _unescape(match["value"], line), line)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise MalformedPropertiesError(line)
        return _NAMED.get(escaped, escaped)

    return _ESCAPE.sub(replace, text)
