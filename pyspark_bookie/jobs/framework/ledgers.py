"""Which ledgers a job is about: the arguments that select them, and reading their metadata.

    @dataclass(frozen=True, kw_only=True)
    class Arguments(SelectionArguments): ...

    selected = select_ledgers(context)
    for row in selected.rows: ...                # ascending ids; of streams, in their order

Exactly one of `--ledgers`, `--stream`, `--ledger-pattern`, `--all`; then `--older-than` and `--where` narrow it.

Driver only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.archive import LedgerIdentity
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.shown import moment
from bookie_protocol.together import bounded
from pyspark_bookie.archive.places import StreamPlace
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.framework.arguments import LEDGERS, CommonArguments, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.source.selection import ids_of

if TYPE_CHECKING:
    from bookie_client import Client

_READ_AT_ONCE: Final = 64
_COLUMNS: Final = (
    "ledger_id long, state string, entries long, bytes long, created timestamp, ensemble int, write_quorum int,"
    " ack_quorum int, application string, stream string, metadata map<string, string>"
)
BUNDLE_BYTES: Final = 64 * 1024 * 1024
BUNDLE_LEDGERS: Final = 200


@dataclass(frozen=True, kw_only=True)
class SelectionArguments(CommonArguments):
    """The arguments of jobs that work on a choice of ledgers."""

    ledgers: LedgerIds | None = argument(  # noqa: RUF009 - it makes a field
        None, help="These ledgers, such as 5,7,100-200.", kind=LEDGERS, metavar="IDS"
    )
    stream: tuple[str, ...] = argument((), help="All ledgers of a stream; may be given several times.", metavar="NAME")
    ledger_pattern: str | None = argument(
        None, help="Ledgers whose custom metadata KEY matches the regular expression as a whole.", metavar="KEY=REGEX"
    )
    all: bool = argument(False, help="All ledgers of the cluster.")

    @property
    def is_narrowed(self) -> bool:
        """Something leaves ledgers out."""
        choices = (self.ledgers, self.ledger_pattern, self.where, self.older_than)
        return bool(self.stream) or any(each is not None for each in choices)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A ledger, as far as choosing it needs. `entries` and `nbytes` are those of a closed ledger, else 0."""

    ledger_id: int
    state: str
    entries: int
    nbytes: int
    created_ms: int | None
    quorums: tuple[int, int, int]
    custom: dict[str, bytes] = field(hash=False)
    token: int = 0
    """Token, as in `LedgerIdentity`."""
    uuid: str = ""
    """Uuid of the attempt that archived the ledger, which names it in the archive."""
    place: StreamPlace | None = None
    """Place in the stream that listed the ledger, as files tell it."""

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> LedgerRow:
        return cls(
            metadata.ledger_id,
            metadata.state.value,
            metadata.last_entry_id + 1,
            metadata.length,
            metadata.ctime,
            (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size),
            dict(metadata.custom_metadata),
            metadata.creation_token,
        )

    @property
    def identity(self) -> LedgerIdentity:
        """The identity of a closed ledger: what tells it from another one of its number."""
        return LedgerIdentity(self.entries - 1, self.nbytes, self.created_ms, self.token)

    @property
    def life(self) -> str:
        """The same as a text; empty where nothing but its size tells it from another one."""
        if self.uuid or not (self.token or self.created_ms):
            return self.uuid
        return f"{self.entries}:{self.nbytes}:{self.created_ms or 0}:{self.token}"

    @property
    def is_closed(self) -> bool:
        return self.state == "CLOSED"

    @property
    def stream(self) -> str | None:
        """The stream that the ledger was written for."""
        return text_of(self.custom.get(STREAM_KEY))


@dataclass(frozen=True, slots=True)
class Selected:
    """`missing`: ids that were named one by one, or that a stream lists, and that do not exist."""

    rows: tuple[LedgerRow, ...]
    missing: tuple[int, ...]


def select_ledgers(context: JobContext[SelectionArguments]) -> Selected:
    """Read the metadata of what the arguments select. Raises `UsageError`, and what the metadata service raises."""
    args = context.args
    check_selection(args)
    wanted = _pattern(args.ledger_pattern)
    rows, missing = context.client().run(lambda client: _read(client, args, context.progress))
    return Selected(tuple(narrowed(context, [row for row in rows if wanted(row)])), tuple(missing))


def check_selection(args: SelectionArguments) -> None:
    """Check the selection, for jobs that want to know before they connect to anything. Raises `UsageError`."""
    given = [args.ledgers is not None, bool(args.stream), args.ledger_pattern is not None, args.all]
    if sum(given) != 1:
        raise UsageError("select ledgers by exactly one of --ledgers, --stream, --ledger-pattern and --all")
    _pattern(args.ledger_pattern)


