"""Findings on the driver: written to a file as they come in, read back as a table that the memory does not hold.

One thread. The file is removed with the spool (on Linux a mapped file lives until its last user is gone).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from pyspark_bookie.jobs.replicas.findings import COLUMNS, Finding, Verdict, row_of

if TYPE_CHECKING:
    import pyarrow as pa


class FindingsSpool:
    """`counts`: findings by verdict."""

    def __init__(self) -> None:
        import pyarrow as pa

        types = {"long": pa.int64(), "int": pa.int32(), "string": pa.string()}
        self._schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS])
        handle, self._path = tempfile.mkstemp(prefix="findings-", suffix=".arrow")
        os.close(handle)
        self._writer: pa.ipc.RecordBatchFileWriter | None = pa.ipc.new_file(self._path, self._schema)
        self.counts: Counter[Verdict] = Counter()
        self.ledgers: Counter[Verdict] = Counter()
        """Ledgers with such a finding, if all findings of a ledger come in one call."""

    def add(self, findings: Iterable[Finding]) -> None:
        """Keep these."""
        import pyarrow as pa

        rows = list(findings)
        if not rows or self._writer is None:
            return
        self.counts.update(each.verdict for each in rows)
        self.ledgers.update(verdict for _, verdict in {(each.ledger_id, each.verdict) for each in rows})
        self._writer.write_batch(pa.RecordBatch.from_pylist([row_of(each) for each in rows], schema=self._schema))

    @property
    def has_faults(self) -> bool:
        """Something was found that counts."""
        return any(count and verdict.counts for verdict, count in self.counts.items())

    def table(self) -> pa.Table:
        """All of them; nothing can be added any more."""
        import pyarrow as pa

        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with pa.memory_map(self._path) as file:
            return pa.ipc.open_file(file).read_all()

    def close(self) -> None:
        """Remove the file; a table that was read stays good."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if os.path.exists(self._path):
            os.unlink(self._path)

    def __enter__(self) -> FindingsSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
