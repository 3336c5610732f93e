"""The command line of `bookie stream`. What a command does is loaded when it runs."""

from __future__ import annotations

from typing import Any, Final

import click

from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.ledger.commands import DIGESTS, puts_entries_out, takes_entries
from bookie_pod.cli.options import (
    AS_JSON,
    YES,
    combined,
    confirmed,
    password_option,
    quorum_options,
    read_password,
    tell,
)
from bookie_pod.config.keys import MIB

_NAME: Final = click.argument("name", metavar="STREAM")
_POSITION: Final = "LEDGER:ENTRY"


@click.group()
def stream() -> None:
    """Write and read streams: endless logs that are lists of ledgers.

    A position in a stream is LEDGER:ENTRY, the entry that is read next, or `earliest` or `latest`. Exit codes: 0 done,
    1 wrong command line or configuration, 10 refused, 11 not there, 12 could not tell, 130 interrupted, 141 the reader
    of the output has gone, 143 SIGTERM.
    """


_settings: Final = combined(
    quorum_options(3),
    click.option(
        "--digest",
        type=click.Choice(DIGESTS),
        default=DIGESTS[0],
        show_default=True,
        help="What protects entries from damage.",
    ),
    click.option(
        "--max-ledger-entries",
        default=50_000,
        show_default=True,
        type=click.IntRange(1),
        help="Entries behind which the next ledger begins,",
    ),
    click.option(
        "--max-ledger-bytes",
        default=2048 * MIB,
        show_default=True,
        type=click.IntRange(1),
        help="or payload bytes,",
    ),
    click.option("--max-ledger-seconds", default=14_400.0, show_default=True, type=float, help="or age, in seconds;"),
    click.option(
        "--min-ledger-seconds",
        default=600.0,
        show_default=True,
        type=float,
        help="but never before this age.",
    ),
    click.option(
        "--retention-seconds",
        type=float,
        help="Remove ledgers that were closed longer ago. [default: keep them]",
    ),
    click.option("--retention-bytes", type=int, help="Remove the oldest while so much is left. [default: keep them]"),
    click.option(
        "--deletion-lag-seconds",
        default=3600.0,
        show_default=True,
        type=float,
        help="How long overwritten ledgers stay readable for those who began before.",
    ),
)
"""Options with the names and defaults of `StreamSettings`."""


@stream.command()
@_NAME
@_settings
@click.option("--if-absent", is_flag=True, help="Leave one that exists as it is.")
@AS_JSON
@connects
def create(connection: Connection, name: str, if_absent: bool, as_json: bool, **settings: Any) -> None:
    """Create STREAM, without ledgers."""
    from bookie_pod.cli.stream.showing import create_stream

    connection.run(lambda cluster: create_stream(cluster, name, settings, if_absent=if_absent, as_json=as_json))


@stream.command("list")
@click.option("-l", "--long", "is_long", is_flag=True, help="Ledgers, entries, bytes and writer too.")
@AS_JSON
@connects
def list_(connection: Connection, is_long: bool, as_json: bool) -> None:
    """Print the names of all streams, sorted."""
    from bookie_pod.cli.stream.showing import list_streams

    connection.run(lambda cluster: list_streams(cluster, is_long=is_long, as_json=as_json))


@stream.command()
@_NAME
@AS_JSON
@connects
def info(connection: Connection, name: str, as_json: bool) -> None:
    """Print STREAM: its settings, its ledgers, how far its consumers are."""
    from bookie_pod.cli.stream.showing import show_stream

    connection.run(lambda cluster: show_stream(cluster, name, as_json=as_json))


@stream.command()
@_NAME
@takes_entries
@click.option("--create", "create_it", is_flag=True, help="Create the stream, with default settings, if there is none.")
@click.option(
    "--no-take-over", is_flag=True, help="Refuse when a writer has a ledger open, instead of fencing that writer."
)
@password_option
@AS_JSON
@connects
def append(
    connection: Connection,
    name: str,
    file: str,
    format_: str,
    size: int,
    create_it: bool,
    no_take_over: bool,
    password_file: str | None,
    as_json: bool,
) -> None:
    """Append FILE (default: standard input) to STREAM and print the position behind it.

    Entries are appended as they arrive. Any other writer of the stream is fenced. After an error or Ctrl-C the stream
    ends behind the last entry that was acknowledged; how many there are is in the message.
    """
    from bookie_pod.cli.ledger.entries import Source
    from bookie_pod.cli.stream.entries import Appending, append_stream, report

    appending = Appending(
        name, Source(file, format_, size), read_password(password_file), create=create_it, take_over=not no_take_over
    )
    # Who tails the stream sees each entry soon, and not only with the next one.
    defaults = {} if connection.sets("protocol_version") else {"explicit_lac_interval": 0.1}
    appended = connection.run(lambda cluster: append_stream(cluster, appending), defaults)
    click.echo(report(appended, as_json))


