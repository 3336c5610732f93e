"""The client's log lines keep out of what a program prints."""

import subprocess
import sys

import pytest

LOG = (
    "from bookie_protocol.logs import get_logger",
    "log = get_logger('bookie_client.x')",
    "log.info('recovered', ledger=3)",
    "log.warning('slow')",
)


def run(*lines):
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_nothing_below_a_warning_and_nothing_to_standard_output():
    assert run("import bookie_client", *LOG) == ("", "slow\n")


def test_a_program_that_asks_gets_them_through_logging():
    configure = (
        "import logging, sys; logging.basicConfig(level='INFO', stream=sys.stdout, format='%(name)s|%(message)s')"
    )
    assert run("import bookie_client", configure, *LOG) == (
        "bookie_client.x|recovered ledger=3\nbookie_client.x|slow\n",
        "",
    )


@pytest.mark.parametrize("order", [0, 1])
def test_a_program_that_sets_structlog_up_has_its_way(order):
    lines = [
        "import bookie_client",
        "import structlog; structlog.configure(processors=[lambda *a: str(a[2]['event'])])",
    ]
    out, err = run(*(reversed(lines) if order else lines), *LOG)
    assert (out, err) == ("recovered\nslow\n", "")
