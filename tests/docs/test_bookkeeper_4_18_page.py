"""What docs/bookkeeper-4.18.md says of keys is so, and the tests that it names exist."""

from __future__ import annotations

import re

import pytest

from bookie_client.options import ClientOptions
from bookie_pod.config.ignored import is_ignored
from bookie_pod.config.keys import keys_of
from bookie_pod.config.load import load_config
from bookie_pod.config.model import sections
from tests.support.chart_files import ROOT

PAGE = (ROOT / "docs" / "bookkeeper-4.18.md").read_text(encoding="utf-8")
VALUES = {
    "readOnlyModeOnAnyDiskFullEnabled": "false",
    "maxReadsInProgressLimit": "10000",
    "httpServerTrustStorePassword": "secret",
    "serverTcpKeepIdle": "60",
    "serverTcpKeepIntvl": "10",
    "serverTcpKeepCnt": "3",
    "zkReplicationTaskRateLimit": "2.5",
    "bookieConnectionErrorQuarantineEnabled": "true",
    "ensemblePlacementPolicyOrderSlowBookies": "true",
}
BASE = {"journalDirectories": "/j", "ledgerDirectories": "/l", "metadataServiceUri": "zk+hierarchical://z:2181/ledgers"}


def test_every_key_of_the_page_is_tried() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE.partition("## Metrics")[0], re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_a_key_is_accepted_and_has_an_effect_unless_the_page_says_that_it_has_none(name: str) -> None:
    load_config(environ={}, overrides={**BASE, name: VALUES[name]})
    declared = {key.name: key for _, section in sections() for _, key in keys_of(section)}
    row = next(line for line in PAGE.splitlines() if f"`{name}`" in line)
    obeyed = name in declared and not declared[name].no_effect
    assert obeyed == ("without effect" not in row and "(clients)" not in row)
    assert obeyed or name in declared or is_ignored(name)


def test_the_defaults_are_those_of_the_page() -> None:
    config = load_config(environ={}, overrides=BASE)
    assert config.disks.read_only_on_any_disk_full
    assert config.network.max_reads_in_progress == 0
    network = config.network
    assert (network.tcp_keep_idle_seconds, network.tcp_keep_interval_seconds, network.tcp_keep_count) == (-1, -1, -1)
    assert not ClientOptions().quarantine_connection_errors


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).is_file()] == []
