"""The job `space`: sizes of ledgers by owner and by bookie, disks and entry logs of bookies, and a forecast.

Tasks read metadata alone; bookies are asked over their admin API about disks and entry logs.

Format of the detail report of `space` and `compact-report`, which is one table for owners, bookies and entry logs:
`section` is owner, bookie or entry log; `name` is the owner as "kind name", the bookie, or "bookie file". What a
section does not have is null.

Driver only, but for the task `take_stock`.

Source: docs/http-api.md, "Who may ask".
"""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from bookie_client.client import Client
from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.admin_api import gc
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.admin_api.trust import Trust
from bookie_protocol.errors import MetadataDamaged, MetadataError, NoSuchLedger, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded
from pyspark_bookie.common.secrets import read_token
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, CommonArguments, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.owners import Owners, Standing
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.replicas.units import Planned, Slice, Unit, chosen_ids, light_units, size_of
from pyspark_bookie.source.tables.entry_logs import ask_why, log_names

if TYPE_CHECKING:
    import pyarrow as pa

LEDGERS: Final = 2_000
"""Ledgers of one piece."""
_NUMBERS: Final = (
    "ledgers",
    "open_ledgers",
    "payload_bytes",
    "replica_bytes",
    "leaked_ledgers",
    "leaked_bytes",
    "used_bytes",
    "free_bytes",
    "garbage_bytes",
    "reclaimable_bytes",
)
AT_ONCE: Final = 16
READ_AT_ONCE: Final = 64


