"""What the operator knows of the bookies' keys is what the bookies declare."""

from __future__ import annotations

import re
from pathlib import Path

from bookie_operator.crds.config_keys import (
    RESERVED,
    dynamic_part,
    is_ignored,
    known_keys,
    nearest,
    static_part,
)
from bookie_pod.config import load
from bookie_pod.config.keys import BadValueError, parse
from bookie_pod.config.load import read_config
from bookie_pod.config.model import all_keys
from tests.support import config_keys

_DOCS = Path(__file__).parents[4] / "docs"


def test_the_file_is_what_the_bookies_declare() -> None:
    assert config_keys.FILE.read_text(encoding="utf-8") == config_keys.text(), (
        "run `python -m tests.support.config_keys`"
    )


def test_dynamic_keys_are_those_that_the_admin_api_promises() -> None:
    page = (_DOCS / "http-api.md").read_text(encoding="utf-8")
    (promise,) = re.findall(r"These count at once:(.*?)from the next pass on", page, re.DOTALL)
    assert set(re.findall(r"`([A-Za-z]+)`", promise)) == config_keys.DYNAMIC


def test_reserved_keys_are_keys() -> None:
    assert set(RESERVED) <= set(all_keys())


def test_every_name_is_known_and_what_is_ignored_is_not_unknown() -> None:
    assert set(known_keys()) == set(all_keys())
    assert is_ignored("dlog.anything")
    assert is_ignored("addEntryTimeoutSec")
    assert not is_ignored("gcWaitTime")


def test_the_nearest_name() -> None:
    assert nearest("gcWaitTimes") == "gcWaitTime"
    assert nearest("JOURNALMAXSIZEMB") == "journalMaxSizeMB"
    assert nearest("zzzz") is None


def test_what_needs_a_restart_and_what_does_not() -> None:
    config = {"compactionRate": "5", "gcWaitTime": "1000", "journalMaxSizeMB": "64", "unknown": "x"}
    assert dynamic_part(config) == {"compactionRateByEntries": "5", "gcWaitTime": "1000"}
    assert static_part(config) == {"journalMaxSizeMB": "64", "unknown": "x"}


_DECLARED = all_keys()
_TEXTS = [
    "",
    " ",
    "0",
    "1",
    "-1",
    "7",
    "0.5",
    "1e3",
    "true",
    "no",
    "maybe",
    "text",
    "a,b",
    "${x}",
    str(2**31),
    "9" * 25,
]


def test_a_value_is_judged_as_by_the_bookie() -> None:
    """The same verdict on each text, as far as one key alone decides."""
    for name, key in known_keys().items():
        for text in [*_TEXTS, *key.choices, *(choice.rpartition(".")[2] for choice in key.choices)]:
            assert bool(key.fault(text)) == _refused_by_the_bookie(name, text), f"{name}={text!r}: {key.fault(text)}"


def _refused_by_the_bookie(name: str, text: str) -> bool:
    _, _, annotation, declared = _DECLARED[name]
    if not text.strip():
        return False
    try:
        parse(declared, annotation, load._spelled_out(declared, text))
    except BadValueError:
        return True
    return False


def test_one_value_by_the_whole_way() -> None:
    assert read_config(None, {}, {"gcWaitTime": "soon"}).problems
    assert known_keys()["gcWaitTime"].fault("soon") == "must be a whole number"
