"""The search for the position at which a read by time begins, by what is known of times.

| selected | known times |
|---|---|
| streams of ledgers | when each ledger was closed or published |
| topics of Pulsar, `decode=pulsar` | of each entry: the broker's if it recorded one, else the producer's; when each ledger was closed |
| ledgers by themselves | when each was created |

Invariants
- No entry that was appended at or after the time is left out, as far as the clocks of those who wrote the times agree.
  Where entries have no times, older entries of one ledger may come too.
- An unknown time is never taken for an old one: a ledger without a time of closing may hold what is wanted, and of one
  that was created before, without times in its entries, nothing is known. `NoMatch` says what happens then.
- Nothing is fenced. A search reads one entry for each bisection of a ledger.

Event loop of the client only.
"""  # noqa: E501 - a table

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError, UndecodableEntry
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.positions import Positions
from pyspark_bookie.source.pulsar import entry_time
from pyspark_bookie.source.starting_times import StartingTimes

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.reading.handle import LedgerReader

_AT_ONCE: Final = 16


class DatedLedger(NamedTuple):
    """A ledger that was selected by itself. `entries` None: unknown, because it is open."""

    ledger_id: int
    created_ms: int | None
    entries: int | None


async def positions_in_streams(
    client: Client,
    manifests: Sequence[Manifest],
    times: StartingTimes,
    options: SourceOptions,
    wall_clock: Callable[[], float] = time.time,
) -> Positions:
    """Return a position in each stream with ledgers that has a time. Raises `PodkeeperError`, `PodkeeperSparkError`."""
    times.check_named({manifest.name for manifest in manifests}, "the selected streams")
    now_ms = wall_clock() * 1000
    found = await bounded(manifests, lambda each: _in_stream(client, each, times, options, now_ms), _AT_ONCE)
    return Positions(None, dict(place for place in found if place is not None))


async def positions_in_ledgers(
    client: Client, ledgers: Sequence[DatedLedger], times: StartingTimes, options: SourceOptions
) -> Positions:
    """Return a position in each ledger that is not read from its beginning. Raises as `positions_in_streams`."""
    times.check_named({str(ledger.ledger_id) for ledger in ledgers}, "the selected ledgers")
    found = await bounded(ledgers, lambda each: _in_ledger(client, each, times, options), _AT_ONCE)
    return Positions(None, dict(place for place in found if place is not None))


# --- inside -----------------------------------------------------------------------------------------------------


async def _in_stream(
    client: Client, manifest: Manifest, times: StartingTimes, options: SourceOptions, now_ms: float
) -> tuple[int, int] | None:
    at = times.of(manifest.name)
    if at is None or not manifest.ledgers:
        return None
    for ledger in manifest.ledgers:
        if not _may_hold(ledger, at, now_ms):
            continue
        entry = await _first_entry(client, ledger.ledger_id, at, options) if options.entries_have_times else 0
        if entry is not None:
            return ledger.ledger_id, entry
    last = manifest.ledgers[-1]
    return last.ledger_id, times.no_match(manifest.name, f"{manifest.name} has nothing that is so new{_closed(last)}")


def _may_hold(ledger: StreamLedger, at: int, now_ms: float) -> bool:
    """Return True if a ledger of a stream can have an entry of this time or later."""
    return at <= (ledger.closed_ms or now_ms)


def _closed(ledger: StreamLedger) -> str:
    return f": its last ledger was closed at {_shown(ledger.closed_ms)}" if ledger.closed_ms else ""


async def _in_ledger(
    client: Client, ledger: DatedLedger, times: StartingTimes, options: SourceOptions
) -> tuple[int, int] | None:
    ledger_id, created_ms, entries = ledger
    at = times.of(str(ledger_id))
    if at is None or entries == 0 or (created_ms is not None and created_ms >= at):
        return None
    if options.entries_have_times:
        entry = await _first_entry(client, ledger_id, at, options)
        what = f"ledger {ledger_id} has no entry that is so new"
    else:
        entry = None
        when = "at an unknown time" if created_ms is None else f"before, at {_shown(created_ms)}"
        what = f"ledger {ledger_id} was created {when}, and its entries have no times"
    return ledger_id, times.no_match(str(ledger_id), what) if entry is None else entry


async def _first_entry(client: Client, ledger_id: int, at: int, options: SourceOptions) -> int | None:
    """Return the first entry of this time or later, as Pulsar finds it; None: there is none. A ledger that is gone from
    the bookies begins with its first entry: the read says what becomes of it."""
    try:
        async with client.open(ledger_id, password=options.password.read(), digest=options.digest_type) as ledger:
            first, end = 0, ledger.last_add_confirmed + 1
            if not end or await _time(ledger, end - 1) < at:
                return None
            end -= 1
            while first < end:
                middle = (first + end) // 2
                if await _time(ledger, middle) < at:
                    first = middle + 1
                else:
                    end = middle
            return first
    except NoSuchLedger:
        return 0


async def _time(ledger: LedgerReader, entry_id: int) -> int:
    (entry,) = await ledger.read(entry_id, entry_id)
    try:
        return entry_time(entry.payload)
    except UndecodableEntry as error:
        raise PodkeeperSparkError(
            DECODE,
            f"entry {entry_id} of ledger {entry.ledger_id} has no time to begin at: {error}; use startingPosition",
        ) from None


def _shown(ms: int | None) -> str:
    try:
        return f"{datetime.fromtimestamp((ms or 0) / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
