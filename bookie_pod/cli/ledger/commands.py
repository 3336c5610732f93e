"""The command line of `bookie ledger`. What a command does is loaded when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, YES, combined, confirmed, password_option, quorum_options, read_password
from bookie_pod.config.keys import MIB

if TYPE_CHECKING:
    from bookie_client.writing.creation import NewLedger

DIGESTS: Final = ("CRC32C", "CRC32", "MAC", "DUMMY")
INPUT_FORMATS: Final = ("lines", "fixed", "prefixed", "whole")
OUTPUT_FORMATS: Final = ("lines", "raw", "prefixed", "json")

_ID: Final = click.argument("ledger_id", type=click.IntRange(min=0), metavar="LEDGER")
_DIGEST: Final = click.option(
    "--digest", type=click.Choice(DIGESTS), default=DIGESTS[0], show_default=True, help="Digest of the entries."
)


@click.group()
def ledger() -> None:
    """Write, read and look after ledgers.

    Exit codes: 0 done, 1 wrong command line or configuration, 10 refused, 11 not there, 12 could not tell, 130
    interrupted, 141 the reader of the output has gone, 143 SIGTERM.
    """


creates: Final = combined(
    quorum_options(2),
    _DIGEST,
    click.option("--id", "ledger_id", type=click.IntRange(min=0), help="An id of your choice."),
    click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="Custom metadata of the ledger. Give it again for another.",
    ),
    password_option,
)
"""The options of a new ledger; the command gets them as keyword arguments."""

takes_entries: Final = combined(
    click.argument("file", default="-"),
    click.option(
        "--format",
        "format_",
        type=click.Choice(INPUT_FORMATS),
        default="lines",
        show_default=True,
        help="What makes an entry: a line, a fixed size, a length of 4 bytes before it, or the whole input.",
    ),
    click.option(
        "--size",
        type=click.IntRange(1, 64 * MIB),
        default=1024,
        show_default=True,
        help="Bytes of an entry, with --format fixed.",
    ),
)
"""Options for the input of entries, and its format."""

puts_entries_out: Final = combined(
    click.option("-o", "--output", default="-", show_default=True, metavar="FILE", help="Write there."),
    click.option(
        "--format",
        "format_",
        type=click.Choice(OUTPUT_FORMATS),
        default="lines",
        show_default=True,
        help="How an entry is written: as a line, as it is, as JSON, or with its length before it.",
    ),
)
"""Options for the output of entries, and its format."""


@ledger.command()
@creates
@AS_JSON
@connects
def create(connection: Connection, as_json: bool, **new: Any) -> None:
    """Create a ledger without entries, close it and print its id.

    It is closed because only the process that creates a ledger can write it: `bookie ledger write` does both.
    """
    from bookie_pod.cli.ledger.entries import create_empty

    made = _new_ledger(**new)
    ledger_id = connection.run(lambda cluster: create_empty(cluster, made))
    click.echo(f'{{"ledger_id": {ledger_id}}}' if as_json else ledger_id)


@ledger.command()
@takes_entries
@creates
@AS_JSON
@connects
def write(connection: Connection, file: str, format_: str, size: int, as_json: bool, **new: Any) -> None:
    """Write FILE (default: standard input) as a new ledger, close it and print its id.

    Entries are written as they arrive. After an error or Ctrl-C the ledger is closed behind the last entry that was
    acknowledged; its id is in the message.
    """
    from bookie_pod.cli.ledger.entries import Source, report, write_ledger

    made = _new_ledger(**new)
    written = connection.run(lambda cluster: write_ledger(cluster, made, Source(file, format_, size)))
    click.echo(report(written, as_json))


@ledger.command()
@_ID
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry. [default: the end]")
@puts_entries_out
@click.option("--recover", is_flag=True, help="Fence and close the ledger first, if it is not closed.")
@_DIGEST
@password_option
@connects
def read(
    connection: Connection,
    ledger_id: int,
    first: int,
    last: int | None,
    output: str,
    format_: str,
    recover: bool,
    digest: str,
    password_file: str | None,
) -> None:
    """Read LEDGER.

    A ledger that is not closed is read up to its last add confirmed as it is now.
    """
    from bookie_pod.cli.ledger.entries import Reading, read_ledger

    reading = Reading(ledger_id, read_password(password_file), digest, format_, output)
    connection.run(lambda cluster: read_ledger(cluster, reading, first, last, recover=recover))


@ledger.command()
@_ID
@click.option("--first", type=click.IntRange(min=0), help="First entry. [default: the next that is written]")
@puts_entries_out
@_DIGEST
@password_option
@connects
def tail(
    connection: Connection,
    ledger_id: int,
    first: int | None,
    output: str,
    format_: str,
    digest: str,
    password_file: str | None,
) -> None:
    """Print the entries of LEDGER as they are confirmed, until it is closed or Ctrl-C."""
    from bookie_pod.cli.ledger.entries import Reading, tail_ledger

    reading = Reading(ledger_id, read_password(password_file), digest, format_, output)
    connection.run(lambda cluster: tail_ledger(cluster, reading, first))


@ledger.command("list")
@click.option("-l", "--long", "is_long", is_flag=True, help="State, entries, bytes and quorums too.")
@AS_JSON
@connects
def list_(connection: Connection, is_long: bool, as_json: bool) -> None:
    """Print the ids of all ledgers, ascending."""
    from bookie_pod.cli.ledger.showing import list_ledgers

    connection.run(lambda cluster: list_ledgers(cluster, is_long=is_long, as_json=as_json))


@ledger.command()
@_ID
@AS_JSON
@connects
def info(connection: Connection, ledger_id: int, as_json: bool) -> None:
    """Print the metadata of LEDGER."""
    from bookie_pod.cli.ledger.showing import show_ledger

    connection.run(lambda cluster: show_ledger(cluster, ledger_id, as_json=as_json))


@ledger.command()
@_ID
@click.option(
    "--percent",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Read so many percent of the entries from each bookie, beside the first and the last.",
)
@AS_JSON
@connects
def doctor(connection: Connection, ledger_id: int, percent: int, as_json: bool) -> int:
    """Look at LEDGER and its copies, and say what is wrong and what helps.

    It changes nothing. Exit code 13 if entries cannot be read, 12 if some bookie could not tell.
    """
    from bookie_pod.cli.doctor.findings import has_problem, print_findings
    from bookie_pod.cli.ledger.doctor import examine

    examination = connection.run(lambda cluster: examine(cluster, ledger_id, percent))
    print_findings(examination.findings, as_json=as_json)
    if has_problem(examination.findings):
        return CommandExit.DAMAGED
    return CommandExit.COULD_NOT_TELL if examination.could_not_tell else CommandExit.OK


@ledger.command()
@_ID
@_DIGEST
@password_option
@AS_JSON
@connects
def recover(connection: Connection, ledger_id: int, digest: str, password_file: str | None, as_json: bool) -> None:
    """Fence LEDGER, find its end and close it. Its writer, if there is one, can append no more.

    A closed ledger is left as it is.
    """
    from bookie_pod.cli.ledger.showing import recover_ledger

    password = read_password(password_file)
    connection.run(lambda cluster: recover_ledger(cluster, ledger_id, password, digest, as_json=as_json))


@ledger.command()
@click.argument("ledger_ids", type=click.IntRange(min=0), metavar="LEDGER...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also those that a stream lists, or whose metadata cannot be read.")
@YES
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each ledger as soon as it is deleted.")
@connects
def delete(connection: Connection, ledger_ids: tuple[int, ...], force: bool, yes: bool, as_json: bool) -> int:
    """Delete ledgers. Their entries cannot be read any more, and bookies give the space back."""
    question = f"Delete {'ledger' if len(ledger_ids) == 1 else 'ledgers'} {', '.join(map(str, ledger_ids))}?"
    if not yes and not confirmed("delete", "deletes", question):
        return CommandExit.USAGE
    from bookie_pod.cli.ledger.showing import delete_ledgers

    connection.run(lambda cluster: delete_ledgers(cluster, ledger_ids, force=force, as_json=as_json))
    return CommandExit.OK


def _new_ledger(*, digest: str, password_file: str | None, properties: Sequence[str], **others: Any) -> NewLedger:
    """Return the ledger to create, by the options of `creates`. Raises `click.UsageError`, `InvalidConfiguration`,
    `BadRequest`."""
    from bookie_client.writing.creation import NewLedger
    from bookie_protocol.digest import DigestType

    metadata: dict[str, bytes] = {}
    for assignment in properties:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise click.UsageError("--property: must look like name=value")  # a word alone may be a secret
        metadata[name] = value.encode()
    return NewLedger(digest=DigestType[digest], password=read_password(password_file), metadata=metadata, **others)
