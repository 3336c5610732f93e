"""Which ledgers an inspection is about, and how large they are: read on the driver while the tasks work already.

Invariants
- A ledger whose metadata cannot be read is planned all the same: that is a finding, which its task makes.
- Memory: eight bytes for each ledger, and the sizes of those that are planned next.

Driver only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.errors import MetadataDamaged, NoSuchLedger
from pyspark_bookie.common.together import bounded
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments, select_ledgers
from pyspark_bookie.jobs.replicas.units import LedgerSize, Unit, groups, numbered, size_of

if TYPE_CHECKING:
    from bookie_client.client import Client

READ_AT_ONCE: Final = 64
READ_AHEAD: Final = 512
LEAST_PIECES: Final = 4
"""For each slot, where there are that many ledgers: pieces differ in the time they take."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """`ids`: ascending. `missing`: not among them; they had to exist, because a stream lists them, and do not."""

    ids: Sequence[int]
    missing: Sequence[int] = ()


def chosen_ids(context: JobContext[Any]) -> Sequence[int]:
    """As `chosen`, for jobs to which a ledger that does not exist is nothing."""
    return chosen(context).ids


def chosen(context: JobContext[Any]) -> Chosen:
    """What the arguments select; by default all. Ledgers that are named one by one need not exist: their look says so.
    Raises `UsageError`, `MetadataUnavailable`."""
    args: SelectionArguments = context.args
    if args.stream or args.ledger_pattern is not None or args.where is not None or args.older_than is not None:
        if args.ledgers is None and not args.stream and args.ledger_pattern is None and not args.all:
            context.args = replace(args, all=True)
        try:
            selected = select_ledgers(context)
            missing = selected.missing if args.stream else ()
            return Chosen(array("q", (row.ledger_id for row in selected.rows)), missing)
        finally:
            context.args = args
    within = args.ledgers
    if within is None:
        return Chosen(array("q", context.client().list()))
    named = set(within.singles())
    if all(first == last for first, last in within.spans):
        return Chosen(array("q", sorted(named)))
    return Chosen(array("q", sorted(named.union(each for each in context.client().list() if each in within))))


def fair_count(context: JobContext[Any], ids: Sequence[int]) -> int:
    """Ledgers of a piece, so that there are `LEAST_PIECES` for each slot."""
    return max(1, len(ids) // (LEAST_PIECES * context.concurrent))


def light_units(context: JobContext[Any], ids: Sequence[int], most: int) -> Iterator[Unit]:
    """Pieces of at most so many ledgers, in order, for looks that read no data."""
    unsized = (LedgerSize(ledger_id, None, 0, ()) for ledger_id in ids)
    return numbered(groups(unsized, 1, min(most, fair_count(context, ids))))


def sized(context: JobContext[Any], ids: Sequence[int]) -> Iterator[LedgerSize]:
    """The sizes of ledgers, in the order of `ids`; deleted ones are left out. Raises `MetadataUnavailable`."""
    client = context.client()
    for start in range(0, len(ids), READ_AHEAD):
        part = ids[start : start + READ_AHEAD]
        yield from client.run(lambda each, part=part: _sizes(each, part))  # type: ignore[misc]


async def _sizes(client: Client, ids: Sequence[int]) -> list[LedgerSize]:
    async def read(ledger_id: int) -> LedgerSize | None:
        try:
            return size_of(await client.metadata(ledger_id))
        except NoSuchLedger:
            return None
        except MetadataDamaged:
            return LedgerSize(ledger_id, None, 0, ())

    return [size for size in await bounded(ids, read, READ_AT_ONCE) if size is not None]
