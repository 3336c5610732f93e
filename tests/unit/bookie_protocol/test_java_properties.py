"""The Java properties format."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.java_properties import MalformedPropertiesError, Property, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("a:b", [("a", "b", 1)]),
        ("a b", [("a", "b", 1)]),
        ("a = b", [("a", "b", 1)]),
        ("a\t:\tb c ", [("a", "b c ", 1)]),
        ("  a=b", [("a", "b", 1)]),
        ("a", [("a", "", 1)]),
        ("a=", [("a", "", 1)]),
        ("=b", [("", "b", 1)]),
        ("a==b", [("a", "=b", 1)]),
        ("a = = b", [("a", "= b", 1)]),
        ("# a=b\n! c=d\n\n  # e\nf=g", [("f", "g", 5)]),
        ("a=1\r\nb=2\rc=3\n", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", [("a", "1,2,3", 1), ("b", "4", 4)]),
        ("a=1\\\\\nb=2", [("a", "1\\", 1), ("b", "2", 2)]),
        ("# comment \\\na=1", [("a", "1", 2)]),
        ("a=1\\\n# still the value", [("a", "1# still the value", 1)]),
        ("a=1\\", [("a", "1", 1)]),
        ("\\\n# a=1\nb=2", [("b", "2", 3)]),
        ("a\\=b=c", [("a=b", "c", 1)]),
        ("a\\ b c", [("a b", "c", 1)]),
        ("a\\:b:c", [("a:b", "c", 1)]),
        ("a=x\\ty\\nz\\u0041\\q", [("a", "x\ty\nzAq", 1)]),
        ("\ufeffa=b", [("a", "b", 1)]),
        ("a=b\na=c", [("a", "b", 1), ("a", "c", 2)]),
    ],
)
def test_format(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert parse(text) == [Property(*each) for each in expected]


@pytest.mark.parametrize("text", ["x=1\na=\\u12", "x=1\na=\\uzzzz", "x=1\na=\\u"])
def test_malformed_escape_names_its_line(text: str) -> None:
    with pytest.raises(MalformedPropertiesError) as raised:
        parse(text)
    assert raised.value.line == 2


def _escape(text: str, is_key: bool) -> str:
    escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or c in "\\\x85\u2028\u2029" else c for c in text)
    return re.sub(r"[=: #!]", r"\\\g<0>", escaped) if is_key else re.sub(r"^ ", r"\\ ", escaped)


_TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",)), max_size=20)


@given(st.lists(st.tuples(_TEXT.filter(bool), _TEXT), max_size=8))
def test_what_is_written_is_read(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{_escape(key, True)}={_escape(value, False)}" for key, value in pairs)
    assert [(p.key, p.value) for p in parse(text)] == pairs


@given(st.text(st.sampled_from("ab=: \t\f\\#!\r\nu0041,\u00e9"), max_size=200))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    lines = len(re.split(r"\r\n|\r|\n", text))
    try:
        found = [pair.line for pair in parse(text)]
    except MalformedPropertiesError as error:
        found = [error.line]
    assert all(1 <= line <= lines for line in found)
    assert found == sorted(set(found))
