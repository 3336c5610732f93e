"""docs/container.md: every command parses, every path is served, every key exists, the exit codes are ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.cli.main import cli
from bookie_pod.config.model import all_keys
from bookie_pod.server.http.routes import PROBES
from bookie_protocol.errors import ExitCode
from tests.docs.pages import operation_of
from tests.support.command_lines import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "container.md").read_text()
LINES = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")]
COMMANDS = [line for line in LINES if line.startswith("bookie ")]
CALLS = [line for line in LINES if line.startswith("curl ")]
ENVIRONMENT_ONLY = {"DATA_DIR"}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    command, words = resolve(line)
    command.make_context(command.name, words, parent=click.Context(cli))


@pytest.mark.parametrize("line", CALLS)
def test_calls_are_served(line: str) -> None:
    operation_of(line, RESOURCES)


def test_there_are_examples() -> None:
    assert (len(COMMANDS), len(CALLS)) == (3, 3)


def test_every_key_exists() -> None:
    variables = set(re.findall(r"\bBK_(\w+)", PAGE)) - ENVIRONMENT_ONLY
    named = set(re.findall(r"`([a-z]+(?:[A-Z]\w*)+)(?:=\w+)?`", PAGE)) - {"fsGroup"}
    assert variables
    assert named
    assert (variables | named) - set(all_keys()) == set()


def test_probes_are_served() -> None:
    rows = set(re.findall(r"^\| .* \| `(/\w+)` \|", PAGE, re.MULTILINE))
    assert rows == {"/healthz", "/readyz"}
    assert rows <= {resource.path for resource in PROBES}


def test_every_exit_code_is_explained() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)] == [int(code) for code in ExitCode]


def test_the_script_for_java_prints_zones() -> None:
    script = "\n".join(LINES[next(i for i, line in enumerate(LINES) if line.startswith("#!")) :][:2])
    hosts = ["events-bookie-zone-a-0.events-bookie.store.svc", "events-bookie-eu-west-1b-12.events-bookie"]
    done = subprocess.run(["/bin/sh", "-c", script, "sh", *hosts], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["/zone-a", "/eu-west-1b"]
