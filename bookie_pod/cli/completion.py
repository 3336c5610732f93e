"""`bookie completion bash|zsh|fish`: the words that a shell completes, and `bookie man`: manual pages.

Both are made of the commands as they are declared, so they cannot lag behind.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from bookie_pod.cli.options import AS_JSON, tell
from bookie_protocol.errors import InvalidConfiguration

SHELLS: Final = ("bash", "zsh", "fish")
_HOW: Final = {
    "bash": 'eval "$(bookie completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(bookie completion zsh)"  # in ~/.zshrc',
    "fish": "bookie completion fish > ~/.config/fish/completions/bookie.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what completes commands and options of `bookie` in SHELL."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "bookie", "_BOOKIE_COMPLETE").source())


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@AS_JSON
@click.pass_context
def man(context: click.Context, directory: Path, as_json: bool) -> None:
    """Write the manual pages of all commands to DIRECTORY, such as ~/.local/share/man/man1.

    Then `man bookie` and `man bookie-ledger-write` show them.
    """
    root = context.find_root().command
    pages = {f"{'-'.join(words)}.1": manual_page(words, command) for words, command in _commands(root, ("bookie",))}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"{error.filename}: {error.strerror}; choose another directory") from error
    tell(as_json, f"{len(pages)} pages are in {directory}", directory=str(directory), pages=sorted(pages))


def _commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from _commands(each, (*words, name))


def manual_page(words: tuple[str, ...], command: click.Command) -> str:
    """A command's page in the language of man(7)."""
    context = click.Context(command, info_name=" ".join(words), help_option_names=["-h", "--help"])
    paragraphs = [" ".join(part.split()) for part in (command.help or "").replace("\b", "").split("\n\n")]
    summary = command.get_short_help_str(200).rstrip(".")
    lines = [
        f'.TH "{"-".join(words).upper()}" "1" "{_date()}" "Podkeeper" "Podkeeper"',
        ".SH NAME",
        _text(f"{'-'.join(words)} - {summary}"),
        ".SH SYNOPSIS",
        f".B {_text(' '.join(words))}",
        _text(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
    ]
    for paragraph in filter(None, paragraphs):
        lines += [".PP", _text(paragraph)]
    lines += _options(command, context)
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name, each in sorted(command.commands.items()):
            lines += [".TP", f".BR {_text('-'.join((*words, name)))} (1)", _text(each.get_short_help_str(200))]
    if command.epilog:
        lines += [".SH NOTES", _text(" ".join(command.epilog.replace("\b", "").split()))]
    return "\n".join(lines) + "\n"


def _options(command: click.Command, context: click.Context) -> list[str]:
    records = [each.get_help_record(context) for each in command.get_params(context)]
    lines = [".SH OPTIONS"]
    for record in filter(None, records):
        lines += [".TP", f".B {_text(record[0])}", _text(" ".join(record[1].split()))]
    return lines if len(lines) > 1 else []


def _date() -> str:
    """Return the date of the build; from `SOURCE_DATE_EPOCH` for repeatable builds."""
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    day = datetime.datetime.fromtimestamp(int(stamp), datetime.UTC) if stamp else datetime.datetime.now(datetime.UTC)
    return day.date().isoformat()


def _text(text: str) -> str:
    """Escape a text for man(7): a line that begins with a dot or a quote would be a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
