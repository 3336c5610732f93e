"""What every command has: help for each option, JSON for programs, completion and a manual page."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bookie_pod.cli.completion import SHELLS, manual_page
from bookie_pod.cli.main import cli, run

ANSWERS_OTHERWISE = {
    "autorecovery": "runs until it is stopped",
    "gateway": "runs until it is stopped",
    "metadata-service": "runs until it is stopped",
    "serve": "runs until it is stopped",
    "completion": "prints a program of a shell",
    "config docs": "prints a page",
    "job": "prints one JSON object for each run in any case",
    "ledger read": "--format json",
    "ledger tail": "--format json",
    "stream read": "--format json",
    "stream tail": "--format json",
    "shell": "prints what Apache's shell does, and runs others of these",
}


def test_help_takes_little() -> None:
    program = (
        "import sys, time; from bookie_pod.cli.main import run; run(['--help']);"
        "print(time.process_time(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stderr) < 0.3


def leaves(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from leaves(each, *words, name)
    else:
        yield " ".join(words), command


def test_every_option_has_help() -> None:
    without = [
        (name, each.opts)
        for name, command in leaves(cli)
        for each in command.params
        if isinstance(each, click.Option) and not each.help
    ]
    assert without == []


def test_every_command_that_answers_takes_json() -> None:
    without = {name for name, command in leaves(cli) if not any("--json" in each.opts for each in command.params)}
    assert without == set(ANSWERS_OTHERWISE)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_a_program_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_BOOKIE_COMPLETE" in capsys.readouterr().out


def test_words_are_completed() -> None:
    program = "from bookie_pod.cli.main import cli; cli(prog_name='bookie')"
    words = {"_BOOKIE_COMPLETE": "bash_complete", "COMP_WORDS": "bookie ledger wr", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=words, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["plain,write"]


def test_manual_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", str(tmp_path), "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert (
        {"bookie.1", "bookie-ledger-write.1", "bookie-gc.1"} <= set(pages) == {each.name for each in tmp_path.iterdir()}
    )
    for name, command in leaves(cli):
        page = manual_page(("bookie", *name.split()), command)
        for option in (each for each in command.params if isinstance(each, click.Option) and not each.hidden):
            assert option.opts[-1].replace("-", "\\-") in page
        assert not [
            line
            for line in page.splitlines()
            if line[:1] == "'" or (line[:1] == "." and not line[1:3].isupper() and line[:3] != ".B ")
        ]
