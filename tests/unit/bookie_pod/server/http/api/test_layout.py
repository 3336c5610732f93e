"""JSON as the reference lays it out."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.server.http.api.layout import gson, jackson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_it_is_json(value: object) -> None:
    assert json.loads(jackson(value)) == value


@given(st.dictionaries(st.text(), st.text()))
def test_so_is_the_other_layout(value: dict[str, str]) -> None:
    assert json.loads(gson(value)) == value


def test_nesting() -> None:
    assert jackson([{"a": [1, 2], "b": {}, "c": [{"d": None}]}, []]) == (
        '[ {\n  "a" : [ 1, 2 ],\n  "b" : { },\n  "c" : [ {\n    "d" : null\n  } ]\n}, [ ] ]'
    )


def test_half_a_character_becomes_a_question_mark() -> None:
    assert jackson("\ud800x").encode() == b'"?x"'
