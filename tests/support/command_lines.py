"""Command lines of the documentation, and the commands that there are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

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


def leaves(command: click.Command, *words: str) -> Iterator[str]:
    """The names of all commands below this one, such as `cluster init`."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from leaves(each, *words, name)
    else:
        yield " ".join(words)
