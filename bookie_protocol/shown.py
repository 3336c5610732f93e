"""Texts that others chose, made fit to show in messages, logs and reports: file names, answers, URIs, errors of stores.

Pure; any thread.
"""

from __future__ import annotations

import codecs
import io
import re
from datetime import UTC, datetime
from typing import Final, TextIO

LONGEST: Final = 4000
"""Characters of a line for people."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_QUERY: Final = re.compile(r"[?#]")
_MARK: Final = re.compile(r"[@?#]")
_ENCODED_AT: Final = re.compile(r"^([^/?#]*)%40")


def one_line(text: object, longest: int = LONGEST) -> str:
    """One line of at most so many characters, that does nothing to a terminal."""
    words = " ".join(str(text)[: 2 * longest].split())
    line = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def moment(ms: int | None) -> datetime | None:
    """A time in ms since 1970; None also for one that no calendar has: ledgers and records say what they like."""
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_text(ms: int) -> str:
    """Format ms since 1970: `2026-03-01 12:00:00 UTC`; the number where no calendar has it."""
    found = moment(ms)
    return f"{ms} ms since 1970" if found is None else f"{found:%Y-%m-%d %H:%M:%S} UTC"


def take_any_text(stream: TextIO) -> None:
    """Let printing to the stream never fail: names of files are printed as they are, and other characters that its
    encoding does not know are escaped."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ANY_TEXT)


def _as_it_is_or_escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle an encoding error for the whole run: a handler of one character is called for each, after all of them
    were scanned again."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    run = error.object[error.start : error.end]
    if error.encoding != "utf-8":
        return run.encode("ascii", "backslashreplace").decode("ascii"), error.end
    return b"".join(map(_byte_or_escaped, run)), error.end


def _byte_or_escaped(character: str) -> bytes:
    """Return the byte, of a name that is no text."""
    is_byte = "\udc80" <= character <= "\udcff"
    return bytes((ord(character) - 0xDC00,)) if is_byte else character.encode("ascii", "backslashreplace")


_ANY_TEXT: Final = "podkeeper-any-text"
codecs.register_error(_ANY_TEXT, _as_it_is_or_escaped)


def shown_uri(uri: str) -> str:
    """The URI as a line, without its login and its query, each of which may be a secret: a login may be anything before
    the last @, a query anything behind the first ?. A path is shown as it is, if it cannot be a URI with a mistake."""
    found = _SCHEME.match(uri)
    scheme = "" if found is None else found[0]
    rest = _ENCODED_AT.sub(r"\1@", uri[len(scheme) :], count=1)
    before_marks = "".join(_MARK.split(rest)[:-1])
    if ":" not in before_marks and (scheme.lower() == "file://" or (not scheme and rest.startswith(("/", ".")))):
        return one_line(uri)
    head, mark, query = _partition(rest)
    if "@" in query:  # a login with such a sign in it, or a query: that cannot be decided
        return f"{scheme}..."
    _, at, place = head.rpartition("@")
    return one_line(f"{scheme}{'...@' if at else ''}{place}{'?...' if mark else ''}")


def _partition(rest: str) -> tuple[str, str, str]:
    found = _QUERY.search(rest)
    return (rest, "", "") if found is None else (rest[: found.start()], found[0], rest[found.end() :])
