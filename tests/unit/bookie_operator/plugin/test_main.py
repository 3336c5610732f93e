"""The command itself: what it costs before it does anything, and what it can print."""

from __future__ import annotations

import io
import subprocess
import sys

import click
import pytest

from bookie_operator.plugin.main import cli, main


def test_the_start_loads_nothing_heavy() -> None:
    """Not for `--help`, nor where the shell asks for the rest of a word."""
    heavy = ("aiohttp", "kubernetes", "pydantic", "rich", "structlog", "urllib3", "yaml")
    code = f"import sys, bookie_operator.plugin.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_command_ends_because_a_terminal_does_not_know_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "latin-1", "strict"))
    said = click.Command("said", callback=lambda: click.echo("cut\N{HORIZONTAL ELLIPSIS}"))
    monkeypatch.setitem(cli.commands, "said", said)
    with pytest.raises(SystemExit) as ended:
        main(["said"])
    assert (ended.value.code, output.getvalue()) == (0, b"cut\\u2026\n")
