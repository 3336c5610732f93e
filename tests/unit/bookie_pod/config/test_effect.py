"""Every key does what its documentation says, or says that it does nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bookie_client.placement.java_keys import PLACEMENT_KEYS
from bookie_pod.config.document import field_texts
from bookie_pod.config.keys import keys_of
from bookie_pod.config.load import load_config
from bookie_pod.config.model import sections

POD = Path(__file__).parents[4] / "bookie_pod"
CHECKED_ONLY = {
    "allowEphemeralPorts",
    "extraServerComponents",
}
"""Keys that count in the rules between keys alone."""


def unread(names: set[str]) -> set[str]:
    """Those that no code reads as attributes, but for the page about the keys and the rules between them."""
    left = set(names)
    for path in POD.rglob("*.py"):
        if path.name == "validate.py" and path.parent.name == "config":
            continue
        source = path.read_text(encoding="utf-8")
        if not left.isdisjoint(re.findall(r"\.\s*(\w+)", source)):  # it takes longer to see whether that is code
            left -= {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return left


def test_a_key_that_no_code_reads_is_declared_without_effect() -> None:
    declared = {
        field.name: key.name for _, section in sections() for field, key in keys_of(section) if not key.no_effect
    }
    assert {declared[name] for name in unread({*declared})} - PLACEMENT_KEYS == CHECKED_ONLY


def test_keys_without_effect_say_so_and_no_others_do() -> None:
    for _, section in sections():
        texts = field_texts(section)
        for field, declared in keys_of(section):
            says_so = "Has no effect" in texts[field.name]
            assert says_so == declared.no_effect, f"{section.__name__}.{field.name}: {texts[field.name]}"


def test_a_wish_that_stays_unfulfilled_is_named_and_a_default_is_not() -> None:
    settings = {"journalReuseFiles": "true", "enableBusyWait": "false", "bookiePort": "1"}
    config = load_config(environ={}, overrides=settings)
    assert config.ignored_keys == ("journalReuseFiles",)


def test_a_rate_under_the_other_throttle_is_named() -> None:
    both = {"compactionRateByEntries": "500", "compactionRateByBytes": "5000000"}
    assert load_config(environ={}, overrides=both).ignored_keys == ("compactionRateByEntries",)
    by_entries = load_config(environ={}, overrides={**both, "isThrottleByBytes": "false"})
    assert by_entries.ignored_keys == ("compactionRateByBytes",)
    assert load_config(environ={}, overrides={"compactionRate": "500"}).ignored_keys == ("compactionRateByEntries",)


DB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
INTERLEAVED = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"


@pytest.mark.parametrize(
    ("wishes", "unfulfilled"),
    [
        ({"ledgerStorageClass": DB, "writeBufferSizeBytes": "4096"}, ["writeBufferSizeBytes"]),
        ({"writeBufferSizeBytes": "4096", "dbStorage_directIOEntryLogger": "false"}, []),
        ({"ledgerStorageClass": SORTED, "writeBufferSizeBytes": "4096"}, []),
        ({"ledgerStorageClass": SORTED, "flushInterval": "1000"}, ["flushInterval"]),
        ({"ledgerStorageClass": SORTED, "flushInterval": "1000", "entryLogPerLedgerEnabled": "true"}, []),
        ({"ledgerStorageClass": DB, "flushInterval": "1000"}, []),
        (
            {"ledgerStorageClass": SORTED, "dbStorage_directIOEntryLogger": "false"},
            ["dbStorage_directIOEntryLogger"],
        ),
        ({"ledgerStorageClass": SORTED, "dbStorage_maxThrottleTimeMs": "5"}, []),
        ({"ledgerStorageClass": DB, "entryLogPerLedgerEnabled": "true"}, ["entryLogPerLedgerEnabled"]),
        ({"ledgerStorageClass": DB, "skipListSizeLimit": "1000000"}, ["skipListSizeLimit"]),
        ({"ledgerStorageClass": DB, "skipListSizeLimit": "67108864"}, []),
        ({"ledgerStorageClass": SORTED, "skipListArenaMaxAllocSize": "1000"}, ["skipListArenaMaxAllocSize"]),
        ({"ledgerStorageClass": SORTED, "numOfMemtableFlushThreads": "3"}, ["numOfMemtableFlushThreads"]),
        (
            {
                "ledgerStorageClass": INTERLEAVED,
                "numOfMemtableFlushThreads": "3",
                "maximumNumberOfActiveEntryLogs": "9",
                "entryLogPerLedgerEnabled": "true",
            },
            ["numOfMemtableFlushThreads"],
        ),
        (
            {"prometheusStatsHttpAddress": "127.0.0.1", "prometheusStatsHttpPort": "9100"},
            ["prometheusStatsHttpAddress", "prometheusStatsHttpPort"],
        ),
        ({"prometheusStatsHttpEnable": "false"}, ["prometheusStatsHttpEnable"]),
        ({"httpServerEnabled": "false", "prometheusStatsHttpAddress": "127.0.0.1"}, []),
        ({"dlogRootPath": "/distributedlog"}, ["dlogRootPath"]),
    ],
    ids=str,
)
def test_a_key_that_another_one_makes_idle_is_named(wishes: dict[str, str], unfulfilled: list[str]) -> None:
    assert list(load_config(environ={}, overrides=wishes).ignored_keys) == unfulfilled
