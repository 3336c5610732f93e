"""The group `bookie disk`, and what its commands share; the other modules add their commands to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

UNCLEAN: Final = click.option(
    "--unclean", is_flag=True, help="Go on although the bookie did not stop cleanly (DIRTY): it does not run any more."
)
PAYLOADS: Final = ("none", "hex", "ascii", "base64")
PAYLOAD: Final = click.option(
    "--payload", type=click.Choice(PAYLOADS), default="none", show_default=True, help="Print the bytes of entries too."
)


@click.group()
def disk() -> None:
    """Look at, check and mend the directories of a stopped bookie.

    Nothing is changed but by `format`, `convert`, `finish`, `rebuild-...` and `rename-bookie`. Directories come from a
    configuration (-c, BOOKIE_CONF) or from --journal-dir, --ledger-dir, --index-dir.

    Exit codes: 0 done, 1 wrong command line or configuration, 10 refused (a bookie runs), 11 not there, 12 could not
    tell, 13 damage was found.
    """


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line."""
    click.echo(json.dumps(value))


def payload_text(data: bytes, how: str) -> str:
    """Bytes as hex, ASCII with dots for the rest, or base64."""
    if how == "hex":
        return data.hex()
    if how == "base64":
        import base64

        return base64.b64encode(data).decode()
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def number(text: str) -> int:
    """A number in decimal, or in hex behind 0x."""
    try:
        value = int(text, 0)
    except ValueError:
        raise click.UsageError(f"{text} is not a number (decimal, or hex behind 0x)") from None
    if value < 0:
        raise click.UsageError(f"{text} is negative")
    return value
