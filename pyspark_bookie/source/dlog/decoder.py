"""Log records of DistributedLog as rows.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_bookie.source.dlog.entries import LogRecord, log_records
from pyspark_bookie.source.planning import LedgerSnapshot


class DlogDecoder:
    """`decode=dlog`. Columns: `pyspark_bookie.source.schema`."""

    def records(self, entry: bytes) -> Sequence[LogRecord]:
        """Raises `UndecodableEntry`."""
        return log_records(entry)

    def columns(self, record: LogRecord) -> Mapping[str, Any]:
        return record._asdict()

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        return {"stream": ledger.stream}
