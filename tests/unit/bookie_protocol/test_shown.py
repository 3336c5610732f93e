"""What is shown of texts that others chose."""

from __future__ import annotations

import codecs
import io

import pytest

from bookie_protocol.shown import LONGEST, moment, one_line, shown_uri, take_any_text, time_text


def test_one_line_is_short_and_does_nothing_to_a_terminal() -> None:
    told = one_line("no\n\x1b]0;title\x07 \u202eevil \udcff" + "x" * 1_000_000)
    assert (told.isprintable(), told.startswith("no "), len(told), told[-1]) == (True, True, LONGEST, "…")
    assert one_line(ValueError("two\n\twords")) == "two words"
    assert one_line("as long as may be", 17) == "as long as may be"


@pytest.mark.parametrize("ms", [-(2**63), 2**63 - 1, 10**400, 253_402_300_800_000])
def test_a_time_that_no_calendar_has_is_its_number(ms: int) -> None:
    assert moment(ms) is None
    assert time_text(ms) == f"{ms} ms since 1970"
    assert time_text(-1) == "1969-12-31 23:59:59 UTC"


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("utf-8", b"\xff\\ud800\xfe\xe2\x82\xac\n"),
        ("latin-1", b"\\udcff\\ud800\\udcfe\\u20ac\n"),
        ("ascii", b"\\udcff\\ud800\\udcfe\\u20ac\n"),
        ("utf-16-le", "\\udcff\\ud800\\udcfe\N{EURO SIGN}\n".encode("utf-16-le")),
    ],
)
def test_any_text_can_be_printed(encoding: str, printed: bytes) -> None:
    """A name of a file that is no text in UTF-8, what JSON may have, and what only UTF-8 has."""
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding, "strict")
    take_any_text(stream)
    print("\udcff\ud800\udcfe\N{EURO SIGN}", file=stream, flush=True)
    assert output.getvalue() == printed


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_of_what_cannot_be_encoded_a_run_is_answered_at_once(encoding: str) -> None:
    """With an answer for each character, each behind a look at the rest, a stranger's long name takes minutes."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    take_any_text(stream)
    run = "\udcff\ud800" * 500
    error = UnicodeEncodeError(encoding, f"a{run}b", 1, 1 + len(run), "not there")
    answer, goes_on_at = codecs.lookup_error(stream.errors)(error)
    assert goes_on_at == 1 + len(run)
    assert answer == (b"\xff\\ud800" * 500 if encoding == "utf-8" else "\\udcff\\ud800" * 500)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/path", "s3://bucket/path"),
        ("s3://KEY:S3CRET@bucket/path", "s3://...@bucket/path"),
        ("s3a://KEY:S3/CR@ET@bucket/path", "s3a://...@bucket/path"),
        ("s3://S3CRET@bucket", "s3://...@bucket"),
        ("s3://bucket/path?access_key=KEY&secret_key=S3CRET", "s3://bucket/path?..."),
        ("s3://KEY%3AS3CRET%40bucket/path%40x", "s3://...@bucket/path%40x"),
        ("KEY%3AS3CRET%40bucket", "...@bucket"),
        ("s3://bucket/path#S3CRET", "s3://bucket/path?..."),
        ("s3://KEY:S3CRET@bucket?secret=S3CRET", "s3://...@bucket?..."),
        ("s3://KEY:S3?CRET@bucket", "s3://..."),
        ("s3://bucket?token=S3@CRET", "s3://..."),
        ("s3:/KEY:S3CRET@bucket", "...@bucket"),
        ("S3CRET@bucket", "...@bucket"),
        ("file:///home/s3:/KEY:S3CRET@bucket", "file://...@bucket"),
        ("file://KEY:S3CRET@bucket", "file://...@bucket"),
        ("zk://user:S3CRET@h:2181/ledgers", "zk://...@h:2181/ledgers"),
        ("h:2181?token=S3CRET", "h:2181?..."),
        ("/data/a@b?c#d", "/data/a@b?c#d"),
        ("./a@b", "./a@b"),
        ("file:///data/a@b", "file:///data/a@b"),
        ("s3://bucket/\x1b[2J", "s3://bucket/\N{REPLACEMENT CHARACTER}[2J"),
        ("", ""),
    ],
)
def test_neither_login_nor_query_of_a_uri(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown
    assert "S3" not in shown_uri(uri)
    assert "CR" not in shown_uri(uri)
