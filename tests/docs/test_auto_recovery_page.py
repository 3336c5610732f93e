"""docs/auto-recovery.md: every command parses, every key, metric and path that it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from bookie_pod.cli.main import cli
from bookie_pod.config.model import all_keys
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.replication_worker import ReplicationWorkerMetrics
from bookie_pod.server.http.admin.autorecovery import RESOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "auto-recovery.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("    ")]
KEYS = sorted(set(re.findall(r"`((?:auditor|lostBookie|repaired|autoRecovery)[A-Za-z]+)(?:=\w+)?`", PAGE)))
METRICS = sorted(set(re.findall(r"`((?:auditor|autorecovery|replication_worker)_[A-Z_]+)", PAGE)))
PATHS = sorted(set(re.findall(r"`(/api/v1/[a-z_/0-9]+)`", PAGE)))


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    command.make_context(command.name, words, parent=context)


def test_there_are_examples() -> None:
    assert len(COMMANDS) == 9
    assert len(KEYS) > 8
    assert len(METRICS) == 7
    assert PATHS == ["/api/v1/autorecovery/checks", "/api/v1/autorecovery/process"]


def test_keys_are_known() -> None:
    assert set(KEYS) <= all_keys().keys()


def test_metrics_are_exported() -> None:
    registry = Registry()

    def zero() -> int:
        return 0

    AuditorInstruments(registry, embedded=False).bind_levels(marked=zero, disabled=zero, no_auditor=zero)
    ReplicationWorkerMetrics(registry, embedded=False).bind_levels(
        running=zero, at_work=zero, waiting=zero, failing=zero, losing=zero, locks_not_released=zero
    )
    text = registry.render()
    for name in METRICS:
        assert re.search(rf"^{name}[ {{]", text, re.MULTILINE), name


def test_paths_are_served() -> None:
    assert set(PATHS) <= {resource.path for resource in RESOURCES}
