"""Commands that ask before they remove something, unless `--yes` is given."""

from __future__ import annotations

import sys
from typing import Final

import click

YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirmed(command: str, does: str, question: str) -> bool:
    """The user's answer. Raises `click.UsageError`, naming the command and what it `does`, when nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{command} asks before it {does}, and there is no terminal: give --yes")
    return click.confirm(question, err=True)
