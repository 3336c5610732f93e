"""`docs/reference/cli.md`: every command of `bookie` and of `kubectl bookie`, with its options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from bookie_operator.plugin.main import cli as plugin
from bookie_pod.cli.main import cli
from website.pages.text import code, heading, plain, table

_INTRODUCTION: Final = """\
`--help` of a command prints the same; `bookie man DIRECTORY` writes it as manual pages. Many commands share two
options: `--metadata` names the cluster (without it `BK_metadataServiceUri`, or a `bookie standalone` that runs here),
and `--json` prints an answer for programs. Exit codes are in [client.md](../client.md#command-line)."""


def cli_page() -> str:
    """Return the page."""
    lines = [*heading("Commands", "the commands as they are declared", _INTRODUCTION)]
    for words, each in (*_commands(cli, ("bookie",)), *_commands(plugin, ("kubectl", "bookie"))):
        lines += _command(words, each)
    return "\n".join(lines).rstrip() + "\n"


def _commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from _commands(each, (*words, name))


def _command(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(words))
    yield f"## {' '.join(words)}"
    yield ""
    for paragraph in (command.help or "").replace("\b", "").split("\n\n"):
        if paragraph.strip():
            yield plain(paragraph)
            yield ""
    yield f"    {' '.join((*words, *command.collect_usage_pieces(context)))}"
    yield ""
    records = [each.get_help_record(context) for each in command.params]
    yield from table(
        ("option", "what it does"), [(code(each[0]), plain(each[1])) for each in records if each and each[1]]
    )
    if isinstance(command, click.Group):
        rows = [(_link((*words, name)), plain(each.get_short_help_str(200))) for name, each in command.commands.items()]
        yield from table(("command", "what it does"), sorted(rows))


def _link(words: tuple[str, ...]) -> str:
    return f"[{words[-1]}](#{'-'.join(words)})"
