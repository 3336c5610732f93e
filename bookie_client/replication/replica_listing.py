"""The entries that each bookie really holds of a ledger, beside what the metadata say.

Asks every bookie for its list of entries; reads no entry, verifies no digest.

Event loop only.

Source: docs/internals/wire-protocol.md, section 8.8; docs/internals/auto-recovery.md, section 4.3.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Final

from bookie_client.access import replica_access
from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.replication.check import known_end
from bookie_client.replication.fragments import Fragment, StripedEntries, fragments
from bookie_client.replication.lists import YIELD_EVERY
from bookie_protocol.errors import NotThere, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded
from bookie_protocol.wire.availability import Availability

MAX_RUNS: Final = 1_000
"""Runs of entries that one list names; `count` is of all."""
ASKED_AT_A_TIME: Final = 16
MAX_HELD: Final = 1 << 32
"""Entries that one bookie can hold of one ledger, at most; who claims more is not believed."""


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """Entries as runs (first, last), ascending; the first `MAX_RUNS` of them."""

    count: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BookieReplicas:
    """One bookie's copies. `error`: why it could not tell; then `held`, `missing` and `surplus` are None.

    `missing`: by the metadata it should hold them. `surplus`: it holds them and the metadata do not say so, such as
    entries behind the end, or copies of an attempt that failed.
    """

    bookie: str
    registration: Registration
    expected: EntryRuns
    held: EntryRuns | None
    missing: EntryRuns | None
    surplus: EntryRuns | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerReplicas:
    """The replicas of one ledger by bookie.

    `last_entry`: the last known entry; if the last add confirmed of an open ledger is unknown, the last one before its
    last segment.
    """

    ledger_id: int
    metadata: LedgerMetadata
    last_entry: int
    bookies: tuple[BookieReplicas, ...]


async def replicas_of(
    client: Client, ledger_id: int, *, everywhere: bool = False, check: Callable[[LedgerMetadata], None] | None = None
) -> LedgerReplicas:
    """Ask every bookie that the ledger names; `everywhere`: every registered one as well. `check`: raises if the ledger
    is not to be looked at.

    Raises `LedgerDeleted`, `MetadataUnavailable`.
    """
    metadata = (await client.stored_metadata(ledger_id)).value
    if check is not None:
        check(metadata)
    last, _ = await known_end(client, metadata, replica_access(metadata, None, b"").digest)
    parts = fragments(ledger_id, metadata, last)
    asked = {bookie for fragment in parts for bookie in fragment.ensemble}
    if everywhere:
        asked |= await client.bookies.writable() | await client.bookies.read_only()
    registrations = Registrations(client.bookies, client.metadata_service.bookies)
    expected = await _expected(parts)

    async def ask(bookie: str) -> BookieReplicas:
        return await _replicas_at(client, ledger_id, expected.get(bookie, []), bookie, registrations)

    found = await bounded(sorted(asked), ask, ASKED_AT_A_TIME)
    named = metadata.all_bookies()
    # A bookie that is not named and holds nothing is not worth a line.
    shown = tuple(each for each in found if each.bookie in named or each.error is not None or each.held != NOTHING)
    return LedgerReplicas(ledger_id, metadata, last, shown)


# --- inside -------------------------------------------------------------------------------------------------------

NOTHING: Final = EntryRuns(0, ())


async def _expected(parts: tuple[Fragment, ...]) -> dict[str, list[StripedEntries]]:
    """Return the entries that each bookie should hold, in the order of the fragments."""
    found: dict[str, list[StripedEntries]] = {}
    for part in parts:
        for position, bookie in enumerate(part.ensemble):
            found.setdefault(bookie, []).append(part.entries_of(position))
        await asyncio.sleep(0)
    return found


async def _replicas_at(
    client: Client, ledger_id: int, should: list[StripedEntries], bookie: str, registrations: Registrations
) -> BookieReplicas:
    registration = await registrations.of(bookie)
    expected = await _runs(_ascending(should))
    if registration is Registration.NOWHERE:
        return BookieReplicas(bookie, registration, expected, None, None, None, "it is registered nowhere")
    try:
        has = await client.operations.entries_of_ledger(bookie, ledger_id)
    except NotThere:
        return BookieReplicas(bookie, registration, expected, NOTHING, expected, NOTHING)
    except PodkeeperError as error:
        return BookieReplicas(bookie, registration, expected, None, None, None, str(error))
    if has.count > MAX_HELD:
        return BookieReplicas(bookie, registration, expected, None, None, None, f"it claims {has.count} entries")
    held = _held_runs(has)
    missing = await _runs(_ascending(should), lambda entry: entry not in has)
    surplus = await _surplus(has, should)
    return BookieReplicas(bookie, registration, expected, held, missing, surplus)


async def _surplus(has: Availability, should: list[StripedEntries]) -> EntryRuns:
    """Return the entries that a bookie holds beside those that it should hold.

    Only entries within the ledger are compared one by one: a bookie may claim billions behind its end, of which some
    runs are named and the others counted.
    """
    end = max((part[-1] + 1 for part in should if len(part)), default=0)
    within = await _runs(
        (entry for run in has.runs_between(0, end) for entry in run),
        lambda entry: not any(entry in part for part in should),
    )
    runs = list(within.runs)
    for run in has.runs_between(end, sys.maxsize):
        if runs and runs[-1][1] == run[0] - 1:
            runs[-1] = (runs[-1][0], run[-1])
        elif len(runs) < MAX_RUNS:
            runs.append((run[0], run[-1]))
        else:
            break
    inside = sum(map(len, has.runs_between(0, end)))
    return EntryRuns(within.count + has.count - inside, tuple(runs))


def _ascending(parts: list[StripedEntries]) -> Iterator[int]:
    """Positions of one segment, if a bookie has several there, overlap; segments follow each other."""
    last = -1
    for entry in merge(*parts):
        if entry != last:
            yield entry
        last = entry


def _held_runs(has: Availability) -> EntryRuns:
    runs: list[tuple[int, int]] = []
    for run in has.runs():
        if len(runs) == MAX_RUNS:
            break
        runs.append((run[0], run[-1]))
    return EntryRuns(has.count, tuple(runs))


async def _runs(entries: Iterable[int], keep: Callable[[int], bool] | None = None) -> EntryRuns:
    runs: list[tuple[int, int]] = []
    count, first, last = 0, -1, -2
    for looked_at, entry in enumerate(entries, 1):
        if not looked_at % YIELD_EVERY:
            await asyncio.sleep(0)
        if keep is not None and not keep(entry):
            continue
        count += 1
        if entry != last + 1:
            if count > 1 and len(runs) < MAX_RUNS:
                runs.append((first, last))
            first = entry
        last = entry
    if count and len(runs) < MAX_RUNS:
        runs.append((first, last))
    return EntryRuns(count, tuple(runs))
