"""What is to be recovered, and in which pieces.

Invariants
- A ledger is in one piece only: two tasks never wait for the same lock.
- The largest pieces come first, and pieces are about equally large, so that no slot works alone in the end.

Driver only; `pieces` is pure.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.errors import NoSuchLedger
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerWork
from pyspark_bookie.jobs.replicas.findings import COLUMNS, Finding, Verdict, finding_of
from pyspark_bookie.jobs.replicas.units import size_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

    from bookie_client.client import Client

LEDGER_COST: Final = 256 * 1024
"""What a ledger costs beside its bytes, in bytes: locks and metadata."""
MAX_LEDGERS: Final = 1_000
READ_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """One task."""

    works: tuple[LedgerWork, ...]

    @property
    def nbytes(self) -> int:
        return sum(work.nbytes for work in self.works)


def pieces(works: Iterable[LedgerWork], max_bytes: int, least: int) -> list[Piece]:
    """Ledgers by size, each to the lightest of as many pieces as their bytes make, but at least `least`; largest
    pieces first."""
    ordered = sorted(works, key=lambda work: (-work.nbytes, work.ledger_id))
    total = sum(work.nbytes + LEDGER_COST for work in ordered)
    count = min(len(ordered), max(least, -(-total // max(1, max_bytes)), -(-len(ordered) // MAX_LEDGERS)))
    if not count:
        return []
    loads = [(0, place) for place in range(count)]
    parts: list[list[LedgerWork]] = [[] for _ in range(count)]
    for work in ordered:
        load, place = heapq.heappop(loads)
        parts[place].append(work)
        heapq.heappush(loads, (load + work.nbytes + LEDGER_COST, place))
    found = [Piece(tuple(sorted(part, key=lambda work: work.ledger_id))) for part in parts]
    return sorted(found, key=lambda piece: -piece.nbytes)


def of_findings(findings: Iterable[Finding], within: Sequence[int] | None) -> Iterator[LedgerWork]:
    """The lost copies of a report, ledger by ledger. `within`: only these ledgers."""
    chosen = None if within is None else set(within)
    by_ledger: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.verdict.is_copy_lost and (chosen is None or finding.ledger_id in chosen):
            by_ledger.setdefault(finding.ledger_id, []).append(finding)
    for ledger_id, mine in sorted(by_ledger.items()):
        yield LedgerWork(ledger_id, 0, findings=tuple(mine))


def read_findings(uri: str) -> list[Finding]:
    """The lost copies that the newest run below the URI found, or the one run that it names. Raises `UsageError`."""
    import pyarrow.dataset as ds

    from pyspark_bookie.common.filesystems import file_system

    found, path = file_system("--findings", uri)
    folder = _newest(found, path)
    names = [name for name, _ in COLUMNS]
    wanted = ds.field("verdict").isin([verdict.value for verdict in Verdict if verdict.is_copy_lost])
    try:
        table: pa.Table = ds.dataset(folder, filesystem=found, format="parquet").to_table(columns=names, filter=wanted)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"--findings {uri}: no report of an audit or a scrub: {' '.join(str(error).split())}"
        ) from error
    return [finding_of(row) for batch in table.to_batches() for row in batch.to_pylist()]


def of_bookies(context: JobContext[Any], ids: Sequence[int], bookies: frozenset[str]) -> Iterator[LedgerWork]:
    """The ledgers that name one of these bookies, also where it stores nothing, so that metadata drop it. Raises
    `MetadataError`."""
    client = context.client()
    for start in range(0, len(ids), READ_AT_ONCE):
        part = ids[start : start + READ_AT_ONCE]
        yield from client.run(lambda each, part=part: _naming(each, part, bookies))  # type: ignore[misc]


# --- inside -------------------------------------------------------------------------------------------------------


def _newest(found: pafs.FileSystem, path: str) -> str:
    import pyarrow.fs as pafs

    info = found.get_file_info(path)
    if info.type is pafs.FileType.NotFound:
        raise UsageError(f"--findings {path}: there is nothing")
    if info.type is not pafs.FileType.Directory:
        return path
    folders = [each for each in found.get_file_info(pafs.FileSelector(path)) if each.type is pafs.FileType.Directory]
    return max((each.path for each in folders if each.base_name.startswith("run=")), default=path)


async def _naming(client: Client, ids: Sequence[int], bookies: frozenset[str]) -> list[LedgerWork]:
    async def one(ledger_id: int) -> LedgerWork | None:
        try:
            metadata = await client.metadata(ledger_id)
        except NoSuchLedger:
            return None
        if bookies.isdisjoint(metadata.all_bookies()):
            return None
        nbytes = sum(held for bookie, held in size_of(metadata).by_bookie if bookie in bookies)
        return LedgerWork(ledger_id, nbytes, bookies=bookies)

    return [work for work in await asyncio.gather(*map(one, ids)) if work is not None]
