"""Commands that ask before they remove something, unless an option says not to."""

from __future__ import annotations

import sys
from typing import Final

import click

YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirmed(command: str, does: str, question: str, *, unless: str = "--yes") -> bool:
    """The user's answer. Raises `click.UsageError`, naming the command, what it `does` and the option that it asks
    `unless` given, when nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{command} asks before it {does}, and there is no terminal: give {unless}")
    return click.confirm(question, err=True)
