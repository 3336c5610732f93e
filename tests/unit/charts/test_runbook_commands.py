"""Commands in the runbooks are commands that there are, with options that they have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from bookie_pod.cli.main import cli
from tests.support.chart_files import ROOT, RUNBOOKS

PAGES = [*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs" / "operator.md"]
_IN_TEXT = re.compile(r"`(bookie [a-z][^`]*)`")
_IN_POD = re.compile(r"^ {4}.*-- (bookie [^|\n]*)", re.MULTILINE)


def commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [*_IN_TEXT.findall(text), *_IN_POD.findall(text)]


def resolve(words: list[str]) -> None:
    """Raises AssertionError for a command or an option that is not there."""
    context = click.Context(cli, info_name="bookie")
    command: click.Command = cli
    while isinstance(command, click.Group):
        if not words:
            return  # a group is spoken of
        found = command.get_command(context, words[0])
        assert found is not None, f"`{context.command_path}` has no command {words[0]}"
        context = click.Context(found, info_name=words[0], parent=context)
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert given <= known, f"`{context.command_path}` has no {sorted(given - known)}"


_LINE_IN_POD = re.compile(r"^ {4}kubectl .*exec .* -- (.*)$", re.MULTILINE)
_PATH = re.compile(r"(?<![\w/:.])/[a-z][\w./*-]*")
OF_EVERY_SYSTEM = ("/proc/", "/dev/", "/sys/")
MINIMAL = ROOT / "tests" / "unit" / "bookie_operator" / "builders" / "golden" / "minimal.yaml"


def paths(page: Path) -> set[str]:
    """Those of files in a pod that the page's commands name."""
    lines = _LINE_IN_POD.findall(page.read_text(encoding="utf-8"))
    return {path for line in lines for path in _PATH.findall(line) if not path.startswith(OF_EVERY_SYSTEM)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_are_where_the_operator_mounts_volumes(page: Path) -> None:
    mounts = set(re.findall(r"mountPath: (\S+)", MINIMAL.read_text(encoding="utf-8")))
    for path in paths(page):
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path


def test_paths_are_found() -> None:
    assert set().union(*map(paths, PAGES)) >= {"/data/journal-0/current"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_exist(page: Path):
    for command in commands(page):
        program, *words = shlex.split(command)
        assert program == "bookie"
        resolve(words)


def test_commands_are_found_and_judged():
    assert sum(len(commands(page)) for page in PAGES) > 30
    with pytest.raises(AssertionError, match="command"):
        resolve(["cluster", "heal"])
    with pytest.raises(AssertionError, match="has no"):
        resolve(["cluster", "bookies", "--no-such-option"])
