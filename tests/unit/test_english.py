"""What the check of the English counts."""

from __future__ import annotations

import pytest

from tests.english.measure import NO_NOUN, NO_SENTENCE, PROSE, WORDS


@pytest.mark.parametrize("text", ["What is left.", "Whether it is there.", "Of a ledger.", "Nobody waits."])
def test_what_is_no_sentence(text: str) -> None:
    assert NO_SENTENCE.match(text)


@pytest.mark.parametrize("text", ["Return what is left.", "A client.", "The bookie syncs the log.", "Outcome of it."])
def test_what_is_a_sentence(text: str) -> None:
    assert not NO_SENTENCE.match(text)


def test_messages_that_say_is_no() -> None:
    assert NO_NOUN.search("f is no UTF-8 text")
    assert NO_NOUN.search("user x is none of saslJaasClientAllowedIds")
    assert not NO_NOUN.search("there is no bookie")
    assert not NO_NOUN.search("it is no longer registered")


def test_the_list_of_words() -> None:
    assert [found[0] for found in WORDS.finditer("Whoever stands there is told; nobody stands for it.")] == [
        "Whoever",
        "stands",
        "told",
        "nobody",
    ]


@pytest.mark.parametrize("pattern", ["the disk is gone", "ledger 5: no entry log", "cannot read {}", "it was closed"])
def test_patterns_that_are_prose(pattern: str) -> None:
    assert PROSE.search(pattern)


@pytest.mark.parametrize("pattern", ["entry 5 of ledger {}", "gone", r"/l1 .*gone", "no auditor", "size=much"])
def test_patterns_of_keys_and_terms(pattern: str) -> None:
    assert not PROSE.search(pattern)
