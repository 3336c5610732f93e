"""docs/deletions.md: each section answers all questions, and the tests that it names exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import functions
from tests.support.chart_files import ROOT

PAGE = (ROOT / "docs" / "deletions.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
QUESTIONS = ["Known", "Fresh", "Who else", "Tests"]
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS)
def test_a_section_answers_every_question(text: str) -> None:
    assert re.findall(r"^- ([\w ]+):", text, re.MULTILINE) == QUESTIONS


@pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS)
def test_the_tests_that_it_names_exist(text: str) -> None:
    named = _TEST.findall(text.partition("- Tests:")[2])
    assert named
    for path, name in named:
        assert not name or name in functions(path), f"{path}::{name}"


def test_whatever_is_deleted_has_its_section() -> None:
    words = [
        "cookie",
        "claim",
        "ledger",
        "copy",
        "log",
        "journal",
        "archive",
        "cursor",
        "record",
        "mark",
        "stream",
        "segment",
    ]
    titles = [title.lower() for title in SECTIONS]
    assert [word for word in (*words, "shadow") if not any(word in title for title in titles)] == []
