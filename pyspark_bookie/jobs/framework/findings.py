"""Findings of jobs that move ledgers: one row for each ledger of which there is something to say.

Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from bookie_protocol.errors import MetadataDamaged, PodkeeperError
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.tasks import task_error

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client import Client

T = TypeVar("T")

ARCHIVED: Final = "ARCHIVED"
MISSING: Final = "MISSING"
WOULD: Final = "WOULD_"
"""In front of what a dry run would do."""


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """`what`: a code in capitals. `detail`: one line."""

    ledger_id: int
    what: str
    detail: str = ""


AT_ONCE: Final = 16
"""Files that are read at the same time: each takes an object store some milliseconds."""


def readable(ledger_ids: Iterable[int], read: Callable[[int], T]) -> tuple[list[T], list[LedgerFinding]]:
    """What `read` gives of each ledger, and a finding for each that it raised for: one damaged file does not keep the
    others from being taken. `read` is called by several threads."""
    there: list[T] = []
    taken: dict[int, T] = {}
    found: list[LedgerFinding] = []

    def attempt(ledger_id: int) -> None:
        try:
            taken[ledger_id] = read(ledger_id)
        except (PodkeeperError, OSError) as error:
            told = task_error(error)
            found.append(LedgerFinding(ledger_id, told.code, told.message))

    left = iter(ledger_ids)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="reading") as threads:
        while some := list(islice(left, AT_ONCE * 64)):
            list(threads.map(attempt, some))
            there += [taken.pop(each) for each in some if each in taken]
    return there, sorted(found, key=lambda each: each.ledger_id)


def not_at_source(ledger_ids: Iterable[int]) -> list[LedgerFinding]:
    """A finding for each ledger that was named and that the files do not have."""
    return [LedgerFinding(each, MISSING, "it is not at the source") for each in sorted(ledger_ids)]


def findings_table(found: Sequence[LedgerFinding]) -> pa.Table:
    """Columns `ledger_id`, `what`, `detail`, in the order of ids."""
    import pyarrow as pa

    ordered = sorted(found, key=lambda finding: (finding.ledger_id, finding.what))
    return pa.table(
        {
            "ledger_id": pa.array([finding.ledger_id for finding in ordered], pa.int64()),
            "what": pa.array([finding.what for finding in ordered], pa.string()),
            "detail": pa.array([finding.detail for finding in ordered], pa.string()),
        }
    )


async def missing_findings(client: Client, ledger_ids: Iterable[int]) -> list[LedgerFinding]:
    """ARCHIVED where `offload` has taken the ledger out of the cluster, MISSING where nobody has it. Raises
    `MetadataUnavailable`."""

    async def finding(ledger_id: int) -> LedgerFinding:
        try:
            there = await archived_ledger(client.metadata_service, ledger_id)
        except MetadataDamaged as error:
            told = task_error(error)
            return LedgerFinding(ledger_id, told.code, told.message)
        if there is None:
            return LedgerFinding(ledger_id, MISSING, "the ledger does not exist")
        remedy = f"restore --source {there.target} --keep-ids --ledgers {ledger_id}"
        return LedgerFinding(ledger_id, ARCHIVED, f"it is in the archive, and gone from the bookies: {remedy}")

    return await bounded(ledger_ids, finding)