@stream.command()
@_NAME
@click.option("--from", "start", default="earliest", show_default=True, metavar=_POSITION, help="Where to begin.")
@click.option("--to", metavar=_POSITION, help="Where to end; this entry is not read. [default: the end as it is now]")
@puts_entries_out
@password_option
@connects
def read(
    connection: Connection,
    name: str,
    start: str,
    to: str | None,
    output: str,
    format_: str,
    password_file: str | None,
) -> None:
    """Read STREAM, up to the last entry that is confirmed. Its writer is not disturbed."""
    from bookie_pod.cli.stream.entries import StreamReading, read_stream

    reading = StreamReading(name, read_password(password_file), format_, output)
    connection.run(lambda cluster: read_stream(cluster, reading, start, to))


@stream.command()
@_NAME
@click.option("--from", "start", default="latest", show_default=True, metavar=_POSITION, help="Where to begin.")
@puts_entries_out
@password_option
@connects
def tail(connection: Connection, name: str, start: str, output: str, format_: str, password_file: str | None) -> None:
    """Print the entries of STREAM as they are confirmed, until Ctrl-C."""
    from bookie_pod.cli.stream.entries import StreamReading, tail_stream

    reading = StreamReading(name, read_password(password_file), format_, output)
    connection.run(lambda cluster: tail_stream(cluster, reading, start))


@stream.command()
@_NAME
@click.option("--before", metavar=_POSITION, help="Remove what comes before; `latest`: all closed ledgers.")
@click.option("--retention", is_flag=True, help="Remove what the stream's settings no longer keep.")
@click.option("--force", is_flag=True, help="Also what a cursor has not passed.")
@YES
@AS_JSON
@connects
def truncate(
    connection: Connection, name: str, before: str | None, retention: bool, force: bool, yes: bool, as_json: bool
) -> int:
    """Make the beginning of STREAM unreadable, and print the ledgers that were deleted."""
    if (before is None) == (not retention):
        raise click.UsageError("truncate needs either --before POSITION or --retention")
    question = f"Delete what stream {name} holds before {before}?"
    if before is not None and not yes and not confirmed("truncate", "deletes", question):
        return CommandExit.USAGE
    from bookie_pod.cli.stream.showing import truncate_stream

    connection.run(lambda cluster: truncate_stream(cluster, name, before, force=force, as_json=as_json))
    return CommandExit.OK


@stream.command()
@_NAME
@AS_JSON
@connects
def seal(connection: Connection, name: str, as_json: bool) -> None:
    """Close the ledger that a dead writer of STREAM left open, and print where it ends; a living writer is fenced."""
    from bookie_pod.cli.stream.showing import seal_stream

    connection.run(lambda cluster: seal_stream(cluster, name, as_json=as_json))


@stream.command()
@click.argument("names", metavar="STREAM...", nargs=-1, required=True)
@click.option("--keep-ledgers", is_flag=True, help="Delete the list only.")
@click.option("--force", is_flag=True, help="Also while a writer has a ledger open; it is fenced.")
@YES
@AS_JSON
@connects
def delete(
    connection: Connection, names: tuple[str, ...], keep_ledgers: bool, force: bool, yes: bool, as_json: bool
) -> int:
    """Delete streams, their cursors and their ledgers."""
    question = f"Delete {'stream' if len(names) == 1 else 'streams'} {', '.join(names)}?"
    if not yes and not confirmed("delete", "deletes", question):
        return CommandExit.USAGE
    from bookie_pod.cli.stream.showing import delete_streams

    connection.run(lambda cluster: delete_streams(cluster, names, with_ledgers=not keep_ledgers, force=force))
    if as_json:
        tell(True, "", deleted=list(names), with_ledgers=not keep_ledgers)
    return CommandExit.OK


@stream.command()
@_NAME
@click.option("--move", nargs=2, metavar=f"CURSOR {_POSITION}", help="Move a cursor forwards, or create it.")
@click.option("--delete", "delete_it", metavar="CURSOR", help="Forget a cursor.")
@AS_JSON
@connects
def cursors(
    connection: Connection, name: str, move: tuple[str, str] | None, delete_it: str | None, as_json: bool
) -> None:
    """Print how far the consumers of STREAM are."""
    from bookie_pod.cli.stream.showing import show_cursors

    connection.run(lambda cluster: show_cursors(cluster, name, move, delete_it, as_json=as_json))