@dataclass(frozen=True, kw_only=True)
class AdminArguments(CommonArguments):
    """The arguments of jobs that ask the bookies' admin API."""

    admin_token_file: str | None = argument(None, help="File with the token of the admin API.", metavar="FILE")
    admin_ca_file: str | None = argument(
        None, help="Authorities to trust, of bookies that serve HTTPS.", metavar="FILE"
    )
    admin_certificate_file: str | None = argument(None, help="Certificate shown to the admin API.", metavar="FILE")
    admin_key_file: str | None = argument(None, help="Its key.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class SpaceArguments(SelectionArguments, AdminArguments):
    """The arguments of `space`, by default about all ledgers."""

    entry_logs: int = argument(0, help="Look at so many entry logs of each bookie one by one.", metavar="N")
    window: float = argument(
        7 * DAY_S, help="The forecast goes by what was written in so long, and is still there.", kind=DURATION
    )
    leaked_after: float = argument(
        3 * DAY_S, help="A ledger that its owner does not list is leaked when it is so old.", kind=DURATION
    )
    managed_ledgers: str = argument("/managed-ledgers", help="Where Pulsar keeps its lists.", metavar="PATH")


@job("space")
class SpaceJob:
    """Tell why disks are full: bytes by owner, garbage by bookie, leaked ledgers, and when the space will be used up.

    Owners come from the ledgers' custom metadata and from the lists of streams and of Pulsar; garbage from the bookies'
    admin API. Changes nothing. Exit code 2: there are leaked ledgers, or bookies that could not be asked.
    """

    Arguments = SpaceArguments

    def run(self, context: JobContext[SpaceArguments]) -> JobResult:
        """See the class."""
        return report(context)


def report(context: JobContext[SpaceArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`."""
    args = context.args
    context.open_spark()
    stock, failed, complete = _stock(context)
    bookies = bookies_of(context, args.entry_logs)
    counters: dict[str, Value] = {"ledgers": stock.ledgers, "owners": len(stock.by_owner)}
    counters["payload_bytes"] = sum(space.payload_bytes for space in stock.by_owner.values())
    counters["replica_bytes"] = sum(space.replica_bytes for space in stock.by_owner.values())
    counters["leaked_ledgers"] = leaked = sum(space.leaked_ledgers for space in stock.by_owner.values())
    counters["leaked_bytes"] = sum(space.leaked_bytes for space in stock.by_owner.values())
    counters["metadata_damaged"] = stock.damaged
    counters |= bookie_counters(bookies)
    per_day = bytes_per_day(stock.recent_bytes, args.window)
    days = days_until_full(sum(each.free_bytes for each in bookies), per_day)
    counters["bytes_per_day"] = round(per_day)
    counters["days_until_full"] = None if days is None else round(days, 1)
    counters["pieces_failed"] = failed
    rows = [*owner_rows(stock), *bookie_rows(bookies, stock.by_bookie), *log_rows(bookies)]
    found = bool(leaked or failed or stock.damaged or any(each.problem for each in bookies))
    return JobResult(counters, table_of(rows), JobExit.FINDINGS if found else JobExit.OK, complete)


def bookies_of(context: JobContext[AdminArguments], entry_logs: int) -> list[BookieSpace]:
    """Return the answers of all registered bookies. Raises `UsageError` for files that cannot be used,
    `MetadataUnavailable`."""
    args = context.args
    access = AdminAccess(args.admin_token_file, args.admin_ca_file, args.admin_certificate_file, args.admin_key_file)
    try:
        token, tls = access.token(), access.context()
    except OSError as error:
        raise UsageError(f"{context.name}: the files of the admin API cannot be used: {error}") from error

    async def ask(client: Client) -> list[BookieSpace]:
        async with aiohttp.ClientSession() as session:
            places = await admin_places(client, tls, access.trust(tls))
            return await ask_bookies(AdminClient(session, token), places, entry_logs)

    return context.client().run(ask)


def bookie_counters(bookies: Sequence[BookieSpace]) -> dict[str, Value]:
    """Sums for the result row."""
    return {
        "bookies": len(bookies),
        "bookies_not_told": sum(bool(each.problem) for each in bookies),
        "used_bytes": sum(each.used_bytes for each in bookies),
        "free_bytes": sum(each.free_bytes for each in bookies),
        "garbage_bytes": sum(each.garbage_bytes for each in bookies),
        "minor_reclaimable_bytes": sum(each.minor_reclaimable for each in bookies),
        "major_reclaimable_bytes": sum(each.major_reclaimable for each in bookies),
        "quarantined_logs": sum(each.quarantined_logs for each in bookies),
    }


def _stock(context: JobContext[SpaceArguments]) -> tuple[Stock, int, bool]:
    args, now = context.args, time.time()
    question = StockQuestion(
        int((now - args.window) * 1000), int((now - args.leaked_after) * 1000), args.managed_ledgers
    )
    ids = chosen_ids(context)
    planned = Planned(light_units(context, ids, LEDGERS))
    context.progress(0, len(ids), "ledgers")
    stock, failed = Stock(), 0
    for outcome in context.run_tasks(partial(take_stock, question), planned):
        if outcome.result is None:
            failed += 1
            context.log(f"a piece of {len(outcome.item.slices)} ledgers failed: {outcome.failure.message}")
            continue
        stock.add(outcome.result)
        context.progress(stock.ledgers, len(ids), "ledgers")
    return stock, failed, planned.ended and not failed


def bytes_per_day(recent_bytes: int, window_s: float) -> float:
    """Growth, from what was written within the window and is still there."""
    return recent_bytes * DAY_S / window_s if window_s > 0 else 0.0


def days_until_full(free_bytes: int, per_day: float) -> float | None:
    """None: it does not grow."""
    return None if per_day <= 0 else free_bytes / per_day


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build the detail report from rows of this module."""
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in _NUMBERS]
    schema = pa.schema([("section", pa.string()), ("name", pa.string()), *numbers, ("detail", pa.string())])
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def owner_rows(stock: Stock) -> list[dict[str, Any]]:
    """The largest first."""
    ordered = sorted(stock.by_owner.items(), key=lambda item: (-item[1].replica_bytes, item[0]))
    return [
        {
            "section": "owner",
            "name": f"{kind} {name}".strip(),
            "ledgers": space.ledgers,
            "open_ledgers": space.open_ledgers,
            "payload_bytes": space.payload_bytes,
            "replica_bytes": space.replica_bytes,
            "leaked_ledgers": space.leaked_ledgers,
            "leaked_bytes": space.leaked_bytes,
        }
        for (kind, name), space in ordered
    ]


def bookie_rows(bookies: Iterable[BookieSpace], expected: Mapping[str, int]) -> list[dict[str, Any]]:
    """The bookies, those with the most garbage first."""
    return [
        {
            "section": "bookie",
            "name": each.bookie,
            "replica_bytes": expected.get(each.bookie),
            "used_bytes": None if each.problem else each.used_bytes,
            "free_bytes": None if each.problem else each.free_bytes,
            "garbage_bytes": None if each.problem else each.garbage_bytes,
            "reclaimable_bytes": None if each.problem else each.major_reclaimable,
            "detail": each.problem or _compaction(each),
        }
        for each in sorted(bookies, key=lambda each: (-each.garbage_bytes, each.bookie))
    ]


def log_rows(bookies: Iterable[BookieSpace]) -> list[dict[str, Any]]:
    """The entry logs, those with the most garbage first."""
    logs = [log for each in bookies for log in each.logs]
    return [
        {
            "section": "entry log",
            "name": f"{log.bookie} {log.name}",
            "ledgers": len(log.owners) or None,
            "used_bytes": log.size,
            "garbage_bytes": None if log.live_bytes is None else max(0, log.size - log.live_bytes),
            "detail": log.reason,
        }
        for log in sorted(logs, key=lambda log: (-(log.size - (log.live_bytes or log.size)), log.bookie, log.name))
    ]


def _compaction(space: BookieSpace) -> str:
    parts = [
        f"minor compaction gives {space.minor_reclaimable} bytes for {space.minor_rewritten} copied",
        f"major {space.major_reclaimable} for {space.major_rewritten}",
    ]
    if space.unmeasured_logs:
        parts.append(f"{space.unmeasured_logs} entry logs are not measured")
    if space.quarantined_logs:
        parts.append(f"{space.quarantined_logs} are damaged and left alone")
    return "; ".join(parts)


@dataclass(frozen=True)
class AdminAccess:
    """The files that it takes, on the driver."""

    token_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def token(self) -> str | None:
        """Return the token to show. Raises `PodkeeperSparkError` for a file that cannot be used."""
        return read_token("adminTokenFile", self.token_file) if self.token_file is not None else None

    def context(self) -> ssl.SSLContext:
        """Return the context for bookies that serve HTTPS. Raises `OSError` for files that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context

    def trust(self, tls: ssl.SSLContext) -> Trust:
        """Return the servers that may see the token; `tls`: what `context` returned."""
        authorities = tls if self.ca_file is not None else None
        return Trust(authorities=authorities, remedy="set httpServerTlsEnable=true there, and --admin-ca-file here")


async def admin_places(client: Client, tls: ssl.SSLContext, trust: Trust) -> dict[str, Place | None]:
    """Return the address of each registered bookie's admin API, with its scheme, as the bookie publishes it; None:
    it has none.

    Raises `MetadataUnavailable`.
    """
    places: dict[str, Place | None] = {}
    for bookie in sorted(await client.bookies.writable() | await client.bookies.read_only()):
        try:
            url = (await client.bookies.info(bookie)).admin_url()
        except MetadataError:
            url = None
        places[bookie] = None if url is None else Place(url, url, tls, trust=trust)
    return places


@dataclass(frozen=True, slots=True)
class LogSpace:
    """One entry log. `live_bytes` None: not measured yet."""

    bookie: str
    name: str
    size: int
    live_bytes: int | None
    owners: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """One bookie. `log_bytes` and `garbage_bytes`: of the entry logs that were measured; `minor` and `major`: what the
    two compactions would give back now, and what they would copy for it. `problem`: why nothing more is known."""

    bookie: str
    total_bytes: int = 0
    free_bytes: int = 0
    log_bytes: int = 0
    garbage_bytes: int = 0
    minor_reclaimable: int = 0
    minor_rewritten: int = 0
    major_reclaimable: int = 0
    major_rewritten: int = 0
    unmeasured_logs: int = 0
    quarantined_logs: int = 0
    logs: tuple[LogSpace, ...] = ()
    problem: str = ""

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


async def ask_bookies(api: AdminClient, places: Mapping[str, Place | None], most_logs: int) -> list[BookieSpace]:
    """Every bookie; of each at most so many entry logs are looked at one by one."""

    async def ask(item: tuple[str, Place | None]) -> BookieSpace:
        bookie, at = item
        if at is None:
            return BookieSpace(bookie, problem=f"bookie {bookie} publishes no admin API: set httpServerEnabled=true")
        try:
            return await _ask(api, bookie, at, most_logs)
        except PodkeeperError as error:
            return BookieSpace(bookie, problem=f"bookie {bookie}: {error}")

    return await bounded(sorted(places.items()), ask, at_a_time=AT_ONCE)


async def _ask(api: AdminClient, bookie: str, at: Place, most_logs: int) -> BookieSpace:
    info = await api.ask(at, bookie_api.INFO)
    forecasts = await api.ask(at, gc.FORECAST)
    quarantined = await api.ask(at, gc.QUARANTINE)
    logs = await _logs(api, bookie, at, most_logs) if most_logs else []
    tenths = [tenth for forecast in forecasts for tenth in forecast.usage]
    return BookieSpace(
        bookie,
        total_bytes=info.total_space,
        free_bytes=info.free_space,
        log_bytes=sum(each.total_bytes for each in tenths),
        garbage_bytes=sum(each.reclaimable_bytes for each in tenths),
        minor_reclaimable=sum(each.minor.reclaimable_bytes for each in forecasts),
        minor_rewritten=sum(each.minor.rewritten_bytes for each in forecasts),
        major_reclaimable=sum(each.major.reclaimable_bytes for each in forecasts),
        major_rewritten=sum(each.major.rewritten_bytes for each in forecasts),
        unmeasured_logs=sum(each.unmeasured_logs for each in forecasts),
        quarantined_logs=len(quarantined),
        logs=tuple(logs),
    )


async def _logs(api: AdminClient, bookie: str, at: Place, most: int) -> list[LogSpace]:
    found = []
    for name in (await log_names(api, at))[:most]:
        for each in await ask_why(api, at, name) or ():
            owners = tuple(share.ledger_id for share in each.owners or ())
            found.append(LogSpace(bookie, name, each.size, each.live_bytes, owners, each.reason))
    return found


@dataclass(slots=True)
class OwnerSpace:
    """`payload_bytes`: once; `replica_bytes`: of all copies; both of closed ledgers. `leaked`: ledgers that the owner
    does not list, and that are old enough."""

    ledgers: int = 0
    open_ledgers: int = 0
    payload_bytes: int = 0
    replica_bytes: int = 0
    leaked_ledgers: int = 0
    leaked_bytes: int = 0

    def add(self, other: OwnerSpace) -> None:
        self.ledgers += other.ledgers
        self.open_ledgers += other.open_ledgers
        self.payload_bytes += other.payload_bytes
        self.replica_bytes += other.replica_bytes
        self.leaked_ledgers += other.leaked_ledgers
        self.leaked_bytes += other.leaked_bytes


@dataclass(slots=True)
class Stock:
    """`by_owner`: by kind and name. `by_bookie`: bytes that bookies should hold. `recent_bytes`: of all copies, of
    ledgers made within the window."""

    ledgers: int = 0
    damaged: int = 0
    by_owner: dict[tuple[str, str], OwnerSpace] = field(default_factory=dict)
    by_bookie: Counter[str] = field(default_factory=Counter)
    recent_bytes: int = 0

    def add(self, other: Stock) -> None:
        self.ledgers += other.ledgers
        self.damaged += other.damaged
        self.by_bookie.update(other.by_bookie)
        self.recent_bytes += other.recent_bytes
        for key, space in other.by_owner.items():
            self.by_owner.setdefault(key, OwnerSpace()).add(space)


@dataclass(frozen=True, slots=True)
class StockQuestion:
    """Times in ms since 1970: ledgers made after `recent_since` are recent, those made before `leaked_before` and not
    listed are leaked."""

    recent_since: int
    leaked_before: int
    managed_ledgers: str


def take_stock(question: StockQuestion, unit: Unit, environment: TaskEnvironment) -> Stock:
    """Count the ledgers of a unit by their owners, in a task of Spark."""
    return environment.client().run(lambda client: stock_of(client, question, unit))


async def stock_of(client: Client, question: StockQuestion, unit: Unit) -> Stock:
    """Count the ledgers of a unit, on the event loop of `client`. Raises `MetadataUnavailable`."""
    owners, stock = Owners(client, question.managed_ledgers), Stock()

    async def count_ledger(each: Slice) -> None:
        try:
            metadata = await client.metadata(each.ledger_id)
        except NoSuchLedger:
            return
        except MetadataDamaged:
            stock.damaged += 1
            return
        ownership = await owners.of(metadata)
        leaked = ownership.standing is Standing.ORPHAN and _before(metadata, question.leaked_before)
        _count(stock, (ownership.kind.value, ownership.name), metadata, leaked, question.recent_since)

    await bounded(unit.slices, count_ledger, READ_AT_ONCE)
    return stock


def _before(metadata: LedgerMetadata, moment: int) -> bool:
    return metadata.ctime is not None and metadata.ctime <= moment


def _count(stock: Stock, owner: tuple[str, str], metadata: LedgerMetadata, leaked: bool, recent_since: int) -> None:
    size = size_of(metadata)
    stock.ledgers += 1
    stock.by_bookie.update(dict(size.by_bookie))
    if metadata.ctime is not None and metadata.ctime > recent_since:
        stock.recent_bytes += size.replica_bytes
    space = OwnerSpace(1, int(not metadata.is_closed), size.nbytes, size.replica_bytes)
    if leaked:
        space.leaked_ledgers, space.leaked_bytes = 1, size.replica_bytes
    stock.by_owner.setdefault(owner, OwnerSpace()).add(space)
