"""Reading the text of one key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.config.keys import BadValueError, Key, keys_of, parse, render
from bookie_pod.config.model import all_keys, sections


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("int", " 42 ", 42),
        ("int", "-1", -1),
        ("float", "0.25", 0.25),
        ("float", "1e-3", 0.001),
        ("bool", "True", True),
        ("bool", "no", False),
        ("str", "x", "x"),
        ("str | None", "", None),
        ("str | None", "x", "x"),
        ("tuple[str, ...]", " /a , /b ,", ("/a", "/b")),
        ("tuple[str, ...]", "", ()),
    ],
)
def test_text_becomes_value(annotation: str, text: str, value: object) -> None:
    assert parse(Key("k", None), annotation, text) == value


@pytest.mark.parametrize(
    ("annotation", "text", "rule"),
    [
        ("int", "1.5", "number"),
        ("int", "1_000", "number"),
        ("int", "", "number"),
        ("int", "\u0661", "number"),
        ("int", "99999999999999999999", "number"),
        ("float", "nan", "number"),
        ("float", "inf", "number"),
        ("bool", "1", "false"),
        ("str", " ", "empty"),
        ("str", "${x}/y", "expanded"),
        ("tuple[str, ...]", "/a\\,b,/c", "comma"),
    ],
)
def test_bad_text_is_refused_with_the_rule(annotation: str, text: str, rule: str) -> None:
    with pytest.raises(BadValueError, match=rule):
        parse(Key("k", None), annotation, text)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (Key("k", 0, at_least=1), "1", "0"),
        (Key("k", 0, at_most=1), "1", "2"),
        (Key("k", 0, above=1), "2", "1"),
        (Key("k", 0, below=1), "0", "1"),
    ],
)
def test_limits(key: Key, good: str, bad: str) -> None:
    assert parse(key, "int", good) == int(good)
    with pytest.raises(BadValueError):
        parse(key, "int", bad)


def test_every_default_obeys_its_own_limits() -> None:
    for _, section in sections():
        for field, declared in keys_of(section):
            assert parse(declared, str(field.type), render(declared.default)) == field.default, declared.name
            assert declared.shown(field.default) == render(declared.default)


def test_every_key_is_declared_once_and_has_a_readable_type() -> None:
    known = all_keys()
    assert len(known) > 200
    for section_name, field_name, annotation, declared in known.values():
        assert annotation in ("int", "float", "bool", "str", "str | None", "tuple[str, ...]")
        assert hasattr(dict(sections())[section_name](), field_name), declared.name


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_numbers_survive_rendering(number: int) -> None:
    assert parse(Key("k", 0), "int", render(number)) == number
