"""What people read in a terminal is what strangers wrote, and nothing more."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from bookie_protocol.console import console


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[2001:db8:a:b:100::1]:3181 [bold]", "[2001:db8:a:b:100::1]:3181 [bold]"),
        ("\x1b]0;title\x1b\\ \x1b[31mred \u202eevil", "\ufffd]0;title\ufffd\\ \ufffd[31mred \ufffdevil"),
        ("\udcff of a name, \N{EURO SIGN}", "\udcff of a name, \N{EURO SIGN}"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_a_text_is_itself_and_does_nothing_to_a_terminal(
    text: str, shown: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    found = console()
    found.file = output = io.StringIO()
    assert found.is_terminal is is_terminal
    table = Table.grid()
    table.add_row(text)
    for each in (text, Text(text), table):
        found.print(each)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert lines == 3 * shown.splitlines()


def test_lines_are_folded_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert console().width > 10_000
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert console(stderr=True).width == 40
