"""docs/decommission.md: every command that it shows parses, every path is served, every reason is one that is given."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path

import click
import pytest

from bookie_pod.admin.routes import CLUSTER
from bookie_pod.autorecovery.decommission import drain
from bookie_pod.autorecovery.decommission.state import Phase
from bookie_pod.cli.main import cli
from tests.docs.pages import operation_of
from tests.support.command_lines import resolve

PAGE = (Path(__file__).parents[2] / "docs" / "decommission.md").read_text()
LINES = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")]
COMMANDS = [line for line in LINES if line.startswith("bookie ")]
CALLS = [line for line in LINES if line.startswith("curl ")]


def test_there_is_nothing_else_in_the_examples() -> None:
    assert len(COMMANDS) > 15
    assert len(CALLS) > 8
    assert sorted(COMMANDS + CALLS) == sorted(LINES)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    command, words = resolve(line)
    made = command.make_context(command.name, words, parent=click.Context(cli))
    assert "bookie-7" in str(made.params) or "4711" in str(made.params)


@pytest.mark.parametrize("line", CALLS)
def test_calls_are_served(line: str) -> None:
    operation, words = operation_of(line, CLUSTER), shlex.split(line)
    assert (operation.route.body is not None) is ("-d" in words)
    if "-d" in words:
        assert set(json.loads(words[words.index("-d") + 1])) <= {"bookie_src", "delete_cookie", "accept_loss"}


def test_reasons_are_given_in_these_words() -> None:
    source = " ".join(inspect.getsource(drain).split())
    rows = [row for row in PAGE.splitlines() if row.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"^\| `([^`]+)`", row)]
    reasons = [text for text in quoted if text not in {phase.value for phase in Phase}]
    assert len(reasons) == 3
    for reason in reasons:
        longest = max(re.split(r"OPEN: |\d+|host-3|bookie-2", reason), key=len).strip()
        assert longest in source, reason


def test_every_phase_is_explained() -> None:
    for phase in Phase:
        assert f"| `{phase.value}` |" in PAGE or phase is Phase.UNDOING
