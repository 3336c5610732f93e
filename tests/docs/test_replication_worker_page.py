"""docs/replication-worker.md: commands and paths exist, so do keys and phases; metrics are exported under these names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from bookie_pod.autorecovery.worker.progress import Phase
from bookie_pod.cli.main import cli
from bookie_pod.config.model import all_keys
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.replication_worker import ReplicationWorkerMetrics
from bookie_pod.server.http.admin.routes import CLUSTER
from bookie_protocol.errors import BookieUnavailable

PAGE = (Path(__file__).parents[2] / "docs" / "replication-worker.md").read_text()
LINES = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")]
COMMANDS = [line for line in LINES if line.startswith("bookie ")]
CALLS = [line for line in LINES if line.startswith("curl ")]
INLINE = [text.removesuffix(" LEDGER") for text in re.findall(r"`(bookie [a-z][^`]*)`", PAGE)]


def test_there_is_nothing_else_in_the_examples() -> None:
    assert len(COMMANDS) >= 6
    assert sorted(COMMANDS + CALLS) == sorted(LINES)


@pytest.mark.parametrize("line", [*COMMANDS, *INLINE])
def test_commands_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("line", CALLS)
def test_paths_are_served_without_a_bookie(line: str) -> None:
    assert urlsplit(shlex.split(line)[-1]).path in {resource.path for resource in CLUSTER}


def test_every_phase_is_told() -> None:
    told = set(re.findall(r"`([a-z ]+)`", PAGE))
    assert {phase.value for phase in Phase} <= told


def test_keys_exist() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and "_" not in line.split("|")[1]]
    names = {name for row in rows for name in re.findall(r"`([a-z][a-zA-Z]+[A-Z][a-zA-Z]+)`", row)}
    assert len(names) >= 7
    assert names <= set(all_keys())


def test_metrics_are_exported_under_these_names() -> None:
    registry = Registry()
    worker = ReplicationWorkerMetrics(registry, embedded=False)
    nothing = dict.fromkeys(("running", "at_work", "waiting", "failing", "losing", "locks_not_released"), lambda: 0.0)
    worker.bind_levels(**nothing)
    worker.failed_with(BookieUnavailable("no answer"))
    auditor = AuditorInstruments(registry, embedded=False)
    auditor.bind_levels(marked=lambda: 0.0, disabled=lambda: 0.0, no_auditor=lambda: 0.0)
    exported = {line.split()[2] for line in registry.render().splitlines() if line.startswith("# TYPE")}
    told = set(re.findall(r"`((?:autorecovery|replication_worker)_\w*[a-zA-Z]\w*)`", PAGE))
    assert told <= exported
    assert {name for name in exported if name.startswith("replication_worker_")} <= told, (
        "a metric that nobody explains"
    )
