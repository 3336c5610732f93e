"""Options that several commands share: configuration, output, quorums, passwords and confirmation.

Any user of the machine can read a process's arguments; so there is no option that takes a password itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from math import isnan, nan
from typing import Any, Final, TypeVar

import click

from bookie_protocol.errors import InvalidConfiguration

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_SECONDS: Final = 1e6

AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
AS_JSON_LINES: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON; lists: one object a line.")

_SHORTHANDS: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("--bookie-id", ("bookieId",), "Identity of this bookie."),
    ("--advertised-address", ("advertisedAddress",), "Host name or address that clients connect to."),
    ("--metadata-service-uri", ("metadataServiceUri",), "Where the cluster's metadata is."),
    ("--port", ("bookiePort",), "Port of the BookKeeper protocol."),
    ("--http-port", ("httpServerPort", "prometheusStatsHttpPort"), "Port of probes, metrics and admin API."),
    ("--grpc-port", ("grpcServerPort",), "Port of gRPC."),
    ("--log-format", ("logFormat",), "json or console."),
    ("--log-level", ("logLevel",), "debug, info, warning or error."),
)
_OF_A_PROCESS: Final[dict[str, str]] = {
    "--advertised-address": "Host name or address that it goes by; with --port, its name among the auditors.",
    "--metadata-service-uri": "",
    "--port": "See --advertised-address; nothing listens there.",
    "--http-port": "",
    "--log-format": "",
    "--log-level": "",
}
"""Help of options for which that of a bookie would mislead."""
_OF_A_GATEWAY: Final = ("--metadata-service-uri", "--http-port", "--grpc-port", "--log-format", "--log-level")
_DIRECTORIES: Final = (
    ("--journal-dir", "journalDirectories", "Journal directory."),
    ("--ledger-dir", "ledgerDirectories", "Ledger directory."),
    ("--index-dir", "indexDirectories", "Index directory."),
)
YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
PASSWORD_VARIABLE: Final = "BOOKIE_LEDGER_PASSWORD"
MAX_PASSWORD_BYTES: Final = 64 * 1024


def combined(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def quorum_options(write_quorum: int) -> Callable[[Command], Command]:
    """Ensemble and quorums of new ledgers, with this default for the write quorum."""
    return combined(
        click.option("--ensemble", default=3, show_default=True, type=click.IntRange(1), help="Bookies (E)."),
        click.option(
            "--write-quorum", default=write_quorum, show_default=True, type=click.IntRange(1), help="Copies (Qw)."
        ),
        click.option(
            "--ack-quorum", default=2, show_default=True, type=click.IntRange(1), help="Answers waited for (Qa)."
        ),
    )


def config_option(text: str, name: str = "file") -> Callable[[Command], Command]:
    """`--config FILE`, as parameter `name`; `text` is its help."""
    return click.option(
        "-c", "--config", name, envvar="BOOKIE_CONF", metavar="FILE", help=f"{text} [environment: BOOKIE_CONF]"
    )


def set_option(command: Command) -> Command:
    """`--set key=value`, any number of times."""
    return click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a key; wins over file and environment."
    )(command)


class Seconds(click.FloatRange):
    """A number of seconds that every timer takes: system calls count milliseconds in 32 bits."""

    name = "seconds"

    def __init__(self, least: float = 0.0, *, above: bool = False) -> None:
        """`above`: more than the least."""
        super().__init__(min=least, max=MAX_SECONDS, min_open=above)
        self._range = f"{'above' if above else 'at least'} {least:g} and at most {MAX_SECONDS:.0f}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = super().convert(value, param, ctx)
        except click.BadParameter:
            found = nan
        if isnan(found):
            self.fail(f"{value!r} is not a number of seconds: it must be {self._range}", param, ctx)
        return found


def shorthands(command: Command) -> Command:
    """Flags for the keys that people set by hand."""
    for flag, _, text in reversed(_SHORTHANDS):
        command = click.option(flag, help=text)(command)
    for flag, _, text in reversed(_DIRECTORIES):
        command = click.option(flag, multiple=True, help=f"{text} Give it again for another.")(command)
    return command


def process_shorthands(command: Command) -> Command:
    """The same for a process that is no bookie: it has no directories and speaks no BookKeeper protocol."""
    for flag, _, text in reversed(_SHORTHANDS):
        if flag in _OF_A_PROCESS:
            command = click.option(flag, help=_OF_A_PROCESS[flag] or text)(command)
    return command


def gateway_shorthands(command: Command) -> Command:
    """The same for a process that serves gRPC alone."""
    for flag, _, text in reversed(_SHORTHANDS):
        if flag in _OF_A_GATEWAY:
            command = click.option(flag, help="Port of probes and metrics." if flag == "--http-port" else text)(command)
    return command


def overrides(assignments: tuple[str, ...], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return what the flags set, by key. Raises `click.UsageError` if a key is set twice or an assignment is
    invalid."""
    chosen: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.strip():
            raise click.UsageError("--set: must look like key=value")  # a word alone may be a secret
        _choose(chosen, key.strip(), value, "--set")
    for flag, keys, _ in _SHORTHANDS:
        if (given := flags.get(_parameter(flag))) is not None:
            for key in keys:
                _choose(chosen, key, str(given), flag)
    for flag, key, _ in _DIRECTORIES:
        if paths := flags.get(_parameter(flag)):
            _choose(chosen, key, ",".join(paths), flag)
    return chosen


def _choose(chosen: dict[str, str], key: str, value: str, flag: str) -> None:
    if key in chosen:
        raise click.UsageError(f"{flag}: {key} is set twice on the command line")
    chosen[key] = value


def _parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def tell(as_json: bool, line: str, **values: object) -> None:
    """Print what was done: the line, or the values as a JSON object."""
    import json

    click.echo(json.dumps(values) if as_json else line)


def show_json(found: object) -> None:
    """Print an answer of the admin API unchanged, as JSON."""
    import json

    from bookie_protocol.admin_api.bodies import plain

    click.echo(json.dumps(plain(found)))


def confirmed(command: str, does: str, question: str, *, unless: str = "--yes") -> bool:
    """Ask the user, and return the answer. Raises `click.UsageError` if there is no terminal.

    The error names the command, what it `does`, and the option with which it does not ask (`unless`).
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{command} asks before it {does}, and there is no terminal: give {unless}")
    return click.confirm(question, err=True)


def password_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--password-file`; the command gets its path as `password_file` and calls `read_password`."""
    return click.option(
        "--password-file",
        metavar="FILE",
        help=f"File with the ledger's password; one newline at its end does not count. [environment: the password"
        f" itself in {PASSWORD_VARIABLE}; default: empty]",
    )(command)


def read_password(path: str | None) -> bytes:
    """The password. Raises `InvalidConfiguration` for a file that cannot be read."""
    if path is None:
        return os.environb.get(PASSWORD_VARIABLE.encode(), b"")
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_PASSWORD_BYTES + 1)
    except OSError as error:
        raise InvalidConfiguration(f"--password-file {path}: {error.strerror}") from error
    if len(text) > MAX_PASSWORD_BYTES:
        raise InvalidConfiguration(f"--password-file {path}: larger than {MAX_PASSWORD_BYTES} bytes")
    return text.removesuffix(b"\n").removesuffix(b"\r")
