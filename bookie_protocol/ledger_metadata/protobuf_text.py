"""Protobuf text format, as the metadata service's text nodes and the cookies use it.

Writing: one field a line in the order of field numbers, two spaces of indentation a level, double quotes,
every byte outside printable ASCII as an escape. Reading: any field order, either quote, all escapes of the
reference, unknown fields skipped.

Any thread.

Sources: reference metadata layout, section 1.3; reference on-disk formats, section 10.
"""

from __future__ import annotations

import re
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from bookie_protocol.errors import MetadataDamaged

MessageT = TypeVar("MessageT", bound=Message)

_MAX_TEXT: int = 64 * 1024 * 1024
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("abfnrtv\\'\"xXuU")


def format_text(message: Message) -> bytes:
    """The text form, ending in a newline."""
    return text_format.MessageToString(message, as_utf8=False).encode("ascii")


def _escape(match: re.Match[str]) -> str:
    """The library knows every escape but \\?, and lets unknown ones and octal ones above 255 pass with a warning."""
    what = match[1]
    if what == "?":
        return what
    if what in _KNOWN_ESCAPES or (what.isdigit() and what.isascii() and int(what, 8) < 256):
        return match[0]
    raise ValueError(f"unknown escape {match[0]}")


def checked_string(value: object, subject: str) -> str:
    """A string field of a binary message; the library hands out bytes that are no UTF-8 as they are."""
    if not isinstance(value, str):
        raise MetadataDamaged(f"{subject} holds a string that is not UTF-8")
    return value


def parse_text(data: bytes, message: MessageT, subject: str) -> MessageT:
    """Fill `message` from its text form and return it; `MetadataDamaged` names `subject`."""
    if len(data) > _MAX_TEXT:
        raise MetadataDamaged(f"{subject} is {len(data)} bytes long, more than any valid text")
    try:
        text = _ESCAPE.sub(_escape, data.decode("utf-8"))
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        # Its own words have the line, which may be that of the password, and whoever may only look is told this.
        where = f"line {error.GetLine()}, column {error.GetColumn()}"
        raise MetadataDamaged(f"{subject} is not valid protobuf text: {where}") from None
    except (ValueError, RecursionError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MetadataDamaged(f"{subject} is not valid protobuf text: {first_line}") from error
    if not message.IsInitialized():
        raise MetadataDamaged(f"{subject} lacks a required field")
    return message
