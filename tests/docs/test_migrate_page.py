"""docs/migrate.md: its resource is valid, every command that it shows parses, and what is refused is refused so."""

from __future__ import annotations

import inspect
import re
import shlex

import click
import pytest
import yaml

from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.validation import parse_spec, validate
from bookie_operator.plugin import migration, refusals, strangers, takeover
from bookie_operator.plugin.main import cli
from bookie_pod.cli.main import cli as bookie
from bookie_pod.node.identity import rename
from tests.docs.examples import blocks
from tests.support.chart_files import ROOT
from tests.support.command_lines import resolve

PAGE = ROOT / "docs" / "migrate.md"
TEXT = PAGE.read_text(encoding="utf-8")
LINES = [
    line.strip() for line in TEXT.splitlines() if line.startswith("    ") and line.split()[0] in ("kubectl", "bookie")
]
PLUGIN = [line for line in LINES if line.startswith("kubectl bookie ")]


@pytest.mark.parametrize("number", range(2))
def test_the_resources_are_valid(number: int) -> None:
    found = blocks(PAGE)
    assert len(found) == 2
    block = found[number]
    spec, errors = parse_spec(yaml.safe_load(block.code)["spec"])
    assert spec is not None
    assert errors == ()
    assert validate(spec, BookieClusterStatus()) == ()


@pytest.mark.parametrize("line", PLUGIN)
def test_commands_of_the_plugin_parse(line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line)[2:]
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    made = command.make_context(command.name, words).params
    assert made["name"] == ("pulsar" if made["in_place"] else "events")


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("bookie ")])
def test_commands_of_bookies_parse(line: str) -> None:
    command, words = resolve(line)
    made = command.make_context(command.name, words, parent=click.Context(bookie))
    assert (made.params["old"], made.params["new"]) == ("10.0.0.5:3181", "bookie-0:3181")


def test_every_command_is_shown() -> None:
    group = cli.commands["migrate"]
    assert isinstance(group, click.Group)
    assert {line.split()[3] for line in PLUGIN} == group.commands.keys()
    assert len(LINES) == len(PLUGIN) + 2 + 3, "kubectl itself twice, and bookie"


def test_options_that_it_names_are_there() -> None:
    group = cli.commands["migrate"]
    assert isinstance(group, click.Group)
    options = {option for each in group.commands["run"].params for option in each.opts}
    assert {"--bookie", "--at-once"} <= options
    assert all(f"`{option}" in TEXT for option in ("--bookie ID", "--at-once N"))


def test_reasons_are_given_in_its_words() -> None:
    source = inspect.getsource(migration) + inspect.getsource(strangers) + inspect.getsource(rename)
    source += inspect.getsource(takeover) + inspect.getsource(refusals)
    rows = [row for row in TEXT.splitlines() if re.match(r"\| (?!refused|---)", row)]
    assert len(rows) == 11 + 6 + 8, "beside, both ways compared, in place"
    for words in (
        *("there are ledgers on ", "spec.durability.ensembleSize is", "have room for", "takes frames of"),
        *(
            "and grow it afterwards",
            "its short name",
            "stop that operator first",
            "is used by pod",
            "has an address of its own",
        ),
        *("serves TLS and yours do not", "is a bookie of BookieCluster", "is registered", "it has a cookie"),
        *("close its writer, or end it with", "is being decommissioned", "were changed just now"),
    ):
        assert words in source, words
