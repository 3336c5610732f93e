"""Files with bearer tokens: which one is shown."""

from __future__ import annotations

import pytest

from bookie_protocol.bearer_tokens import MAX_BYTES, first_token, token_lines


@pytest.mark.parametrize(
    ("written", "token"),
    [
        (b"one", "one"),
        (b"one admin ops\ntwo viewer\n", "one"),
        (b"\n# made in spring\n  one admin\r\ntwo\n", "one"),
        (b"# nothing else\n", None),
        (b"", None),
    ],
)
def test_the_first_token_is_shown_without_what_stands_around_it(written: bytes, token: str | None) -> None:
    assert first_token(written) == token


@pytest.mark.parametrize("written", [b"t\xc3\xb6ken", b"\xff\xfe", b"t\x00ken", b"t\x7f"])
def test_a_token_that_no_header_holds_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"(?i)ascii"):
        first_token(written)


def test_a_part_of_a_file_is_not_taken_for_it() -> None:
    assert len(token_lines(b"t viewer\n" * 7 + b"#" * (MAX_BYTES - 63))) == 7
    with pytest.raises(ValueError, match=str(MAX_BYTES)):
        token_lines(b"#" * (MAX_BYTES + 1))
