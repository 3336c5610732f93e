"""What `bookie doctor` and `bookie ledger doctor` find, and how they print it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import click

from bookie_pod.cli.exit_codes import CommandExit
from bookie_protocol.shown import one_line


class State(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but slowly, with less safety, or not for long."""
    PROBLEM = "problem"
    """It does not work."""
    UNKNOWN = "unknown"
    """The check could not tell; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    part: str
    state: State
    text: str
    """Finding, with figures."""
    remedy: str = ""
    """Remedy; empty if nothing has to be done."""


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print a line for each, or all of them as JSON."""
    if as_json:
        click.echo(json.dumps(plain_findings(findings)))
        return
    for each in findings:
        remedy = f"; {each.remedy}" if each.remedy else ""
        click.echo(f"{each.state.value:8} {one_line(f'{each.part}: {each.text}{remedy}')}")


def plain_findings(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return them as JSON has them."""
    return [{**asdict(each), "state": each.state.value} for each in findings]


def has_problem(findings: Sequence[Finding]) -> bool:
    """Return True if something does not work."""
    return any(each.state is State.PROBLEM for each in findings)


def exit_code(findings: Sequence[Finding], *, strict: bool = False) -> CommandExit:
    """Return the exit code of a doctor: a problem counts more than a check that could not tell. `strict`: a warning
    counts as a problem."""
    states = {each.state for each in findings}
    if State.PROBLEM in states or (strict and State.WARNING in states):
        return CommandExit.DAMAGED
    return CommandExit.COULD_NOT_TELL if State.UNKNOWN in states else CommandExit.OK
