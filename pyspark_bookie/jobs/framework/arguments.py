"""Typed arguments of jobs, and those common to all: a frozen dataclass defines names, types, defaults and help.

    @dataclass(frozen=True, kw_only=True)
    class Arguments(CommonArguments):
        target: str = argument(help="Where the files go.", metavar="URI")            # required
        max_file_bytes: int = argument(1 << 30, help="Size of a file.", kind=SIZE)   # --max-file-bytes 1g

All arguments are named. Names are written with hyphens or underscores. An unknown one is refused with the nearest name.

Invariants
- Parsing has no effect but its result or one `UsageError`, whose text is one line that names the argument.

Passwords of ledgers are read from a file only (`CommonArguments`); without one the password that a ledger recorded
counts, because jobs are administration: a process that reads the metadata could read it too.

Any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast, get_type_hints

import click

from bookie_protocol.shown import one_line, shown_uri
from pyspark_bookie.common.access import URI_VARIABLE, AccessOptions
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.common.options import at_least, seconds, size
from pyspark_bookie.common.options import parse as parse_options

A = TypeVar("A")

_REQUIRED: Final = dataclasses.MISSING


Kind: TypeAlias = "click.ParamType[Any]"
"""Conversion of the text of an argument to its value."""
DAY_S: Final = 86_400.0
"""Seconds, for defaults of `DURATION`."""
NICENESS: Final[Kind] = click.IntRange(0, 19)
"""0 to 19, as `nice` counts."""
GENTLE_BYTES_PER_SECOND: Final = 16 * 1024 * 1024
"""Bytes per second for each slot of a job that walks everything: the rate of an auto-recovery
(`replicationRateByBytes`).
"""


class UsageError(Exception):
    """The command line is wrong; the text is one line for the user."""


class _Kind(click.ParamType[Any]):
    """A text that a function reads; its `ValueError` says what would be right."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def rate(text: str) -> float:
    """Bytes per second: as `size`, or `none`, which is infinite."""
    if text.strip().lower() == "none":
        return math.inf
    try:
        return float(size(text))
    except ValueError as error:
        raise ValueError(f"{error}, or none") from None


SIZE: Final[Kind] = _Kind("size", size)
"""Bytes, an int: `128m`, `1g`, `1048576`."""
RATE: Final[Kind] = _Kind("rate", rate)
"""Bytes per second, a float: `100m`; infinite for `none`."""
DURATION: Final[Kind] = _Kind("duration", seconds)
"""Seconds, a float: `3d`, `12h`, `90`."""
COUNT: Final[Kind] = _Kind("number", at_least(1))
"""A whole number from 1 on."""
LEDGERS: Final[Kind] = _Kind("ledgers", LedgerIds.parse)
"""`LedgerIds`: `5,7,100-200`."""


def argument(
    default: Any = _REQUIRED,
    *,
    help: str,  # noqa: A002 - the name that argparse, click and typer use
    kind: Kind | None = None,
    metavar: str | None = None,
    env: str | None = None,
    choices: Sequence[str] = (),
    hidden: bool = False,
) -> Any:
    """A field of a dataclass of arguments. Without `default` it is required.

    By its annotation a field is a flag (`bool`; one that is True by default is turned off with `--no-NAME`), a number,
    a text, or with `tuple[str, ...]` an argument that may be given several times. `kind` reads it in another way.
    """
    details = {"help": help, "kind": kind, "metavar": metavar, "env": env, "choices": tuple(choices), "hidden": hidden}
    return dataclasses.field(default=default, metadata={"argument": details})


def parse(of: type[A], command: str, summary: str, arguments: Sequence[str]) -> A:
    """The arguments; `--help` prints and raises `HelpShown`. Raises `UsageError`."""
    made = _command(of, command, summary)
    try:
        for text in arguments:
            text.encode()  # all of them travel as text
        with made.make_context(command, list(arguments)) as context:
            for parameter in made.params:
                given = context.params[parameter.name or ""]
                if parameter.required and "" in (given if isinstance(given, tuple) else (given,)):
                    raise UsageError(f"{command}: {parameter.opts[0]} is empty; see {command} --help")
            return of(**context.params)
    except UnicodeEncodeError as error:
        raise UsageError(f"{command}: {shown_uri(error.object)[:200]!r} is not text in UTF-8") from None
    except click.NoSuchOption as error:
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1)
        hint = f"did you mean {near[0]}?" if near else f"see {command} --help"
        raise UsageError(f"{command}: unknown argument {error.option_name}: {hint}") from error
    except click.MissingParameter as error:
        name = error.param.opts[0] if error.param is not None else "an argument"
        raise UsageError(f"{command}: {name} is missing; see {command} --help") from error
    except click.ClickException as error:
        message = error.format_message()
        for text in arguments:
            if "://" in text:
                message = message.replace(text, shown_uri(text))
        raise UsageError(f"{command}: {one_line(message)}") from None
    except click.exceptions.Exit as error:
        raise HelpShown from error


class HelpShown(Exception):
    """The help was asked for, and was printed."""


