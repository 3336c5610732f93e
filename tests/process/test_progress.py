"""Progress of long commands: bars on a terminal, gone at the end; elsewhere plain lines and nothing drawn."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.support.standalone_command import BOOKIE, StandaloneCommand
from tests.support.terminal import run_on_terminal

ESCAPE = b"\x1b["
SHOW_CURSOR, HIDE_CURSOR, ERASE_LINE = b"\x1b[?25h", b"\x1b[?25l", b"\x1b[2K"
LINES = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with StandaloneCommand(tmp_path_factory.mktemp("standalone") / "data") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def environment(cluster):
    return {**os.environ, "BK_metadataServiceUri": cluster.uri}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    file = tmp_path_factory.mktemp("input") / "lines"
    file.write_bytes(LINES)
    return str(file)


@pytest.fixture(scope="module")
def ledger(environment, lines):
    """A ledger to read: its id, as text."""
    written = subprocess.run(
        [BOOKIE, "ledger", "write", lines, "--json"], env=environment, capture_output=True, timeout=60, check=True
    )
    (found,) = re.findall(rb'"ledger_id": (\d+)', written.stdout)
    return found.decode()


@pytest.fixture(params=["write", "read", "count"])
def command(request, lines, ledger):
    """A long command, what its bar says, and all of its standard output, as a pattern."""
    return {
        "write": ([BOOKIE, "ledger", "write", lines], b"writing", rb"\d+\n"),
        "read": ([BOOKIE, "ledger", "read", ledger], b"reading", LINES),
        "count": ([BOOKIE, "cluster", "status", "--ledgers"], b"counting ledgers", rb"(?s).*\d closed.*"),
    }[request.param]


def test_a_terminal_shows_a_bar_that_is_gone_at_the_end(command, environment):
    arguments, text, expected = command
    drawn = run_on_terminal(arguments, environment)
    assert drawn.code == 0, drawn.terminal
    assert text in drawn.terminal
    assert HIDE_CURSOR in drawn.terminal
    assert drawn.terminal.rindex(text) < drawn.terminal.rindex(ERASE_LINE)
    assert drawn.terminal.rindex(HIDE_CURSOR) < drawn.terminal.rindex(SHOW_CURSOR)
    assert re.fullmatch(expected, drawn.output)
    assert ESCAPE not in drawn.output


def test_elsewhere_nothing_is_drawn(command, environment):
    arguments, _, expected = command
    ran = subprocess.run(arguments, env=environment, capture_output=True, timeout=60, check=True)
    assert ESCAPE not in ran.stdout
    assert ran.stderr == b""
    assert re.fullmatch(expected, ran.stdout)


def test_an_error_on_a_terminal_leaves_one_plain_line_and_the_cursor(environment):
    drawn = run_on_terminal([BOOKIE, "ledger", "read", "987654321"], environment)
    assert drawn.code != 0
    assert b"987654321" in drawn.terminal
    assert drawn.terminal.rfind(HIDE_CURSOR) <= drawn.terminal.rfind(SHOW_CURSOR)
