"""Metrics of the auditor: the reference's names, and levels that it lacks."""

from __future__ import annotations

import pytest

from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry

SUMMARIES = (
    "NUM_UNDER_REPLICATED_LEDGERS",
    "UNDER_REPLICATED_LEDGERS_TOTAL_SIZE",
    "URL_PUBLISH_TIME_FOR_LOST_BOOKIE",
    "BOOKIE_TO_LEDGERS_MAP_CREATION_TIME",
    "AUDIT_BOOKIES_TIME",
    "CHECK_ALL_LEDGERS_TIME",
    "PLACEMENT_POLICY_CHECK_TIME",
    "REPLICAS_CHECK_TIME",
    "NUM_FRAGMENTS_PER_LEDGER",
    "NUM_BOOKIES_PER_LEDGER",
)
COUNTERS = (
    "election_attempts",
    "NUM_LEDGERS_CHECKED",
    "NUM_BOOKIE_AUDITS_DELAYED",
    "NUM_DELAYED_BOOKIE_AUDITS_CANCELLED",
    "NUM_SKIPPING_CHECK_TASK_TIMES",
)
GAUGES = (
    "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
    "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
    "NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD",
    "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
    "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
    "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
)


@pytest.mark.parametrize(("embedded", "prefix"), [(False, "auditor"), (True, "replication_auditor")])
def test_names_and_types(embedded: bool, prefix: str) -> None:
    registry = Registry()
    AuditorInstruments(registry, embedded=embedded)
    text = registry.render()
    for kind, names in (("summary", SUMMARIES), ("counter", COUNTERS), ("gauge", GAUGES)):
        for name in names:
            assert f"# TYPE {prefix}_{name} {kind}\n" in text, name


def test_what_runs_leave() -> None:
    registry = Registry()
    metrics = AuditorInstruments(registry, embedded=False)
    metrics.bind_levels(marked=lambda: 3, disabled=lambda: 0, no_auditor=lambda: 1)
    metrics.audited(120.0, success=True, marked=4, nbytes=1000, publish_ms=20.0)
    metrics.audited(80.0, success=False)
    metrics.check_ran("replicas", 5.0, success=True)
    metrics.check_finished("replicas", 99.0, {"short_no_copy": 2, "marked": 1, "ledgers": 7})
    lines = registry.render().splitlines()
    for line in (
        "autorecovery_UNDER_REPLICATED_LEDGERS 3",
        "autorecovery_DISABLED 0",
        "autorecovery_NO_AUDITOR 1",
        'auditor_AUDIT_BOOKIES_TIME_count{success="true"} 1',
        'auditor_AUDIT_BOOKIES_TIME_count{success="false"} 1',
        'auditor_NUM_UNDER_REPLICATED_LEDGERS_count{success="true"} 2',
        'auditor_NUM_UNDER_REPLICATED_LEDGERS_sum{success="true"} 5.0',
        "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY 2",
        "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY 0",
        'auditor_LAST_RUN_TIMESTAMP_MS{check="replicas"} 99.0',
        'auditor_LAST_RUN_TIMESTAMP_MS{check="ledgers"} NaN',
    ):
        assert line in lines, line


def test_levels_of_decommissions() -> None:
    registry = Registry()
    AuditorInstruments(registry, embedded=True).bind_decommissions(
        under_way=lambda: 2, ledgers_left=lambda: 7, bytes_left=lambda: 900, blocked=lambda: 1, updated_ms=lambda: 5
    )
    lines = registry.render().splitlines()
    for line in (
        "autorecovery_DECOMMISSIONS 2",
        "autorecovery_DECOMMISSION_LEDGERS_LEFT 7",
        "autorecovery_DECOMMISSION_BYTES_LEFT 900",
        "autorecovery_DECOMMISSION_BLOCKED_LEDGERS 1",
        "autorecovery_DECOMMISSION_LAST_UPDATE_TIMESTAMP_MS 5",
    ):
        assert line in lines, line