def _command(of: type[Any], name: str, summary: str) -> click.Command:
    hints = get_type_hints(of)
    parameters: list[click.Parameter] = [
        _option(field, hints[field.name])
        for field in sorted(dataclasses.fields(of), key=_own_first(of))
        if "argument" in field.metadata
    ]
    return click.Command(
        name,
        params=parameters,
        help=summary,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )


def _own_first(of: type[Any]) -> Any:
    """Put the job's own arguments before those of all jobs in the help."""
    own = inspect.get_annotations(of)
    return lambda field: field.name not in own


def _option(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    details = cast("Mapping[str, Any]", field.metadata["argument"])
    name = field.name.replace("_", "-")
    required = field.default is _REQUIRED
    shared: dict[str, Any] = {
        "help": details["help"],
        "envvar": details["env"],
        "show_envvar": details["env"] is not None,
        "hidden": details["hidden"],
        "required": required,
    }
    if not required:
        shared["default"] = field.default
    if hint is bool:
        flag = f"--{name}/--no-{name}" if field.default is True else f"--{name}"
        return click.Option([flag, field.name], is_flag=True, show_default=field.default is True, **shared)
    several = "tuple" in str(hint)
    return click.Option(
        [f"--{name}", field.name],
        type=_type_of(details, hint),
        multiple=several,
        metavar=details["metavar"],
        show_default=field.default not in (None, (), "", _REQUIRED),
        **shared,
    )


def _type_of(details: Mapping[str, Any], hint: Any) -> Kind:
    if details["kind"] is not None:
        return cast("Kind", details["kind"])
    if details["choices"]:
        return click.Choice(details["choices"])
    text = str(hint)
    if hint is int or text.startswith("int |"):
        return click.INT
    if hint is float or text.startswith("float |"):
        return click.FLOAT
    return click.STRING


@dataclass(frozen=True, kw_only=True)
class CommonArguments:
    """The arguments of every job; each job's `Arguments` extend this."""

    slot_bytes_per_second: ClassVar[int | None] = None
    """Bytes per second of each slot if `--max-bytes-per-second` is not given; None: no limit."""

    metadata: str = argument(help="URI of the cluster's metadata service.", metavar="URI", env=URI_VARIABLE)
    option: tuple[str, ...] = argument(
        (),
        help="How the cluster is reached, by the data source's option names, such as tls.caFile or client.readTimeout;"
        " may be given several times.",
        metavar="NAME=VALUE",
    )
    password_file: str | None = argument(
        None,
        help="File with the ledgers' password, on every executor too. Default: what each ledger recorded.",
        metavar="FILE",
    )
    dry_run: bool = argument(False, help="Say what would be done, and change nothing.")
    older_than: float | None = argument(None, help="Only ledgers made at least so long ago, such as 3d.", kind=DURATION)
    where: str | None = argument(
        None, help='Only ledgers for which this SQL condition holds, such as "bytes > 1e9".', metavar="SQL"
    )
    max_concurrent: int | None = argument(
        None, help="Pieces of work at a time. Default: as many as Spark has slots.", metavar="N", kind=COUNT
    )
    max_bytes_per_second: float | None = argument(
        None,
        help="Limit of the whole job, such as 100m; none: no limit. Default: 16m for each slot of a job that walks"
        " everything (audit, scrub, offload, recover), no limit for others.",
        metavar="SIZE|none",
        kind=RATE,
    )
    time_limit: float | None = argument(
        None, help="Begin nothing new after so long; the next run goes on.", kind=DURATION
    )
    report: str | None = argument(None, help="Write findings and details there as Parquet.", metavar="URI")
    result: str | None = argument(None, help="Write the result row, one line of JSON, there too.", metavar="FILE")
    niceness: int = argument(
        19,
        help="How far the processes that a job starts on this machine step back from the processors, as nice counts.",
        metavar="0..19",
        kind=NICENESS,
    )
    master: str | None = argument(None, help="Spark's master. Default: spark-submit's, else local[*].", metavar="URL")

    def bytes_per_second(self, slots: int) -> float | None:
        """The limit of all that so many slots move together; None: no limit."""
        if self.max_bytes_per_second is not None:
            return None if math.isinf(self.max_bytes_per_second) else self.max_bytes_per_second
        return None if self.slot_bytes_per_second is None else float(self.slot_bytes_per_second * slots)

    def access(self) -> AccessOptions:
        """Return the access of tasks and driver to the cluster. Raises `PodkeeperSparkError` (OPTION), or
        `UsageError`."""
        return access_options(self.metadata, self.option, self.password_file)


def access_options(metadata: str, options: tuple[str, ...], password_file: str | None) -> AccessOptions:
    """Return the access to a cluster, as `CommonArguments.access`; also for a second one. `password_file` None:
    recorded passwords count."""
    raw = {"metadataServiceUri": metadata}
    for text in options:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError("--option: must be NAME=VALUE")  # a word alone may be a secret
        raw[name] = value
    if password_file is not None:
        raw["passwordFile"] = password_file
    else:
        raw["recordedPasswords"] = "true"
    return parse_options(raw, AccessOptions)
