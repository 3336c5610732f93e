"""Files with bearer tokens, for the port that demands one and for those who show it: a token a line, with its roles.

    # a comment
    TOKEN
    TOKEN viewer,operator dashboards

Pure; any thread.
"""

from __future__ import annotations

from typing import Final

SHORTEST: Final = 16
"""Characters of a token that a port takes."""
MAX_BYTES: Final = 64 * 1024
"""Maximum bytes of a file. A reader reads one byte more, to notice a larger file."""


def token_lines(written: bytes) -> list[tuple[int, list[bytes]]]:
    """Return the words of each line that has a token, and the line's number, from 1 on.

    `ValueError`: more than `MAX_BYTES`. A part is not taken for the whole: its last line may have lost its roles, and
    would be one that allows everything.
    """
    if len(written) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    numbered = ((number, line.split()) for number, line in enumerate(written.splitlines(), start=1))
    return [(number, words) for number, words in numbered if words and not words[0].startswith(b"#")]


def first_token(written: bytes) -> str | None:
    """The token that is shown by those who have the whole file; None: there is none. `ValueError`: it is nothing that a
    header can hold, or the file is too long."""
    lines = token_lines(written)
    if not lines:
        return None
    token = lines[0][1][0].decode("ascii")
    if not token.isprintable():
        raise ValueError("its token has control characters, and a header holds printable ASCII text only")
    return token


def shown_token(written: bytes) -> str:
    """Return the token as `first_token` does; a token that is missing or too short is a `ValueError` too."""
    token = first_token(written)
    if token is None:
        raise ValueError("it holds no token; write one a line")
    if len(token) < SHORTEST:
        raise ValueError(f"line {token_lines(written)[0][0]}: {too_short(len(token))}")
    return token


def too_short(length: int) -> str:
    """Return the message for a token of `length` characters."""
    return f"the token has {length} characters; use at least {SHORTEST}"
