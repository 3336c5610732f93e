"""The outcome of a job: a row of counters, findings, an exit code; and the findings of jobs that move ledgers.

Such a job reports one row for each ledger with a finding.

The row is one JSON object on one line, the last line of standard output:

    {"job": "offload", "status": "ok", "exit_code": 0, "complete": true, "dry_run": false,
     "started": "2026-11-21T20:15:00Z", "seconds": 12.3, ...the job's counters..., "error": "..."}

`status`: ok, findings, error, interrupted. `complete`: nothing was left for another run. `error` is there only with
error and interrupted. The line has 4096 bytes at most: so much does Kubernetes keep of a container's last words.

Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from bookie_protocol.errors import MetadataDamaged, PodkeeperError
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.shown import one_line, shown_uri
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.tasks import task_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from bookie_client import Client

MAX_ROW_BYTES: Final = 4096
_MAX_ERROR: Final = 1000
_MAX_TEXT: Final = 200

Counter = int | float | str | bool | None
T = TypeVar("T")
ARCHIVED: Final = "ARCHIVED"
MISSING: Final = "MISSING"
WOULD: Final = "WOULD_"
"""Prefix of what a dry run would do."""
AT_ONCE: Final = 16
"""Files that are read at the same time: each takes an object store some milliseconds."""


class JobExit(IntEnum):
    """Exit codes."""

    OK = 0
    ERROR = 1
    """Usage errors too."""
    FINDINGS = 2
    """It ended, and found something to be looked at; what could not be done of the work counts as found."""
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def status(self) -> str:
        return {0: "ok", 1: "error", 2: "findings"}.get(self, "interrupted")


@dataclass(frozen=True)
class JobResult:
    """`counters`: names in snake_case, in the order in which they are shown. `findings`: a row for each thing found.
    `complete`: False when the time limit, or failures, left work for another run."""

    counters: Mapping[str, Counter]
    findings: DataFrame | pa.Table | None = None
    exit: JobExit = JobExit.OK
    complete: bool = True


@dataclass
class ResultRow:
    """The row of one run; filled while it goes."""

    job: str
    dry_run: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    exit: JobExit = JobExit.OK
    complete: bool = True
    counters: Mapping[str, Counter] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0

    def line(self) -> str:
        """One line of JSON of at most `MAX_ROW_BYTES`."""
        row: dict[str, Counter] = {
            "job": self.job,
            "status": self.exit.status,
            "exit_code": int(self.exit),
            "complete": self.complete,
            "dry_run": self.dry_run,
            "started": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round(self.seconds, 3),
        }
        row.update({name: _short(value) for name, value in self.counters.items() if name not in row})
        if self.error is not None:
            row["error"] = one_line(self.error, _MAX_ERROR)
        line = json.dumps(row)
        while len(line) > MAX_ROW_BYTES:
            row.popitem()
            line = json.dumps(row)
        return line


def _short(value: Counter) -> Counter:
    return value[:_MAX_TEXT] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """`what`: a code in capitals. `detail`: one line."""

    ledger_id: int
    what: str
    detail: str = ""


def readable(ledger_ids: Iterable[int], read: Callable[[int], T]) -> tuple[list[T], list[LedgerFinding]]:
    """Return what `read` returns for each ledger, and a finding for each that it raised for: one damaged file does
    not hold up the others. `read` is called by several threads."""
    there: list[T] = []
    taken: dict[int, T] = {}
    found: list[LedgerFinding] = []

    def attempt(ledger_id: int) -> None:
        try:
            taken[ledger_id] = read(ledger_id)
        except PodkeeperError as error:
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
    """Return ARCHIVED where `offload` has taken the ledger out of the cluster, MISSING where it does not exist at
    all. Raises `MetadataUnavailable`."""

    async def finding(ledger_id: int) -> LedgerFinding:
        try:
            there = await archived_ledger(client.metadata_service.records, ledger_id)
        except MetadataDamaged as error:
            told = task_error(error)
            return LedgerFinding(ledger_id, told.code, told.message)
        if there is None:
            return LedgerFinding(ledger_id, MISSING, "the ledger does not exist")
        remedy = f"restore --source {shown_uri(there.target)} --keep-ids --ledgers {ledger_id}"
        return LedgerFinding(ledger_id, ARCHIVED, f"it is in the archive, and gone from the bookies: {remedy}")

    return await bounded(ledger_ids, finding)
