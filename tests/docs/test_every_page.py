"""Every page: its links lead somewhere, and the commands that it names exist with the options that it gives them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.docs.pages import commands
from tests.support.chart_files import ROOT
from tests.support.command_lines import resolve
from tests.support.markdown_links import broken_links

PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")}
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path) -> None:
    for line in commands(page):
        try:
            command, words = resolve(line)
        except IndexError:
            continue  # a group
        if command.name != "job":  # whose own options a test of jobs knows
            options = {option for each in command.params for option in [*each.opts, *each.secondary_opts]} | {"--help"}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, line


def test_commands_are_found() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 120


def test_a_command_that_is_not_there_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        resolve("bookie ledger no-such-command")
