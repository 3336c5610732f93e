"""Progress of long commands: bars on a terminal, gone at the end; elsewhere plain lines and nothing drawn."""

from __future__ import annotations

import os
import re

import pytest

from tests.support import warm
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.terminal import run_on_terminal

ESCAPE = b"\x1b["
SHOW_CURSOR, HIDE_CURSOR, ERASE_LINE = b"\x1b[?25h", b"\x1b[?25l", b"\x1b[2K"
LINES = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of a command that finds a cluster of three bookies."""
    work = tmp_path_factory.mktemp("cluster")
    metadata = MetadataProcess(work / "metadata")
    metadata.start()
    try:
        cluster = ServeCluster(work / "bookies", metadata.uri())
        try:
            cluster.add(3)
            yield {**os.environ, "BK_metadataServiceUri": metadata.uri()}
        finally:
            cluster.stop()
    finally:
        metadata.stop()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    file = tmp_path_factory.mktemp("input") / "lines"
    file.write_bytes(LINES)
    return str(file)


@pytest.fixture(scope="module")
def ledger(environment, lines):
    """A ledger to read: its id, as text."""
    written = warm.run(warm.BOOKIE, ["ledger", "write", lines, "--json"], 60, env=environment)
    (found,) = re.findall(rb'"ledger_id": (\d+)', written.stdout)
    return found.decode()


@pytest.fixture(params=["write", "read", "count"])
def command(request, lines, ledger):
    """A long command, what its bar says, and all of its standard output, as a pattern."""
    return {
        "write": (["ledger", "write", lines], b"writing", rb"\d+\n"),
        "read": (["ledger", "read", ledger], b"reading", LINES),
        "count": (["cluster", "status", "--ledgers"], b"counting ledgers", rb"(?s).*\d closed.*"),
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
    ran = warm.run(warm.BOOKIE, arguments, 60, env=environment)
    assert ran.returncode == 0
    assert ESCAPE not in ran.stdout
    assert ran.stderr == b""
    assert re.fullmatch(expected, ran.stdout)


def test_an_error_on_a_terminal_leaves_one_plain_line_and_the_cursor(environment):
    drawn = run_on_terminal(["ledger", "read", "987654321"], environment)
    assert drawn.code != 0
    assert b"987654321" in drawn.terminal
    assert drawn.terminal.rfind(HIDE_CURSOR) <= drawn.terminal.rfind(SHOW_CURSOR)
