"""Command lines of the documentation."""

from __future__ import annotations

import shlex

import click

from bookie_pod.cli.main import cli


def resolve(line: str) -> tuple[click.Command, list[str]]:
    """The command that `bookie ...` means, and the words behind its name."""
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    return command, words
