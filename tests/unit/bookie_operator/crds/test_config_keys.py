"""The operator takes the keys of a bookie from the bookie's own declarations."""

from __future__ import annotations

import re
from pathlib import Path

from bookie_operator.builders.settings import DYNAMIC_DEFAULTS
from bookie_operator.crds.config_keys import RESERVED, dynamic_part, fault, nearest, static_part, switched
from bookie_pod.config.model import all_keys

_DOCS = Path(__file__).parents[4] / "docs"


def test_dynamic_keys_are_those_that_the_admin_api_promises() -> None:
    page = (_DOCS / "http-api.md").read_text(encoding="utf-8")
    (promise,) = re.findall(r"These count at once:(.*?)from the next pass on", page, re.DOTALL)
    assert set(re.findall(r"`([A-Za-z]+)`", promise)) == set(DYNAMIC_DEFAULTS)


def test_reserved_keys_are_keys() -> None:
    assert set(RESERVED) <= set(all_keys())


def test_the_nearest_name() -> None:
    assert nearest("gcWaitTimes") == "gcWaitTime"
    assert nearest("JOURNALMAXSIZEMB") == "journalMaxSizeMB"
    assert nearest("zzzz") is None


def test_what_needs_a_restart_and_what_does_not() -> None:
    config = {"compactionRate": "5", "gcWaitTime": "1000", "journalMaxSizeMB": "64", "unknown": "x"}
    assert dynamic_part(config) == {"compactionRateByEntries": "5", "gcWaitTime": "1000"}
    assert static_part(config) == {"journalMaxSizeMB": "64", "unknown": "x"}


def test_a_value_is_judged_as_by_the_bookie() -> None:
    assert fault("gcWaitTime", "soon") == "must be a whole number"
    assert fault("minorCompactionThreshold", "1.5") == "must be at most 1.0"
    assert fault("ledgerStorageClass", "DbLedgerStorage") == fault("gcWaitTime", " ") == ""
    assert switched(" Yes ") is True
    assert switched("maybe") is None