def narrowed(context: JobContext[CommonArguments], rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows that `--older-than` and `--where` leave, in the order given. Raises `UsageError`."""
    args = context.args
    kept = list(rows)
    if args.older_than is not None:
        before = (time.time() - args.older_than) * 1000
        kept = [row for row in kept if row.created_ms is not None and row.created_ms <= before]
    if args.where is not None:
        ids = _where(context, kept, args.where)
        kept = [row for row in kept if row.ledger_id in ids]
    return kept


async def _read(
    client: Client, args: SelectionArguments, progress: Callable[..., None]
) -> tuple[list[LedgerRow], list[int]]:
    """Return the selected ledgers that exist, and the ids of missing ones that have to exist."""
    rows: dict[int, LedgerRow] = {}
    named = await _named(client, args)

    async def read(ledger_id: int) -> None:
        try:
            rows[ledger_id] = LedgerRow.of(await client.metadata(ledger_id))
        except NoSuchLedger:
            pass  # deleted since it was listed
        progress(len(rows), None, "ledgers", "reading metadata")

    ids = sorted(await ids_of(client, args.ledgers)) if named is None else named
    await bounded(ids, read, _READ_AT_ONCE)
    must_exist = {*(named or ()), *(args.ledgers.singles() if args.ledgers else ())}
    return [rows[each] for each in ids if each in rows], sorted(must_exist - rows.keys())


async def _named(client: Client, args: SelectionArguments) -> list[int] | None:
    """The ids where they are known without a listing, in their order; None: the cluster has to be listed."""
    if args.stream:
        from bookie_client.streams import Streams

        manifests = [await Streams(client).manifest(name) for name in args.stream]
        return list(dict.fromkeys(ledger.ledger_id for manifest in manifests for ledger in manifest.ledgers))
    if args.ledgers is not None and all(first == last for first, last in args.ledgers.spans):
        return sorted(set(args.ledgers.singles()))
    return None


def _pattern(text: str | None) -> Callable[[LedgerRow], bool]:
    if text is None:
        return lambda _: True
    key, separator, expression = text.partition("=")
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UsageError(f"--ledger-pattern {text}: is not a regular expression: {error}") from error
    if not separator or not key:
        raise UsageError(f"--ledger-pattern {text}: must be KEY=REGEX, such as application=pulsar")

    def matches(row: LedgerRow) -> bool:
        value = text_of(row.custom.get(key))
        return value is not None and compiled.fullmatch(value) is not None

    return matches


def _where(context: JobContext[CommonArguments], rows: list[LedgerRow], condition: str) -> set[int]:
    """Ids of the rows for which a condition in Spark's SQL holds."""
    from pyspark.errors import AnalysisException, ParseException

    if not rows:
        return set()
    try:
        frame = context.spark.createDataFrame([_values(row) for row in rows], _COLUMNS)
        return {found[0] for found in frame.where(condition).select("ledger_id").collect()}
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"--where {condition}: {first}; the columns are {_COLUMNS}") from error


def _values(row: LedgerRow) -> tuple[object, ...]:
    custom = {key: value.decode("utf-8", "replace") for key, value in row.custom.items()}
    return (
        row.ledger_id,
        row.state,
        row.entries,
        row.nbytes,
        moment(row.created_ms),
        *row.quorums,
        custom.get("application"),
        custom.get(STREAM_KEY),
        custom,
    )


def text_of(value: bytes | None) -> str | None:
    """A value of custom metadata, as people read it; None stays None."""
    return None if value is None else value.decode("utf-8", "replace")


def bundles(
    rows: Iterable[LedgerRow], max_bytes: int = BUNDLE_BYTES, max_ledgers: int = BUNDLE_LEDGERS, at_least: int = 1
) -> list[tuple[LedgerRow, ...]]:
    """Every ledger in exactly one bundle. A bundle has at most `max_bytes`, or is one ledger; bundles come with the
    largest first, so that the last tasks of a job are short. There are `at_least` so many, if there are ledgers enough:
    no slot stays idle for the sake of bundling."""
    by_size = sorted(rows, key=lambda row: (-row.nbytes, row.ledger_id))
    max_ledgers = max(1, min(max_ledgers, -(-len(by_size) // max(1, at_least))))
    made: list[tuple[LedgerRow, ...]] = []
    current: list[LedgerRow] = []
    nbytes = 0
    for row in by_size:
        if current and (nbytes + row.nbytes > max_bytes or len(current) >= max_ledgers):
            made.append(tuple(current))
            current, nbytes = [], 0
        current.append(row)
        nbytes += row.nbytes
    if current:
        made.append(tuple(current))
    return made
