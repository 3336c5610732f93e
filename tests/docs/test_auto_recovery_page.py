"""docs/auto-recovery.md: every key, metric, phase and path that it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bookie_pod.admin.routes import CLUSTER
from bookie_pod.autorecovery.worker.progress import Phase
from bookie_pod.config.model import all_keys
from bookie_pod.metrics.autorecovery import AuditorInstruments, ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import BookieUnavailable

PAGE = (Path(__file__).parents[2] / "docs" / "auto-recovery.md").read_text()
LINES = [line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("    ")]
COMMANDS = [line for line in LINES if line.startswith("bookie ")]
CALLS = [line for line in LINES if line.startswith("curl ")]
KEY = (
    r"`((?:auditor|lostBookie|repaired|autoRecovery|replication[A-Z]|openLedger|lockRelease|ensemble)[A-Za-z]+)"
    r"(?:=\w+)?`"
)
KEYS = sorted(set(re.findall(KEY, PAGE)))
METRICS = set(re.findall(r"`((?:auditor|autorecovery|replication_worker)_\w*[A-Za-z])[`{]", PAGE))
PATHS = sorted(set(re.findall(r"`(/api/v1/[a-z_/0-9]+)`", PAGE)))


def test_there_is_nothing_else_in_the_examples() -> None:
    assert len(COMMANDS) > 10
    assert len(KEYS) > 14
    assert len(METRICS) > 7
    assert len(PATHS) > 2
    assert sorted(COMMANDS + CALLS) == sorted(LINES)


@pytest.mark.parametrize("line", CALLS)
def test_calls_are_served_without_a_bookie(line: str) -> None:
    assert urlsplit(shlex.split(line)[-1]).path in {resource.path for resource in CLUSTER}


def test_paths_are_served() -> None:
    assert set(PATHS) <= {resource.path for resource in CLUSTER}


def test_keys_are_known() -> None:
    assert set(KEYS) <= all_keys().keys()


def test_every_phase_is_told() -> None:
    assert {phase.value for phase in Phase} <= set(re.findall(r"`([a-z ]+)`", PAGE))


def test_metrics_are_exported() -> None:
    registry = Registry()
    worker = ReplicationWorkerMetrics(registry, embedded=False)
    levels = (
        *("running", "at_work", "waiting", "failing", "losing", "locks_not_released"),
        *("rounds_without_an_answer", "rate_limit"),
    )
    nothing = dict.fromkeys(levels, lambda: 0.0)
    worker.bind_levels(**nothing)
    worker.failed_with(BookieUnavailable("no answer"))
    auditor = AuditorInstruments(registry, embedded=False)
    auditor.bind_levels(marked=lambda: 0.0, disabled=lambda: 0.0, no_auditor=lambda: 0.0)
    levels = dict.fromkeys(("under_way", "ledgers_left", "bytes_left", "blocked", "updated_ms"), lambda: 0.0)
    auditor.bind_decommissions(**levels)
    exported = {line.split()[2] for line in registry.render().splitlines() if line.startswith("# TYPE")}
    assert exported >= METRICS
