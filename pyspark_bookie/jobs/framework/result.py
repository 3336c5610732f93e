"""What a job comes to: a row of counters, findings, an exit code.

The row is one JSON object on one line, the last line of standard output:

    {"job": "offload", "status": "ok", "exit_code": 0, "complete": true, "dry_run": false,
     "started": "2026-11-21T20:15:00Z", "seconds": 12.3, ...the job's counters..., "error": "..."}

`status`: ok, findings, error, interrupted. `complete`: nothing was left for another run. `error` is there only with
error and interrupted. The line has 4096 bytes at most: so much does
Kubernetes keep of a container's last words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MAX_ROW_BYTES: Final = 4096
_MAX_ERROR: Final = 1000
_MAX_TEXT: Final = 200

Counter = int | float | str | bool | None


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
            row["error"] = " ".join(self.error.split())[:_MAX_ERROR]
        line = json.dumps(row)
        while len(line) > MAX_ROW_BYTES:
            row.popitem()
            line = json.dumps(row)
        return line


def _short(value: Counter) -> Counter:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
