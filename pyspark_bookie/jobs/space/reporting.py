"""The reports of space: ledgers by tasks, bookies by their admin API, and the forecast.

Driver only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.replicas.planning import chosen_ids, light_units
from pyspark_bookie.jobs.replicas.units import Planned
from pyspark_bookie.jobs.space.admin import AdminAccess, AdminApi, admin_urls
from pyspark_bookie.jobs.space.bookie_space import BookieSpace, ask_bookies
from pyspark_bookie.jobs.space.forecast import bytes_per_day, days_until_full
from pyspark_bookie.jobs.space.job import AdminArguments, SpaceArguments
from pyspark_bookie.jobs.space.ledger_space import Stock, StockQuestion, take_stock
from pyspark_bookie.jobs.space.rows import bookie_rows, log_rows, owner_rows, table_of

LEDGERS: Final = 2_000
"""Of one piece."""


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
    """What all registered bookies say. Raises `UsageError` for files that cannot be used, `MetadataUnavailable`."""
    args = context.args
    access = AdminAccess(args.admin_token_file, args.admin_ca_file, args.admin_certificate_file, args.admin_key_file)
    urls = context.client().run(admin_urls)
    try:
        api = AdminApi(urls, access)
    except OSError as error:
        raise UsageError(f"{context.name}: the files of the admin API cannot be used: {error}") from error
    return ask_bookies(api, entry_logs)


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
